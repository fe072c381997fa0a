//! A connection that writes encoded requests and counts the lines of the replies.
//!
//! The caller knows how many lines the replies have. Their content matters only if it is unexpected:
//! then it contains a minus (an error, a null, a negative number), and the benchmark panics.

use crate::request::request;
use lockward_tests::{Reply, decode};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    pub(crate) fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a read deadline");
        Self { stream }
    }

    /// Writes requests.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes what is sent");
    }

    /// Reads replies with this number of lines in total.
    pub fn expect(&mut self, lines: usize) {
        self.expect_where(lines, |bytes| !bytes.contains(&b'-'));
    }

    /// As [`Connection::expect`], where replies may be null or contain a minus, but no reply may be an error.
    pub fn expect_nulls(&mut self, lines: usize) {
        self.expect_where(lines, |bytes| {
            !bytes.starts_with(b"-") && !bytes.windows(2).any(|two| two == b"\n-")
        });
    }

    fn expect_where(&mut self, lines: usize, expected: fn(&[u8]) -> bool) {
        let mut seen = 0;
        while seen < lines {
            seen += self.arrived(expected);
        }
        assert_eq!(seen, lines, "lines of reply");
    }

    /// Reads what has arrived, and returns how many lines end in it.
    fn arrived(&mut self, expected: fn(&[u8]) -> bool) -> usize {
        let mut chunk = [0; 16 * 1024];
        let bytes = match self.stream.read(&mut chunk) {
            Ok(0) => panic!("the server has closed a connection"),
            Ok(len) => &chunk[..len],
            Err(error) if error.kind() == ErrorKind::Interrupted => &[],
            Err(error) => panic!("no reply: {error}"),
        };
        assert!(expected(bytes), "not the expected reply: {}", bytes.escape_ascii());
        bytes.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Reads exactly the next reply, for replies that are not known beforehand.
    pub fn reply(&mut self) -> Reply {
        let mut read = Vec::new();
        loop {
            if let Some((reply, _)) = decode(&read).expect("a reply") {
                return reply;
            }
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("a reply");
            read.extend(byte);
        }
    }

    /// Sends one command and reads its reply of `lines` lines.
    pub fn call(&mut self, arguments: &[&str], lines: usize) {
        self.send(&request(arguments));
        self.expect(lines);
    }

    /// Sends one command whose reply is a bulk string.
    pub fn bulk(&mut self, arguments: &[&str]) -> String {
        self.send(&request(arguments));
        let mut reply = Vec::new();
        loop {
            let mut chunk = [0; 16 * 1024];
            let len = self.stream.read(&mut chunk).expect("a reply");
            assert!(len > 0, "the server has closed a connection");
            reply.extend_from_slice(&chunk[..len]);
            let text = String::from_utf8_lossy(&reply);
            let (first, rest) = text.split_once("\r\n").unwrap_or(("$", ""));
            let wanted = first.strip_prefix('$').unwrap_or_else(|| panic!("{arguments:?}: {text}"));
            if wanted.parse::<usize>().is_ok_and(|wanted| rest.len() >= wanted + 2) {
                return rest.trim_end().to_owned();
            }
        }
    }

    /// A section of INFO.
    pub fn info(&mut self, section: &str) -> String {
        self.bulk(&["INFO", section])
    }
}
