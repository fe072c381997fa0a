//! A small client for both protocols.

use crate::reply::Reply;
use crate::resp::{decode, encode};
use crate::wait::DEADLINE;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A command and its arguments: a text of words (`"LOCK.ACQUIRE lock A PX 1000"`), or a list of byte strings if an
/// argument has spaces or arbitrary bytes.
pub trait Command {
    /// The command's name and arguments.
    fn arguments(&self) -> Vec<Vec<u8>>;
}

impl Command for &str {
    fn arguments(&self) -> Vec<Vec<u8>> {
        self.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
    }
}

impl Command for String {
    fn arguments(&self) -> Vec<Vec<u8>> {
        self.as_str().arguments()
    }
}

impl<A: AsRef<[u8]>, const N: usize> Command for [A; N] {
    fn arguments(&self) -> Vec<Vec<u8>> {
        self.iter().map(|argument| argument.as_ref().to_vec()).collect()
    }
}

impl<A: AsRef<[u8]>> Command for &[A] {
    fn arguments(&self) -> Vec<Vec<u8>> {
        self.iter().map(|argument| argument.as_ref().to_vec()).collect()
    }
}

impl<A: AsRef<[u8]>> Command for Vec<A> {
    fn arguments(&self) -> Vec<Vec<u8>> {
        self.as_slice().arguments()
    }
}

/// Why a call did not get a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The reply has not come within the time limit.
    StillOpen,
    /// The server has closed the connection.
    Closed,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
    pushes: VecDeque<Reply>,
}

