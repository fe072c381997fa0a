//! The request to a contestant and its result.

use crate::peers::children::{Group, last_lines};
use crate::peers::interrupts::Stopped;
use clap::ValueEnum;
use lockward_tests::Directory;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a contestant may take in addition to the counted time: to start, to warm up, and to end.
const BESIDE: Duration = Duration::from_secs(60);

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// Each client acquires and releases its own lock.
    Uncontended,
    /// All clients increment one number, under one lock.
    Contended,
    /// All clients share a lock: one in ten writes, the others read.
    Readers,
    /// All clients share a semaphore of [`PERMITS`].
    Permits,
    /// As [`Job::Permits`], but each acquisition takes 1, 2 or 3 permits, depending on the client.
    Weights,
}

/// The permits of a semaphore.
pub const PERMITS: u64 = 10;
/// In [`Job::Readers`], every client whose number is a multiple of this is a writer.
pub const WRITERS: usize = 10;

impl Job {
    /// Whether several clients may hold the lock at once.
    pub const fn is_shared(self) -> bool {
        match self {
            Self::Uncontended | Self::Contended => false,
            Self::Readers | Self::Permits | Self::Weights => true,
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Uncontended => "uncontended",
            Self::Contended => "contended",
            Self::Readers => "readers",
            Self::Permits => "permits",
            Self::Weights => "weights",
        })
    }
}

/// The result of a contestant, in one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The name of the peer, from the request.
    pub peer: String,
    /// The version of the library.
    pub version: String,
    /// The job, from the request.
    pub job: Job,
    /// The number of clients.
    pub clients: usize,
    /// How long the clients were counted, in milliseconds.
    pub elapsed_ms: f64,
    /// How often the lock was acquired and released in that time.
    pub operations: u64,
    /// By how much the number under the lock grew in that time: each acquisition adds 1. If several clients may hold the lock,
    /// this is the number of acquisitions after which not more was held than allowed.
    pub counter: u64,
    /// How often each client has acquired the lock in that time.
    pub grants: Vec<u64>,
    /// How long acquisitions took. In [`Job::Readers`], those of readers.
    pub acquire_us: Quantiles,
    /// In [`Job::Readers`], how long acquisitions of writers took.
    #[serde(default)]
    pub writers_us: Option<Quantiles>,
    /// Which settings are the defaults, and what is special.
    pub notes: String,
    /// When the counted time began, in milliseconds since 1970.
    pub began_unix_ms: f64,
    /// How many of the grants went to another client than the grant before.
    #[serde(default)]
    pub handoffs: Option<u64>,
    /// How often the library gave up waiting, without a grant.
    #[serde(default)]
    pub gave_up: u64,
}

/// Some of the times that something took, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Quantiles {
    /// The quantiles of these times.
    pub fn of(mut times: Vec<u32>) -> Self {
        times.sort_unstable();
        let part = |hundredths: usize| {
            times.get(times.len().saturating_sub(1) * hundredths / 100).copied().map_or(0.0, f64::from)
        };
        Self { p50: part(50), p99: part(99), max: part(100) }
    }
}

/// The request to a contestant.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The program, with the arguments that come first.
    pub program: &'a [String],
    /// The name of the peer.
    pub peer: &'a str,
    /// The job.
    pub job: Job,
    /// Where the server listens.
    pub address: &'a str,
    /// The number of clients.
    pub clients: usize,
    /// How many seconds count.
    pub seconds: u64,
}

/// Runs a contestant.
///
/// # Errors
/// The contestant's own words when it fails, or that the driver is told to end.
pub fn run(request: &Request<'_>) -> Result<Outcome, Stopped> {
    let dir = Directory::new();
    let (answer, complaints) = (dir.path().join("answer"), dir.path().join("complaints"));
    let file = |path| File::create(path).expect("a writable directory");
    let (program, first) = request.program.split_first().expect("a program");
    let mut command = Command::new(program);
    command.args(first).args([request.peer, &request.job.to_string(), request.address]);
    command.args(["--clients", &request.clients.to_string(), "--seconds", &request.seconds.to_string()]);
    command.stdin(Stdio::null()).stdout(file(&answer)).stderr(file(&complaints));
    let mut process = Group::start(&mut command)?;
    let failed = |what| Stopped::failed(format!("{what}: {}", last_lines(&complaints)));
    let status = process.wait(BESIDE + Duration::from_secs(request.seconds));
    let status = status.map_err(|stopped| match stopped {
        Stopped::Failed(reason) => failed(reason),
        Stopped::Interrupted => Stopped::Interrupted,
    })?;
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    let answer = fs::read_to_string(&answer).unwrap_or_default();
    let line = answer.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).map_err(|error| failed(format!("its answer is not understood, {error}")))
}
