//! A proxy between clients and a server. The proxy loses, delays and holds back requests and replies.
//!
//! On each connection the proxy forwards one request and waits for the reply before it forwards the next request. A
//! plan decides the fate of each request: whether the request or the reply is lost, and when the client and the server
//! notice the cut.

use crate::listener::Listener;
use crate::mutex::locked;
use crate::reply::Reply;
use crate::resp::decode;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The request and its reply are forwarded.
    Carried,
    /// The connection is cut before the request is forwarded.
    RequestLost,
    /// The request is forwarded, and the connection is cut when its reply arrives.
    ReplyLost,
    /// The request is forwarded. When its reply arrives, the proxy forwards half of the reply and then cuts the
    /// connection.
    ReplyTorn,
    /// The proxy forwards the request, and drops its reply and everything after it, like a firewall that has forgotten
    /// the connection. The proxy cuts the connection after this time, or earlier when the client closes its
    /// connection.
    Silence(Duration),
    /// The request is forwarded, and the connection to the client is cut at once. The connection to the server is cut
    /// when the reply arrives.
    ClientLost,
    /// The request is forwarded. The proxy cuts both connections after this time, or earlier when the reply arrives.
    /// The reply is lost.
    CutAfter(Duration),
    /// The proxy holds the request back until the next plan, and then forwards the request and its reply.
    Held,
}

/// What has been lost so far.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// The number of requests that did not reach the server.
    pub requests: usize,
    /// The replies that did not reach their client.
    pub replies: Vec<Reply>,
    /// How often [`Fate::CutAfter`] cut a connection before the reply arrived.
    pub cuts: usize,
    /// The number of requests that were held back. These requests are not lost.
    pub held: usize,
}

type Plan = dyn FnMut(&[Reply]) -> Fate + Send;

struct Shared {
    /// The port to which new connections are forwarded.
    server: AtomicU16,
    is_two_way: bool,
    /// The plan, and the number of earlier plans.
    plan: Mutex<(Box<Plan>, u64)>,
    losses: Mutex<Losses>,
    /// The delay of replies.
    delay: Mutex<Duration>,
    /// The connections to clients and to the server that may be open.
    sides: Mutex<Vec<Weak<TcpStream>>>,
}

/// A proxy on its own port. The proxy ends when this value goes out of scope.
pub struct Proxy {
    listener: Listener,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy to the server on this port. `plan` decides the fate of each request by the request's arguments.
    ///
    /// When a client disconnects during a request, the server learns this only after it has sent the reply. When the
    /// server closes a connection, the client learns this only when it sends its next request.
    #[track_caller]
    pub fn start(server: u16, plan: impl FnMut(&[Reply]) -> Fate + Send + 'static) -> Self {
        Self::listen(server, false, Box::new(plan))
    }

    /// Starts a proxy that loses nothing, to the server on this port. When the client or the server disconnects, the
    /// proxy disconnects the other side at once. The proxy also forwards pushes of the server.
    #[track_caller]
    pub fn start_two_way(server: u16) -> Self {
        Self::listen(server, true, Box::new(|_| Fate::Carried))
    }

