//! A proxy between clients and a server that loses what it is told to lose.
//!
//! It knows where a request and a reply end, and nothing else of what it carries: one reply a request, the next request
//! after that. What is lost is decided request by request. A cut is one for the client at once; what the server hears of
//! it, and when, is the difference between the fates.

use crate::reply::Reply;
use crate::resp::decode;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is forwarded, and so is its reply.
    Carried,
    /// The connection is cut before the request is forwarded.
    RequestLost,
    /// The request is forwarded, its reply is awaited, and the connection is cut instead of forwarding it.
    ReplyLost,
    /// The same, but a part of the reply is forwarded before the cut.
    ReplyTorn,
    /// The request is forwarded, and from then on nothing reaches either side any more, as behind a firewall that has
    /// forgotten the connection. It is cut when the client ends it, and so much later at the latest.
    Silence(Duration),
    /// The request is forwarded and the client cut off. The server hears of that only when it has replied.
    ClientLost,
    /// The request is forwarded, and both sides are cut off so much later, unless the reply comes first. Then it is
    /// lost, too.
    CutAfter(Duration),
}

/// What has been lost up to now.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// How many requests did not reach the server.
    pub requests: usize,
    /// The replies that did not reach their client.
    pub replies: Vec<Reply>,
    /// How often the server was cut off from a client it had not replied to.
    pub cuts: usize,
}

type Plan = dyn FnMut(&[Reply]) -> Fate + Send;

struct Shared {
    server: u16,
    plan: Mutex<Box<Plan>>,
    losses: Mutex<Losses>,
    is_over: AtomicBool,
}

/// A proxy on a port of its own, until it goes out of scope.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// A proxy before the server on `server`. `plan` decides on each request, by its arguments.
    #[track_caller]
    pub fn start(server: u16, plan: impl FnMut(&[Reply]) -> Fate + Send + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            server,
            plan: Mutex::new(Box::new(plan)),
            losses: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let proxy = Self { port, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&shared);
                // A connection that fails on either side is cut on both.
                thread::spawn(move || Connection::open(client, &shared).and_then(|mut it| it.carry(&shared)));
            }
        });
        proxy
    }

    /// The port it listens on.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// What has been lost up to now.
    pub fn losses(&self) -> Losses {
        self.shared.losses().clone()
    }

    /// How many replies have been lost up to now.
    pub fn replies_lost(&self) -> usize {
        self.shared.losses().replies.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // So that the listener looks.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
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

    /// Carries requests and replies until one side ends or something is to be lost; both sides are cut then.
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

    /// Reads what comes, and forgets it, until no more comes.
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
            // The deadline of a socket is no finer than the kernel's tick.
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
