//! The servers of the peers. Each server has a free port of 127.0.0.1, and its data in a temporary directory.

use crate::peers::job::{last_lines, run};
use crate::server::Loaded;
use lockward_tests::{Client, Directory, ProcessGroup, free_port, repository, server_program};
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The limit for the start of a server, including the download of its packages.
const START: Duration = Duration::from_secs(180);
/// PostgreSQL accepts connections shortly before it serves them.
const PAUSE: Duration = Duration::from_secs(1);

/// Commands that do not count: clients send them to set up connections, or this program sends them.
const BESIDE: [&str; 8] = ["client", "command", "config", "hello", "info", "ping", "quit", "script"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis {
        /// The name of a server of scripts/servers. `None` is the server of LOCKWARD_SERVER.
        server: Option<&'static str>,
        /// Whether the server loads Lockward.
        is_loaded: bool,
    },
    /// A server of scripts/peer-server.
    Other(&'static str),
}

impl Kind {
    fn command(self, dir: &Path, port: u16) -> Result<Command, String> {
        let (server, is_loaded) = match self {
            Self::Redis { server, is_loaded } => (server, is_loaded),
            Self::Other(name) => {
                let mut command = Command::new(repository().join("scripts/peer-server"));
                command.arg(name).arg(dir.join("data")).arg(port.to_string());
                return Ok(command);
            }
        };
        let mut command = match server {
            None => Command::new(server_program()),
            Some(name) => {
                let script = repository().join("scripts/servers");
                Command::new(run(Command::new(script).arg(name), START)?.trim())
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
    pub version: String,
}

impl Server {
    /// Starts a server, and waits until it accepts connections.
    pub fn start(kind: Kind) -> Result<Self, String> {
        let dir = Directory::new();
        let port = free_port();
        let (log, data) = (dir.path().join("log"), dir.path().join("data"));
        let file = File::create(&log).expect("a writable directory");
        fs::create_dir(&data).expect("a writable directory");
        let mut command = kind.command(dir.path(), port)?;
        command.stdin(Stdio::null()).stderr(file.try_clone().expect("a file")).stdout(file);
        let process = ProcessGroup::start(&mut command);
        let mut process = process.map_err(|error| format!("the server does not run: {error}"))?;
        let deadline = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if process.ended().is_some() || Instant::now() > deadline {
                return Err(format!("the server does not start: {}", last_lines(&log)));
            }
            thread::sleep(Duration::from_millis(50));
        }
        let version = if let Kind::Redis { .. } = kind {
            Client::connect(port).map_err(|error| error.to_string())?.server_version()
        } else {
            thread::sleep(PAUSE);
            fs::read_to_string(data.join("version")).unwrap_or_default().trim().to_owned()
        };
        Ok(Self { process, _dir: dir, kind, port, version })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

/// How many commands a server has received since its start, also from scripts. 0 if the server is no Redis.
pub fn commands(kind: Kind, port: u16) -> f64 {
    let Kind::Redis { .. } = kind else { return 0.0 };
    let stats = Client::connect(port).map(|mut client| client.call("INFO commandstats").text());
    let stats = stats.unwrap_or_default();
    let counts = stats.lines().filter_map(|line| {
        let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_counted = !BESIDE.contains(&name.split('|').next()?);
        is_counted.then(|| numbers.split(',').next()?.parse::<f64>().ok())?
    });
    counts.sum()
}
