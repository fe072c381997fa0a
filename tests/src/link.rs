//! A replication link that breaks as networks do.

use crate::server::Server;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A link to a server: whoever connects to its port talks to that server, as long as the link holds.
///
/// A replica that is told to follow the link's port can be cut off, or be left waiting for what never comes.
#[derive(Debug)]
pub struct Link {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// The port behind the link.
    server: u16,
    /// Both ends of every connection that may be open.
    ends: Mutex<Vec<TcpStream>>,
    /// After how many bytes from the server each of the next connections is to be cut.
    cuts: Mutex<VecDeque<u64>>,
    /// After how many bytes from the server the rest is lost.
    swallows_after: AtomicU64,
    connections: AtomicU64,
    latest: Mutex<Arc<Connection>>,
    over: AtomicBool,
}

/// One connection over the link.
#[derive(Debug, Default)]
struct Connection {
    /// The bytes from the server that it has carried.
    carried: AtomicU64,
    /// Whether it has lost something: then it carries nothing more.
    lost: AtomicBool,
}

impl Link {
    /// A link to `server` that holds.
    #[track_caller]
    pub fn to(server: &Server) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State {
            server: server.port(),
            ends: Mutex::default(),
            cuts: Mutex::default(),
            swallows_after: AtomicU64::new(u64::MAX),
            connections: AtomicU64::new(0),
            latest: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&state);
        thread::spawn(move || accepting.accept(&listener));
        Self { port, state }
    }

    /// The port to connect to.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Closes every connection. New ones are made.
    pub fn cut(&self) {
        for end in held(&self.state.ends).drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Cuts the next connections, each after its number of bytes from the server. Those that come later hold.
    pub fn cut_after(&self, bytes: impl IntoIterator<Item = u64>) {
        held(&self.state.cuts).extend(bytes);
    }

    /// How many of these cuts are still to come.
    pub fn cuts_left(&self) -> usize {
        held(&self.state.cuts).len()
    }

    /// From now on what either side sends is lost, and neither is told: the connections stay open.
    pub fn swallow(&self) {
        self.swallow_after(0);
    }

    /// The same, once a connection has carried so many bytes from the server.
    pub fn swallow_after(&self, bytes: u64) {
        self.state.swallows_after.store(bytes, Ordering::SeqCst);
    }

    /// Ends that: connections that have lost something are cut, new ones hold.
    pub fn mend(&self) {
        self.state.swallows_after.store(u64::MAX, Ordering::SeqCst);
        self.cut();
    }

    /// How many connections there have been.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// The bytes from the server that the latest connection has carried.
    pub fn carried(&self) -> u64 {
        held(&self.state.latest).carried.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.cut();
    }
}

impl State {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((near, _)) = listener.accept() {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let server = SocketAddr::from(([127, 0, 0, 1], self.server));
            // A server that does not answer: the connection ends at once, as it does without a link.
            let Ok(far) = TcpStream::connect(server) else { continue };
            let cut = held(&self.cuts).pop_front().unwrap_or(u64::MAX);
            let connection = Arc::new(Connection::default());
            *held(&self.latest) = Arc::clone(&connection);
            self.connections.fetch_add(1, Ordering::SeqCst);
            let copy = |end: &TcpStream| {
                let _ = end.set_nodelay(true);
                end.try_clone().expect("another handle")
            };
            held(&self.ends).extend([copy(&near), copy(&far)]);
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
    }

    /// Carries what `from` sends to `to`, of each piece what `fits`, until one of them closes or the link is cut.
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
                    // Nobody hears of the end either.
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

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
