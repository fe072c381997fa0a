//! The replication stream: the commands that a server sends to replicas and appends to its AOF.

use crate::client::Client;
use crate::disk::appended_files;
use crate::reply::Reply;
use crate::resp::decode;
use crate::server::Server;
use crate::wait::{eventually, soon};
use std::fs;

/// A command in the stream: its name and arguments.
pub type Sent = Vec<Vec<u8>>;

/// A connection that the server treats as a replica.
#[derive(Debug)]
pub struct ReplicationStream {
    link: Client,
    marks: usize,
}

impl ReplicationStream {
    /// Attaches to a primary and skips the snapshot at the beginning of the stream.
    #[track_caller]
    pub fn attach(primary: &Server) -> Self {
        let mut link = primary.client();
        // A replica sends an acknowledgement each second, but this connection does not. With the default timeout, the
        // server would close the connection after a minute, and a test may take longer.
        assert_eq!(link.call("CONFIG SET repl-timeout 3600"), Reply::ok());
        assert_eq!(link.call("REPLCONF listening-port 1"), Reply::ok());
        assert_eq!(link.call("REPLCONF capa eof capa psync2"), Reply::ok());
        link.send("PSYNC ? -1");
        let answer = next_line(&mut link);
        assert!(answer.starts_with(b"+FULLRESYNC "), "{}", answer.escape_ascii());
        let header = next_line(&mut link);
        let size = header.strip_prefix(b"$").expect("a data set");
        if let Some(end) = size.strip_prefix(b"EOF:") {
            skip_past(&mut link, end);
        } else {
            let size = String::from_utf8_lossy(size).parse().expect("a size");
            link.raw(size);
        }
        let mut observer = primary.client();
        eventually("the primary takes the link for a replica in sync", || {
            let info = observer.call("INFO replication").text();
            let mut links = info.lines().filter(|line| line.starts_with("slave")).peekable();
            links.peek().is_some() && links.all(|line| line.contains("state=online"))
        });
        let mut stream = Self { link, marks: 0 };
        stream.acknowledge();
        stream
    }

    /// All commands sent since the last call, without the commands PING, SELECT and REPLCONF of the replication itself.
    /// `client` is connected to the primary. With this client, the function writes a key that marks the end of the
    /// commands.
    #[track_caller]
    pub fn commands(&mut self, client: &mut Client) -> Vec<Sent> {
        self.marks += 1;
        let mark =
            [b"SET".to_vec(), b"end-of-the-test's-commands".to_vec(), self.marks.to_string().into_bytes()];
        assert_eq!(client.call(mark.clone()), Reply::ok());
        let mut commands = Vec::new();
        loop {
            let command = self.next_command();
            if command[1..] == mark[1..] {
                return commands;
            }
            commands.push(command);
        }
    }

    /// The next command, without the commands of the replication itself.
    #[track_caller]
    pub fn next_command(&mut self) -> Sent {
        loop {
            let command: Sent = self.link.reply().items().iter().map(|item| item.bytes().to_vec()).collect();
            let name = command[0].to_ascii_uppercase();
            match name.as_slice() {
                b"REPLCONF" => self.acknowledge(),
                b"PING" | b"SELECT" => {}
                _ => return command,
            }
        }
    }

    /// Sends an acknowledgement. After a diskless full resync, the primary waits for an acknowledgement before it sends
    /// commands.
    fn acknowledge(&mut self) {
        self.link.send("REPLCONF ACK 0");
    }
}

/// Waits until the AOF contains a command that `is_last` accepts, and returns all commands since the last rewrite of
/// the AOF.
#[track_caller]
pub fn appended_commands(server: &Server, is_last: impl Fn(&[Vec<u8>]) -> bool) -> Vec<Sent> {
    soon("the last command in the AOF", || {
        let commands = read_appended(server);
        commands.iter().any(|command| is_last(command)).then_some(commands)
    })
}

fn read_appended(server: &Server) -> Vec<Sent> {
    let files = appended_files(server).into_iter();
    let files = files.map(|file| fs::read(file).unwrap_or_default());
    files
        .flat_map(|bytes| commands_in(&bytes))
        .map(|(command, _)| command)
        .filter(|command| !command[0].eq_ignore_ascii_case(b"SELECT"))
        .collect()
}

/// The complete commands in a part of an AOF, each with the offset of its end.
pub fn commands_in(bytes: &[u8]) -> Vec<(Sent, usize)> {
    let (mut commands, mut end) = (Vec::new(), 0);
    while let Some((reply, length)) = decode(&bytes[end..]).expect("a command") {
        end += length;
        commands.push((reply.items().iter().map(|item| item.bytes().to_vec()).collect(), end));
    }
    commands
}

/// The next line that is not empty. The server sends empty lines to keep the link alive.
fn next_line(link: &mut Client) -> Vec<u8> {
    loop {
        let line = link.raw_line();
        if !line.is_empty() {
            return line;
        }
    }
}

fn skip_past(link: &mut Client, end: &[u8]) {
    let mut window = link.raw(end.len());
    while window != end {
        window.remove(0);
        window.extend(link.raw(1));
    }
}
