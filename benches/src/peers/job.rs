//! The request to a peer program and its answer.

use crate::peers::programs::{last_lines, wait};
use clap::ValueEnum;
use lockward_tests::{Directory, ProcessGroup};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a peer program may take in addition to the counted time: to start, to warm up, and to end.
const BESIDE: Duration = Duration::from_secs(60);

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// Each client acquires and releases its own lock.
    Uncontended,
    /// All clients increment one number, under one lock.
    Contended,
    /// All clients share a lock: one client in ten writes, and the others read.
    Readers,
    /// All clients share a semaphore of [`PERMITS`].
    Permits,
    /// All clients share a semaphore of [`PERMITS`]. Each acquisition takes 1, 2 or 3 permits, depending on the
    /// client.
    Weights,
}

pub const PERMITS: u64 = 10;
/// In [`Job::Readers`], every client whose number is a multiple of 10 is a writer.
const WRITERS: usize = 10;

impl Job {
    /// Whether several clients may hold the lock at once.
    pub const fn is_shared(self) -> bool {
        match self {
            Self::Uncontended | Self::Contended => false,
            Self::Readers | Self::Permits | Self::Weights => true,
        }
    }

    /// Whether a client of [`Job::Readers`] writes.
    pub fn is_writer(self, client: usize) -> bool {
        self == Self::Readers && client.is_multiple_of(WRITERS)
    }
}

impl fmt::Display for Job {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// The answer of a peer program, in one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    pub version: String,
    /// The important defaults and peculiarities of the library.
    pub notes: String,
    /// When the counted time began, in milliseconds since 1970.
    pub began_unix_ms: f64,
    /// How long each acquisition took in the counted time, in microseconds, for each client.
    pub waits_us: Vec<Vec<u32>>,
    /// How much the number under the lock grew in the counted time: each acquisition adds 1. If several clients may
    /// hold the lock, this is the number of acquisitions within its limit. There is no counter in
    /// [`Job::Uncontended`].
    #[serde(default)]
    pub counter: Option<u64>,
    /// How many grants went to a different client than the previous grant. Only in [`Job::Contended`].
    #[serde(default)]
    pub handoffs: Option<u64>,
    /// How often the library gave up waiting, without a grant.
    #[serde(default)]
    pub gave_up: u64,
}

/// The request to a peer program.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The program and its first arguments.
    pub program: &'a [String],
    pub peer: &'a str,
    pub job: Job,
    pub address: &'a str,
    pub clients: usize,
    /// How long the peer program counts, in seconds.
    pub seconds: u64,
}

/// Runs a peer program.
///
/// # Errors
/// If the peer program fails: the end of its standard error.
pub fn run(request: &Request<'_>) -> Result<Answer, String> {
    let dir = Directory::new();
    let (answer, complaints) = (dir.path().join("answer"), dir.path().join("complaints"));
    let file = |path| File::create(path).expect("a writable directory");
    let (program, first) = request.program.split_first().expect("a program");
    let mut command = Command::new(program);
    command.args(first).args([request.peer, &request.job.to_string(), request.address]);
    command.args(["--clients", &request.clients.to_string(), "--seconds", &request.seconds.to_string()]);
    command.stdin(Stdio::null()).stdout(file(&answer)).stderr(file(&complaints));
    let mut process =
        ProcessGroup::start(&mut command).map_err(|error| format!("{program} does not run: {error}"))?;
    let failed = |what| format!("{what}: {}", last_lines(&complaints));
    let status = wait(&mut process, BESIDE + Duration::from_secs(request.seconds)).map_err(failed)?;
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    let answer = fs::read_to_string(&answer).unwrap_or_default();
    let line = answer.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).map_err(|error| failed(format!("the answer is not valid, {error}")))
}
