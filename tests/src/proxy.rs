//! A proxy between clients and a server that loses requests and replies.
//!
//! It reads one request, forwards it, and waits for its reply before it reads the next request. For each request a plan
//! decides what is lost. The client sees a cut at once. The fates differ in what the server notices of
//! the cut, and when.

use crate::listener::Listener;
use crate::reply::Reply;
use crate::resp::decode;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The request and its reply are forwarded.
    Carried,
    /// The connection is cut before the request is forwarded.
    RequestLost,
    /// The request is forwarded, and the connection is cut when its reply arrives.
    ReplyLost,
    /// The same, but a part of the reply is forwarded before the cut.
    ReplyTorn,
    /// The request is forwarded. From then on nothing is forwarded in either direction, as behind a firewall that has
    /// dropped the connection. The connection is cut when the client ends it, and after this time at the latest.
    Silence(Duration),
    /// The request is forwarded and the client's side is cut. The server's side is cut when the reply arrives.
    ClientLost,
    /// The request is forwarded, and both sides are cut after this time, or when the reply arrives, which is
    /// lost, too.
    CutAfter(Duration),
}

/// What has been lost so far.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// The number of requests that did not reach the server.
    pub requests: usize,
    /// The replies that did not reach their client.
    pub replies: Vec<Reply>,
    /// How often the server's side was cut before the reply.
    pub cuts: usize,
}

type Plan = dyn FnMut(&[Reply]) -> Fate + Send;

struct Shared {
    server: u16,
    plan: Mutex<Box<Plan>>,
    losses: Mutex<Losses>,
}

/// A proxy on its own port. It ends when it goes out of scope.
pub struct Proxy {
    listener: Listener,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy to the server on this port. `plan` decides the fate of each request by its arguments.
    #[track_caller]
    pub fn start(server: u16, plan: impl FnMut(&[Reply]) -> Fate + Send + 'static) -> Self {
        let plan = Mutex::new(Box::new(plan) as Box<Plan>);
        let shared = Arc::new(Shared { server, plan, losses: Mutex::default() });
        let accepting = Arc::clone(&shared);
        let listener = Listener::start(move |client| {
            let shared = Arc::clone(&accepting);
            // If one side of a connection fails, both are cut.
            thread::spawn(move || Connection::open(client, &shared).and_then(|mut it| it.carry(&shared)));
        });
        Self { listener, shared }
    }

    /// The port it listens on.
    pub const fn port(&self) -> u16 {
        self.listener.port()
    }

    /// What has been lost so far.
    pub fn losses(&self) -> Losses {
        self.shared.losses().clone()
    }

    /// The number of replies that have been lost so far.
    pub fn replies_lost(&self) -> usize {
        self.shared.losses().replies.len()
    }
}

impl Shared {
    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fate_of(&self, request: &[Reply]) -> Fate {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        (*plan)(request)
    }
}

struct Connection {
    client: Side,
    server: Side,
}

struct Side {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    fn open(client: TcpStream, shared: &Shared) -> io::Result<Self> {
        let server = TcpStream::connect(("127.0.0.1", shared.server))?;
        Ok(Self { client: Side::new(client)?, server: Side::new(server)? })
    }

    /// Forwards requests and replies until one side ends or something is lost. Both sides are cut then.
    fn carry(&mut self, shared: &Shared) -> io::Result<()> {
        loop {
            let (request, bytes) = self.client.next(None)?;
            let fate = shared.fate_of(request.items());
            if fate == Fate::RequestLost {
                shared.losses().requests += 1;
                return Ok(());
            }
            self.server.stream.write_all(&bytes)?;
            let deadline = match fate {
                Fate::CutAfter(delay) => Some(Instant::now() + delay),
                Fate::ClientLost => {
                    self.client.stream.shutdown(Shutdown::Both)?;
                    None
                }
                Fate::Carried | Fate::RequestLost | Fate::ReplyLost | Fate::ReplyTorn | Fate::Silence(_) => {
                    None
                }
            };
            match self.server.next(deadline) {
                Ok((_, bytes)) if fate == Fate::Carried => self.client.stream.write_all(&bytes)?,
                Ok((reply, bytes)) => {
                    shared.losses().replies.push(reply);
                    match fate {
                        Fate::ReplyTorn => self.client.stream.write_all(&bytes[..bytes.len() / 2])?,
                        Fate::Silence(limit) => self.client.wait_for_end(Instant::now() + limit)?,
                        _ => {}
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    shared.losses().cuts += 1;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Side {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Reads and drops data until the other side ends the connection or the deadline passes.
    fn wait_for_end(&mut self, deadline: Instant) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Ok(());
            }
            self.stream.set_read_timeout(Some(left))?;
            if matches!(self.stream.read(&mut [0; 4 * 1024]), Ok(0)) {
                return Ok(());
            }
        }
    }

    /// The next request or reply, and its bytes.
    fn next(&mut self, deadline: Option<Instant>) -> io::Result<(Reply, Vec<u8>)> {
        loop {
            let decoded = decode(&self.unread).map_err(|_| ErrorKind::InvalidData)?;
            if let Some((reply, length)) = decoded {
                return Ok((reply, self.unread.drain(..length).collect()));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(ErrorKind::TimedOut.into());
            }
            // The timeout of a socket is no finer than the kernel's tick.
            self.stream.set_nonblocking(left.is_some())?;
            let mut chunk = [0; 4 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.unread.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::park_timeout(left.unwrap_or_default().min(Duration::from_micros(100)));
                }
                Err(error) => return Err(error),
            }
        }
    }
}
