//! Clients of a server: from one to thousands of connections, driven by events.
//!
//! The clients send requests without waiting for replies. [`Clients::arrival`] returns the replies of all connections
//! in the order in which they arrive.

use crate::request::request;
use lockward_tests::{Reply, decode};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

const CHUNK: usize = 16 * 1024;

#[derive(Debug)]
pub struct Arrival {
    pub who: usize,
    pub reply: Reply,
    /// When the client read the reply.
    pub at: Instant,
}

/// Connections to one server, numbered from 0.
#[derive(Debug)]
pub struct Clients {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    arrived: VecDeque<Arrival>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// Bytes of a reply that is not complete yet.
    input: Vec<u8>,
    /// Bytes that the kernel has not accepted yet.
    output: Vec<u8>,
}

impl Clients {
    pub fn open(port: u16, count: usize) -> Self {
        let mut clients = Self::none();
        (0..count).for_each(|_| clients.connect(Ipv4Addr::LOCALHOST, port));
        clients
    }

    pub fn none() -> Self {
        let poll = Poll::new().expect("a selector of events");
        let events = Events::with_capacity(1024);
        Self { poll, events, connections: Vec::new(), arrived: VecDeque::new() }
    }

    pub fn connect(&mut self, address: Ipv4Addr, port: u16) {
        let stream = std::net::TcpStream::connect((address, port)).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_nonblocking(true).expect("no waiting");
        let mut stream = TcpStream::from_std(stream);
        let (token, interest) = (Token(self.connections.len()), Interest::READABLE | Interest::WRITABLE);
        self.poll.registry().register(&mut stream, token, interest).expect("events of a connection");
        self.connections.push(Connection { stream, input: Vec::new(), output: Vec::new() });
    }

    pub const fn count(&self) -> usize {
        self.connections.len()
    }

    pub fn send(&mut self, who: usize, requests: &[u8]) {
        let connection = &mut self.connections[who];
        connection.output.extend_from_slice(requests);
        connection.flush();
    }

    /// The next reply on any of the connections. Panics if the reply is an error.
    pub fn arrival(&mut self) -> Arrival {
        let deadline = Instant::now() + PATIENCE;
        while self.arrived.is_empty() {
            let left = deadline.checked_duration_since(Instant::now()).expect("a reply");
            match self.poll.poll(&mut self.events, Some(left)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result.expect("events"),
            }
            for event in &self.events {
                let Token(who) = event.token();
                let connection = &mut self.connections[who];
                if event.is_writable() {
                    connection.flush();
                }
                if event.is_readable() {
                    connection.read(who, &mut self.arrived);
                }
            }
        }
        let arrival = self.arrived.pop_front().expect("a reply");
        assert!(!matches!(arrival.reply, Reply::Error(_)), "{:?}", arrival.reply);
        arrival
    }

    /// The next reply to this client. Panics if a reply to another client comes first.
    pub fn reply_to(&mut self, who: usize) -> Reply {
        let arrival = self.arrival();
        assert_eq!(arrival.who, who, "a reply to another client: {:?}", arrival.reply);
        arrival.reply
    }

    pub fn call(&mut self, who: usize, arguments: &[&str]) -> Reply {
        self.send(who, &request(arguments));
        self.reply_to(who)
    }
}

impl Connection {
    fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(len) => drop(self.output.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("a request cannot be sent: {error}"),
            }
        }
    }

    fn read(&mut self, who: usize, arrived: &mut VecDeque<Arrival>) {
        loop {
            let mut chunk = [0; CHUNK];
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the server has closed a connection"),
                Ok(len) => {
                    self.input.extend_from_slice(&chunk[..len]);
                    if len < CHUNK {
                        break; // more bytes will cause another event
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("no reply: {error}"),
            }
        }
        let at = Instant::now();
        let mut done = 0;
        while let Some((reply, len)) = decode(&self.input[done..]).expect("replies") {
            done += len;
            arrived.push_back(Arrival { who, reply, at });
        }
        self.input.drain(..done);
    }
}
