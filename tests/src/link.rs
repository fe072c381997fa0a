//! A TCP proxy for replication links that cuts connections or silently drops data, as networks do.

use crate::listener::Listener;
use crate::mutex::locked;
use crate::server::Server;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A proxy to a server. The proxy has its own port, and forwards each connection on this port to the server.
///
/// A test can cut the link of a replica, or leave the replica waiting for data that never arrives.
#[derive(Debug)]
pub struct Link {
    listener: Listener,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// The port behind the link.
    server: u16,
    /// The two sockets of every connection that may be open.
    ends: Mutex<Vec<TcpStream>>,
    /// For each of the next connections: the number of bytes from the server after which the link cuts the connection.
    cuts: Mutex<VecDeque<u64>>,
    /// After this number of bytes from the server, a connection drops all data.
    swallows_after: AtomicU64,
    connections: AtomicU64,
    latest: Mutex<Arc<Connection>>,
    /// Set when the `Link` is dropped. A connection that is accepted after the drop is closed at once.
    is_dropped: AtomicBool,
}

/// One connection over the link.
#[derive(Debug, Default)]
struct Connection {
    /// The number of forwarded bytes from the server.
    carried: AtomicU64,
    /// Whether the connection has dropped data. Such a connection forwards nothing more.
    lost: AtomicBool,
}

impl Link {
    /// A link to `server` that forwards everything.
    #[track_caller]
    pub fn to(server: &Server) -> Self {
        let state = Arc::new(State {
            server: server.port(),
            ends: Mutex::default(),
            cuts: Mutex::default(),
            swallows_after: AtomicU64::new(u64::MAX),
            connections: AtomicU64::new(0),
            latest: Mutex::default(),
            is_dropped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&state);
        let listener = Listener::start(move |near| accepting.accept(near));
        Self { listener, state }
    }

    /// The port to connect to.
    pub const fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Closes every connection. New connections are accepted.
    pub fn cut(&self) {
        for end in locked(&self.state.ends).drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Each element of `bytes` belongs to one of the next connections, in order. The link cuts the connection
    /// after this number of bytes from the server.
    pub fn cut_after(&self, bytes: impl IntoIterator<Item = u64>) {
        locked(&self.state.cuts).extend(bytes);
    }

    /// How many cuts of [`Link::cut_after`] are still to come.
    pub fn cuts_left(&self) -> usize {
        locked(&self.state.cuts).len()
    }

    /// From now on, drops all data in both directions. The connections stay open.
    pub fn swallow(&self) {
        self.swallow_after(0);
    }

    /// From now on, each connection forwards this number of bytes from the server, and then drops all data in both
    /// directions. The connections stay open.
    pub fn swallow_after(&self, bytes: u64) {
        self.state.swallows_after.store(bytes, Ordering::SeqCst);
    }

    /// Stops dropping data. Existing connections are cut, and new connections are forwarded normally.
    pub fn mend(&self) {
        self.state.swallows_after.store(u64::MAX, Ordering::SeqCst);
        self.cut();
    }

    /// How many connections there have been.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// The number of bytes from the server that the latest connection has forwarded.
    pub fn carried(&self) -> u64 {
        locked(&self.state.latest).carried.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.is_dropped.store(true, Ordering::SeqCst);
        self.cut();
    }
}

impl Server {
    /// Makes this server a replica of `primary` over `link`, and waits until the replica is in sync.
    #[track_caller]
    pub fn follow_through(&self, link: &Link, primary: &Self) {
        self.begin_to_follow(link.port());
        self.see_in_sync_with(primary);
    }
}

impl State {
    fn accept(self: &Arc<Self>, near: TcpStream) {
        let server = SocketAddr::from(([127, 0, 0, 1], self.server));
        // If the server refuses the connection, this return closes the client's connection.
        let Ok(far) = TcpStream::connect(server) else { return };
        let cut = locked(&self.cuts).pop_front().unwrap_or(u64::MAX);
        let connection = Arc::new(Connection::default());
        *locked(&self.latest) = Arc::clone(&connection);
        self.connections.fetch_add(1, Ordering::SeqCst);
        let copy = |end: &TcpStream| {
            let _ = end.set_nodelay(true);
            end.try_clone().expect("another handle")
        };
        {
            let mut ends = locked(&self.ends);
            if self.is_dropped.load(Ordering::SeqCst) {
                return;
            }
            ends.extend([copy(&near), copy(&far)]);
        }
        let (from, to, state, one) = (copy(&near), copy(&far), Arc::clone(self), Arc::clone(&connection));
        thread::spawn(move || state.carry(&one, from, to, |length| length));
        let state = Arc::clone(self);
        thread::spawn(move || {
            state.carry(&connection, far, near, |length| {
                let carried = connection.carried.load(Ordering::SeqCst);
                let end = cut.min(state.swallows_after.load(Ordering::SeqCst));
                let fits = length.min(usize::try_from(end.saturating_sub(carried)).unwrap_or(usize::MAX));
                connection.carried.store(carried + fits as u64, Ordering::SeqCst);
                fits
            });
        });
    }

    /// Forwards data from `from` to `to` until one of the two connections closes or the link is cut. `fits` gets the
    /// length of a chunk and returns how many of its bytes to forward.
    fn carry(
        &self,
        connection: &Connection,
        mut from: TcpStream,
        mut to: TcpStream,
        fits: impl Fn(usize) -> usize,
    ) {
        let mut chunk = [0; 16 * 1024];
        while let Ok(length) = from.read(&mut chunk) {
            let swallowed = || {
                connection.carried.load(Ordering::SeqCst) >= self.swallows_after.load(Ordering::SeqCst)
                    || connection.lost.load(Ordering::SeqCst)
            };
            let gone = swallowed();
            let kept = if gone { 0 } else { fits(length) };
            if to.write_all(&chunk[..kept]).is_err() {
                break;
            }
            if gone || (kept < length && swallowed()) {
                connection.lost.store(true, Ordering::SeqCst);
                if length == 0 {
                    // A link that drops data does not forward the end of the connection either, so the receiver waits.
                    return;
                }
            } else if kept < length || length == 0 {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
