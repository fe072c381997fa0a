//! The servers of the peers. Each server has a free port of 127.0.0.1, and its data in a temporary directory.

use crate::peers::programs::{last_lines, run};
use crate::server::Loaded;
use lockward_tests::{Directory, ProcessGroup, free_port, repository, server_program};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The limit for the start of a server, including the download of its packages.
const START: Duration = Duration::from_secs(180);
/// The limit for an answer of a server.
const ANSWER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Redis or Valkey.
    Redis {
        /// The name of a server of scripts/servers. `None` is the server of LOCKWARD_SERVER.
        server: Option<&'static str>,
        /// Whether the server loads Lockward.
        is_loaded: bool,
    },
    Etcd,
    Mariadb,
    Postgres,
    Zookeeper,
}

impl Kind {
    /// Whether MONITOR can distinguish commands of clients and of scripts.
    pub const fn has_monitor(self) -> bool {
        matches!(self, Self::Redis { .. })
    }

    fn command(self, dir: &Path, port: u16) -> Result<Command, String> {
        let Self::Redis { server, is_loaded } = self else {
            let mut command = Command::new(repository().join("scripts/peer-server"));
            command.arg(format!("{self:?}").to_lowercase()).arg(dir.join("data")).arg(port.to_string());
            return Ok(command);
        };
        let mut command = match server {
            None => Command::new(server_program()),
            Some(name) => {
                let script = repository().join("scripts/servers").display().to_string();
                run("servers", &[&script, name])?;
                Command::new(repository().join("target/servers").join(name))
            }
        };
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]).arg(dir);
        if is_loaded {
            command.arg("--loadmodule").args(Loaded::Lockward.path());
        }
        Ok(command)
    }
}

/// A running server. The server ends when this value is dropped.
#[derive(Debug)]
pub struct Server {
    process: ProcessGroup,
    /// Removed after the server has ended.
    _dir: Directory,
    pub kind: Kind,
    pub port: u16,
    /// The name and version of the server.
    pub version: String,
}

impl Server {
    /// Starts a server, and waits until it answers.
    ///
    /// # Errors
    /// If the server does not start: the end of its log.
    pub fn start(kind: Kind) -> Result<Self, String> {
        let dir = Directory::new();
        let port = free_port();
        let log = dir.path().join("log");
        let file = File::create(&log).expect("a writable directory");
        std::fs::create_dir(dir.path().join("data")).expect("a writable directory");
        let mut command = kind.command(dir.path(), port)?;
        command.stdin(Stdio::null()).stderr(file.try_clone().expect("a file")).stdout(file);
        let process = ProcessGroup::start(&mut command);
        let mut process = process.map_err(|error| format!("the server does not run: {error}"))?;
        let deadline = Instant::now() + START;
        loop {
            if let Some(version) = version(kind, port) {
                return Ok(Self { process, _dir: dir, kind, port, version });
            }
            if let Some(status) = process.ended() {
                return Err(format!("the server does not start, {status}: {}", last_lines(&log)));
            }
            if Instant::now() > deadline {
                return Err(format!("the server does not answer: {}", last_lines(&log)));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The process id. All other processes of the server are descendants of this process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

/// The name and version of a server, if it answers.
fn version(kind: Kind, port: u16) -> Option<String> {
    let after = |text: &str, before: &str, end: &[char]| {
        let (_, rest) = text.split_once(before)?;
        Some(rest.split(end).next()?.to_owned())
    };
    match kind {
        Kind::Redis { .. } => {
            let info = exchange(port, b"INFO server\r\nQUIT\r\n").ok()?;
            match after(&info, "valkey_version:", &['\r']) {
                Some(version) => Some(format!("Valkey {version}")),
                None => Some(format!("Redis {}", after(&info, "redis_version:", &['\r'])?)),
            }
        }
        Kind::Etcd => {
            get(port, "/health").ok().filter(|health| health.contains("\"true\""))?;
            Some(format!("etcd {}", after(&get(port, "/version").ok()?, "\"etcdserver\":\"", &['"'])?))
        }
        Kind::Zookeeper => {
            let status = exchange(port, b"srvr").ok()?;
            Some(format!("ZooKeeper {}", after(&status, "Zookeeper version: ", &['-', ','])?))
        }
        // The greeting of MariaDB: three bytes of length, a sequence number, the protocol version, and the server
        // version up to a NUL. The server version begins with 5.5.5-, so that old clients accept it.
        Kind::Mariadb => {
            let greeting = first_words(port, &[]).ok()?;
            let version = greeting.get(5..)?.split('\0').next()?.trim_start_matches("5.5.5-");
            Some(format!("MariaDB {}", version.split('-').next()?))
        }
        Kind::Postgres => {
            let answer = first_words(port, &postgres_login()).ok()?;
            Some(format!("PostgreSQL {}", after(&answer, "server_version\0", &['\0', ' '])?))
        }
    }
}

/// The message with which the user postgres opens the database postgres.
fn postgres_login() -> Vec<u8> {
    let settings = b"user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(settings.len() + 8).unwrap_or(0);
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(&(3_u32 << 16).to_be_bytes()); // the version of the protocol
    message.extend_from_slice(settings);
    message
}

/// How often a server has received each command since its start. Empty if the server does not count commands.
pub fn commands(kind: Kind, port: u16) -> BTreeMap<String, u64> {
    match kind {
        Kind::Redis { .. } => {
            let stats = exchange(port, b"INFO commandstats\r\nQUIT\r\n").unwrap_or_default();
            summed(stats.lines().filter_map(|line| {
                let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let name = name.split('|').next()?;
                // This program sends these commands, so they do not count.
                (!["info", "quit", "monitor"].contains(&name)).then_some((name, numbers.split(',').next()?))
            }))
        }
        Kind::Etcd => summed(get(port, "/metrics").unwrap_or_default().lines().filter_map(|line| {
            let (labels, count) = line.strip_prefix("grpc_server_msg_received_total{")?.split_once("} ")?;
            Some((labels.split_once("grpc_method=\"")?.1.split('"').next()?, count))
        })),
        Kind::Zookeeper => {
            let status = exchange(port, b"srvr").unwrap_or_default();
            let received = status.lines().find_map(|line| line.strip_prefix("Received: "));
            summed(received.map(|count| ("packet", count)).into_iter())
        }
        Kind::Mariadb | Kind::Postgres => BTreeMap::new(),
    }
}

fn summed<'a>(counts: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in counts {
        *sums.entry(name.to_owned()).or_default() +=
            count.trim().parse::<f64>().map_or(0, |count| count as u64);
    }
    sums
}

/// A connection to a server on this machine.
///
/// # Errors
/// If the socket reports an error.
pub fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(stream)
}

/// The server's answer to a request. The server must close the connection after its answer.
fn exchange(port: u16, request: &[u8]) -> io::Result<String> {
    let mut stream = connect(port)?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn get(port: u16, path: &str) -> io::Result<String> {
    exchange(port, format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
}

/// The first bytes of the server's answer.
fn first_words(port: u16, request: &[u8]) -> io::Result<String> {
    let mut stream = connect(port)?;
    stream.write_all(request)?;
    let mut chunk = [0; 4096];
    let len = stream.read(&mut chunk)?;
    Ok(String::from_utf8_lossy(&chunk[..len]).into_owned())
}
