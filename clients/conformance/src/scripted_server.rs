//! A server that answers lock commands by a script. All other commands go to a real server.

use crate::log::Log;
use lockward_tests::{Listener, Reply, decode, locked};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Instant;

/// A scripted server on its own port. The server ends when this value goes out of scope.
pub(crate) struct ScriptedServer {
    listener: Listener,
    shared: Arc<Shared>,
}

struct Shared {
    /// The port of the real server.
    upstream: u16,
    /// Whether the script also answers WAIT.
    answers_wait: bool,
    arrived: Mutex<VecDeque<Request>>,
    connections: Mutex<Vec<Weak<Connection>>>,
    count: AtomicU64,
    log: Log,
}

/// A request that the script answers.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) words: Vec<String>,
    pub(crate) at: Instant,
    slot: usize,
    connection: Arc<Connection>,
}

struct Connection {
    number: u64,
    stream: TcpStream,
    speaks_resp3: Mutex<bool>,
    replies: Mutex<Replies>,
    log: Log,
}

/// The replies of a connection. The server sends the replies in the order of the requests.
#[derive(Default)]
struct Replies {
    /// The number of sent replies.
    sent: usize,
    /// The next replies; `None` for a reply that the script has not given yet.
    next: VecDeque<Option<Vec<u8>>>,
}

impl ScriptedServer {
    pub(crate) fn start(upstream: u16, answers_wait: bool, log: &Log) -> Self {
        let shared = Arc::new(Shared {
            upstream,
            answers_wait,
            arrived: Mutex::default(),
            connections: Mutex::default(),
            count: AtomicU64::new(0),
            log: log.clone(),
        });
        let accepting = Arc::clone(&shared);
        let listener = Listener::start(move |client| {
            let shared = Arc::clone(&accepting);
            thread::spawn(move || shared.serve(client));
        });
        Self { listener, shared }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The first request that no step of the script has taken.
    pub(crate) fn next(&self) -> Option<Request> {
        locked(&self.shared.arrived).pop_front()
    }

    /// Makes a request the next request again.
    pub(crate) fn put_back(&self, request: Request) {
        locked(&self.shared.arrived).push_front(request);
    }

    /// Closes all connections. New connections are accepted.
    pub(crate) fn cut(&self) {
        for connection in locked(&self.shared.connections).drain(..).filter_map(|each| each.upgrade()) {
            connection.cut();
        }
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Request {
    /// The number of the request's connection.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.number
    }

    /// Sends a reply, after the replies to all earlier requests on the connection.
    pub(crate) fn answer(&self, reply: &Answer) {
        let bytes = reply.encoded(*locked(&self.connection.speaks_resp3));
        self.connection.log.add(format_args!("{} < {reply:?}", self.connection.number));
        self.connection.fill(self.slot, bytes);
    }

    /// Closes the request's connection.
    pub(crate) fn cut(&self) {
        self.connection.cut();
    }
}

/// An answer of the script.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Null,
    Int(i64),
    Ints(Vec<i64>),
    Simple(String),
    Bulk(String),
    Error(String),
}

impl Answer {
    fn encoded(&self, resp3: bool) -> Vec<u8> {
        match self {
            Self::Null if resp3 => "_\r\n".to_owned(),
            Self::Null => "*-1\r\n".to_owned(),
            Self::Int(number) => format!(":{number}\r\n"),
            Self::Ints(numbers) => numbers
                .iter()
                .fold(format!("*{}\r\n", numbers.len()), |text, number| format!("{text}:{number}\r\n")),
            Self::Simple(text) => format!("+{text}\r\n"),
            Self::Bulk(text) => format!("${}\r\n{text}\r\n", text.len()),
            Self::Error(text) => format!("-{text}\r\n"),
        }
        .into_bytes()
    }
}

impl Connection {
    fn cut(&self) {
        self.log.add(format_args!("{} is cut", self.number));
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Reserves a place for the reply to the next request.
    fn reserve(&self) -> usize {
        let mut replies = locked(&self.replies);
        replies.next.push_back(None);
        replies.sent + replies.next.len() - 1
    }

    fn fill(&self, slot: usize, bytes: Vec<u8>) {
        let mut replies = locked(&self.replies);
        let place = slot - replies.sent;
        replies.next[place] = Some(bytes);
        while let Some(Some(bytes)) = replies.next.front() {
            // An error is ignored, because the client may have closed the connection.
            let _ = (&self.stream).write_all(bytes);
            replies.next.pop_front();
            replies.sent += 1;
        }
    }
}

impl Shared {
    fn serve(&self, client: TcpStream) {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let (Ok(stream), Ok(upstream)) =
            (client.try_clone(), TcpStream::connect(("127.0.0.1", self.upstream)))
        else {
            return;
        };
        let _ = client.set_nodelay(true);
        let connection = Arc::new(Connection {
            number,
            stream,
            speaks_resp3: Mutex::default(),
            replies: Mutex::default(),
            log: self.log.clone(),
        });
        locked(&self.connections).push(Arc::downgrade(&connection));
        let ended = self.forward(client, &upstream, &connection);
        let _ = connection.stream.shutdown(Shutdown::Both);
        if locked(&connection.replies).next.iter().any(Option::is_none) {
            self.log.add(format_args!("{number} is over: {ended:?}"));
        }
    }

    fn forward(
        &self,
        client: TcpStream,
        upstream: &TcpStream,
        connection: &Arc<Connection>,
    ) -> io::Result<()> {
        let mut requests = Messages::new(client);
        let mut replies = Messages::new(upstream.try_clone()?);
        loop {
            let (request, bytes) = requests.next()?;
            let at = Instant::now();
            let words: Vec<String> = request.items().iter().map(Reply::text).collect();
            let name = words[0].to_ascii_uppercase();
            let slot = connection.reserve();
            if name.starts_with("LOCK.") || self.answers_wait && name == "WAIT" {
                let line = format!("{} > {}", connection.number, words.join(" "));
                locked(&self.arrived).push_back(Request {
                    words,
                    at,
                    slot,
                    connection: Arc::clone(connection),
                });
                self.log.add(line);
                continue;
            }
            (&*upstream).write_all(&bytes)?;
            let (reply, bytes) = replies.next()?;
            if name == "HELLO" && !matches!(reply, Reply::Error(_)) {
                *locked(&connection.speaks_resp3) = words.get(1).is_some_and(|version| version == "3");
            }
            connection.fill(slot, bytes);
        }
    }
}

/// Reads complete messages from a stream.
pub(crate) struct Messages {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Messages {
    pub(crate) const fn new(stream: TcpStream) -> Self {
        Self { stream, unread: Vec::new() }
    }

    /// The next message, and its bytes.
    pub(crate) fn next(&mut self) -> io::Result<(Reply, Vec<u8>)> {
        loop {
            match decode(&self.unread).map_err(|_| ErrorKind::InvalidData)? {
                Some((message, length)) => return Ok((message, self.unread.drain(..length).collect())),
                None => {
                    let mut chunk = [0; 16 * 1024];
                    let length = self.stream.read(&mut chunk)?;
                    if length == 0 {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    self.unread.extend_from_slice(&chunk[..length]);
                }
            }
        }
    }
}