impl Client {
    /// Connects to a server on this machine. The connection uses RESP2 at first.
    pub fn connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), DEADLINE)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(Self { stream, unread: Vec::new(), pushes: VecDeque::new() })
    }

    /// Sends a command and waits for its reply.
    #[track_caller]
    pub fn call(&mut self, command: impl Command) -> Reply {
        self.send(command);
        self.reply()
    }

    /// Sends a command and waits for its reply. Returns [`Silence`] if the connection is closed or the reply
    /// is late.
    #[track_caller]
    pub fn try_call(&mut self, command: impl Command) -> Result<Reply, Silence> {
        self.try_send(command).map_err(|_| Silence::Closed)?;
        self.reply_within(DEADLINE)
    }

    /// Sends a command without waiting for its reply. Fails if the connection is closed.
    pub fn try_send(&mut self, command: impl Command) -> io::Result<()> {
        self.write(&encode(&command.arguments()))
    }

    /// Sends several commands in one write, without waiting for their replies. Fails if the connection is closed.
    pub fn try_send_all<C: Command>(&mut self, commands: impl IntoIterator<Item = C>) -> io::Result<()> {
        let bytes: Vec<u8> = commands.into_iter().flat_map(|command| encode(&command.arguments())).collect();
        self.write(&bytes)
    }

    /// Sends a command without waiting for its reply.
    #[track_caller]
    pub fn send(&mut self, command: impl Command) {
        self.send_bytes(&encode(&command.arguments()));
    }

    /// Sends several commands in one write, without waiting for their replies.
    #[track_caller]
    pub fn send_all<C: Command>(&mut self, commands: impl IntoIterator<Item = C>) {
        self.try_send_all(commands).expect("the server takes what is sent");
    }

    /// Sends several commands in one write and waits for all their replies.
    #[track_caller]
    pub fn call_all<C: Command>(&mut self, commands: impl IntoIterator<Item = C>) -> Vec<Reply> {
        let mut count = 0;
        self.send_all(commands.into_iter().inspect(|_| count += 1));
        (0..count).map(|_| self.reply()).collect()
    }

    /// Runs commands as one transaction and returns their replies.
    #[track_caller]
    pub fn transact<const N: usize>(&mut self, commands: [&str; N]) -> [Reply; N] {
        let replies = self.call_all(["MULTI"].iter().chain(&commands).chain(&["EXEC"]).copied());
        for (reply, command) in replies[1..].iter().zip(commands) {
            assert_eq!(*reply, Reply::Simple("QUEUED".into()), "{command}");
        }
        let results = replies.into_iter().next_back().expect("the reply of EXEC");
        results.items().to_vec().try_into().unwrap_or_else(|_| panic!("{results:?}"))
    }

    /// Sends bytes unchanged.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.write(bytes).expect("the server takes what is sent");
    }

    /// Waits for the next reply. Pushes that come before the reply are kept for [`Client::push`].
    #[track_caller]
    pub fn reply(&mut self) -> Reply {
        match self.reply_within(DEADLINE) {
            Ok(reply) => reply,
            Err(silence) => panic!("no reply within {DEADLINE:?}: {silence:?}"),
        }
    }

    /// Waits for the next reply for at most `limit`.
    #[track_caller]
    pub fn reply_within(&mut self, limit: Duration) -> Result<Reply, Silence> {
        let deadline = Instant::now() + limit;
        loop {
            match self.next(deadline)? {
                push @ Reply::Push(_) => self.pushes.push_back(push),
                reply => return Ok(reply),
            }
        }
    }

    /// Waits for the next push of RESP3.
    #[track_caller]
    pub fn push(&mut self) -> Reply {
        if let Some(push) = self.pushes.pop_front() {
            return push;
        }
        match self.next(Instant::now() + DEADLINE) {
            Ok(push @ Reply::Push(_)) => push,
            other => panic!("no push: {other:?}"),
        }
    }

    /// The next RESP3 push that [`Client::reply`] has kept for [`Client::push`]. Does not wait.
    pub fn unread_push(&mut self) -> Option<Reply> {
        self.pushes.pop_front()
    }

    /// Whether the connection is open and no reply has arrived. Panics if a reply has arrived. Call this function only
    /// when the server has certainly executed the command, because the function does not wait for a later reply.
    #[track_caller]
    pub fn has_no_reply(&mut self) -> bool {
        match self.reply_within(Duration::from_millis(1)) {
            Ok(reply) => panic!("a reply: {reply:?}"),
            Err(silence) => silence == Silence::StillOpen,
        }
    }

    /// Waits until the server closes the connection, and discards the replies that arrive before. Returns false if the
    /// connection stays open.
    #[track_caller]
    pub fn is_closed(&mut self) -> bool {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.next(deadline) {
                Ok(_) => {}
                Err(silence) => return silence == Silence::Closed,
            }
        }
    }

    /// The server's number for this connection.
    #[track_caller]
    pub fn id(&mut self) -> i64 {
        self.call("CLIENT ID").int()
    }

    /// The server's name and version: `Redis 7.0.15`.
    #[track_caller]
    pub fn server_version(&mut self) -> String {
        let info = self.call("INFO server").text();
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        match field("valkey_version:") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", field("redis_version:").unwrap_or_default()),
        }
    }

    /// A field of a section of the server's INFO.
    #[track_caller]
    pub fn server_info(&mut self, section: &str, field: &str) -> String {
        let text = self.call(["INFO", section]).text();
        let prefix = format!("{field}:");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {field} in INFO {section}:\n{text}")).to_owned()
    }

    /// A numeric field of a section of the server's INFO.
    #[track_caller]
    pub fn stat(&mut self, section: &str, field: &str) -> i64 {
        let text = self.server_info(section, field);
        text.parse().unwrap_or_else(|_| panic!("{field} is no integer: {text}"))
    }
    /// The local port of the connection.
    #[track_caller]
    pub fn port(&self) -> u16 {
        self.stream.local_addr().expect("an address").port()
    }

    /// Changes to RESP3.
    #[track_caller]
    pub fn speak_resp3(&mut self) {
        assert!(matches!(self.call("HELLO 3"), Reply::Map(_)));
    }

    /// Shuts down the sending side (FIN). Replies can still be read.
    #[track_caller]
    pub fn end_requests(&self) {
        self.stream.shutdown(Shutdown::Write).expect("an open connection");
    }

    /// Whether unread bytes have arrived.
    #[track_caller]
    pub fn has_unread(&self) -> bool {
        self.stream.set_nonblocking(true).expect("a connection");
        let found = matches!(self.stream.peek(&mut [0]), Ok(1..));
        self.stream.set_nonblocking(false).expect("a connection");
        found || !self.unread.is_empty()
    }

    /// Whether the server has closed the connection. Returns false while the socket still has unread bytes.
    #[track_caller]
    pub fn has_ended(&self) -> bool {
        self.stream.set_nonblocking(true).expect("a connection");
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("a connection");
        match peeked {
            Ok(length) => length == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// Breaks the connection: the server gets a RST instead of a FIN.
    pub fn break_off(self) {
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        let size = libc::socklen_t::try_from(size_of::<libc::linger>()).unwrap();
        // SAFETY: the descriptor is open, `at_once` lives until the call returns, and `size` is its size.
        let done = unsafe {
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const at_once).cast(),
                size,
            )
        };
        assert_eq!(done, 0, "SO_LINGER");
    }

    /// Reads exactly `count` bytes without decoding them.
    #[track_caller]
    pub(crate) fn raw(&mut self, count: usize) -> Vec<u8> {
        let deadline = Instant::now() + DEADLINE;
        while self.unread.len() < count {
            self.fill(deadline).expect("bytes in time");
        }
        self.unread.drain(..count).collect()
    }

    /// Reads one line, and returns the line undecoded and without its line end.
    #[track_caller]
    pub(crate) fn raw_line(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.unread.drain(..=end).collect();
                line.truncate(line.trim_ascii_end().len());
                return line;
            }
            self.fill(deadline).expect("a line in time");
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    #[track_caller]
    fn next(&mut self, deadline: Instant) -> Result<Reply, Silence> {
        loop {
            if let Some((reply, length)) = decode(&self.unread).expect("a reply") {
                self.unread.drain(..length);
                return Ok(reply);
            }
            self.fill(deadline)?;
        }
    }

    fn fill(&mut self, deadline: Instant) -> Result<(), Silence> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left)).expect("a read deadline");
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(Silence::Closed),
            Ok(length) => {
                self.unread.extend_from_slice(&chunk[..length]);
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if Instant::now() < deadline {
                    Ok(())
                } else {
                    Err(Silence::StillOpen)
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(_) => Err(Silence::Closed),
        }
    }
}