    #[track_caller]
    fn listen(server: u16, is_two_way: bool, plan: Box<Plan>) -> Self {
        let shared = Arc::new(Shared {
            server: AtomicU16::new(server),
            is_two_way,
            plan: Mutex::new((plan, 0)),
            losses: Mutex::default(),
            delay: Mutex::default(),
            sides: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        let listener = Listener::start(move |client| {
            let shared = Arc::clone(&accepting);
            // When `carry` returns, the connections to the client and to the server are closed.
            thread::spawn(move || Connection::open(client, &shared).and_then(|mut it| it.carry(&shared)));
        });
        Self { listener, shared }
    }

    /// The port of the proxy.
    pub const fn port(&self) -> u16 {
        self.listener.port()
    }

    /// What has been lost so far.
    pub fn losses(&self) -> Losses {
        locked(&self.shared.losses).clone()
    }

    /// The number of replies that have been lost so far.
    pub fn replies_lost(&self) -> usize {
        locked(&self.shared.losses).replies.len()
    }

    /// Decides the fate of each further request by `plan`.
    pub fn set_plan(&self, plan: impl FnMut(&[Reply]) -> Fate + Send + 'static) {
        let mut current = locked(&self.shared.plan);
        *current = (Box::new(plan), current.1 + 1);
    }

    /// Forwards each further connection to the server on this port. The open connections stay.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::Relaxed);
    }

    /// Delays each further reply.
    pub fn delay(&self, delay: Duration) {
        *locked(&self.shared.delay) = delay;
    }

    /// Closes every connection. New connections are accepted.
    pub fn cut(&self) {
        for side in locked(&self.shared.sides).drain(..).filter_map(|side| side.upgrade()) {
            let _ = side.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    /// The fate of a request. Blocks while the request is held back.
    fn fate_of(&self, request: &[Reply]) -> Fate {
        let (fate, number) = {
            let (plan, number) = &mut *locked(&self.plan);
            (plan(request), *number)
        };
        if fate != Fate::Held {
            return fate;
        }
        locked(&self.losses).held += 1;
        while locked(&self.plan).1 == number {
            thread::park_timeout(Duration::from_millis(1));
        }
        Fate::Carried
    }
}

struct Connection {
    client: Side,
    server: Side,
}

struct Side {
    stream: Arc<TcpStream>,
    unread: Vec<u8>,
    is_over: bool,
}

impl Connection {
    fn open(client: TcpStream, shared: &Shared) -> io::Result<Self> {
        let server = TcpStream::connect(("127.0.0.1", shared.server.load(Ordering::Relaxed)))?;
        let (client, server) = (Side::new(client)?, Side::new(server)?);
        let mut sides = locked(&shared.sides);
        sides.retain(|side| side.strong_count() > 0);
        sides.extend([&client, &server].map(|side| Arc::downgrade(&side.stream)));
        Ok(Self { client, server })
    }

    /// Forwards requests and replies until the client or the server disconnects, or the plan cuts the connection.
    fn carry(&mut self, shared: &Shared) -> io::Result<()> {
        loop {
            let (request, bytes) = self.next_request(shared)?;
            let fate = shared.fate_of(request.items());
            if fate == Fate::RequestLost {
                locked(&shared.losses).requests += 1;
                return Ok(());
            }
            self.server.send(&bytes)?;
            if fate == Fate::ClientLost {
                self.client.stream.shutdown(Shutdown::Both)?;
            }
            let deadline = match fate {
                Fate::CutAfter(delay) => Some(Instant::now() + delay),
                _ => None,
            };
            match self.next_reply(shared.is_two_way && fate != Fate::ClientLost, deadline) {
                Ok((_, bytes)) if fate == Fate::Carried => {
                    let delay = *locked(&shared.delay);
                    thread::sleep(delay);
                    self.client.send(&bytes)?;
                }
                Ok((reply, bytes)) => {
                    locked(&shared.losses).replies.push(reply);
                    match fate {
                        Fate::ReplyTorn => self.client.send(&bytes[..bytes.len() / 2])?,
                        Fate::Silence(limit) => {
                            let end = Instant::now() + limit;
                            while !self.client.is_over && self.receive(true, false, Some(end)).is_ok() {}
                        }
                        _ => {}
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    locked(&shared.losses).cuts += 1;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn next_request(&mut self, shared: &Shared) -> io::Result<(Reply, Vec<u8>)> {
        loop {
            if shared.is_two_way {
                while let Some((_, bytes)) = self.server.take()? {
                    self.client.send(&bytes)?;
                }
            }
            if let Some(request) = self.client.take()? {
                return Ok(request);
            }
            self.receive(true, shared.is_two_way, None)?;
        }
    }

    fn next_reply(
        &mut self,
        watches_client: bool,
        deadline: Option<Instant>,
    ) -> io::Result<(Reply, Vec<u8>)> {
        loop {
            if let Some(reply) = self.server.take()? {
                return Ok(reply);
            }
            if watches_client && self.client.is_over {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.receive(watches_client, true, deadline)?;
        }
    }

    /// Waits until the client or the server has sent data or disconnected, and reads the data. `client` and `server`
    /// say whether the client and the server are watched.
    fn receive(&mut self, client: bool, server: bool, deadline: Option<Instant>) -> io::Result<()> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(ErrorKind::TimedOut.into());
        }
        // A socket timeout is only as precise as the kernel's tick, so `ppoll` is used.
        let left = left.map(|left| libc::timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let limit = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        // `ppoll` ignores a negative descriptor.
        let poll = |side: &Side, is_watched: bool| libc::pollfd {
            fd: if is_watched { side.stream.as_raw_fd() } else { -1 },
            events: libc::POLLIN,
            revents: 0,
        };
        let mut polled = [poll(&self.client, client), poll(&self.server, server)];
        // SAFETY: `polled` has two elements; `limit` is null or points into `left`; the signal mask may be null.
        if unsafe { libc::ppoll(polled.as_mut_ptr(), 2, limit, ptr::null()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        for (side, polled) in [&mut self.client, &mut self.server].into_iter().zip(polled) {
            if polled.revents != 0 {
                side.receive()?;
            }
        }
        Ok(())
    }
}

impl Side {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream: Arc::new(stream), unread: Vec::new(), is_over: false })
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&*self.stream).write_all(bytes)
    }

    /// Reads bytes that have arrived, or the end of the stream.
    fn receive(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4 * 1024];
        let length = (&*self.stream).read(&mut chunk)?;
        self.is_over = length == 0;
        self.unread.extend_from_slice(&chunk[..length]);
        Ok(())
    }

    /// The next request or reply that has arrived, and its bytes.
    fn take(&mut self) -> io::Result<Option<(Reply, Vec<u8>)>> {
        let decoded = match self.unread.first() {
            Some(first) if first.is_ascii_alphabetic() => inline(&self.unread),
            _ => decode(&self.unread).map_err(|_| ErrorKind::InvalidData)?,
        };
        match decoded {
            Some((reply, length)) => Ok(Some((reply, self.unread.drain(..length).collect()))),
            None if self.is_over => Err(ErrorKind::UnexpectedEof.into()),
            None => Ok(None),
        }
    }
}

/// The inline command in the first line, and the length of that line.
fn inline(bytes: &[u8]) -> Option<(Reply, usize)> {
    let length = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let words = bytes[..length].trim_ascii().split(|byte| *byte == b' ');
    Some((Reply::Array(words.map(|word| Reply::Bulk(word.to_vec())).collect()), length))
}
