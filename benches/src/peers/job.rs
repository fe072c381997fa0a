//! The request to a peer program and its answer.

use clap::ValueEnum;
use lockward_tests::{Directory, ProcessGroup, repository};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const BUILD: Duration = Duration::from_secs(600);
/// The time in which a peer program starts, and its JIT compiler compiles the code.
const START: Duration = Duration::from_secs(7);
/// The time in which a client connects.
const CONNECT: Duration = Duration::from_millis(10);
/// How long a peer program may take after the counted time.
const END: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Job {
    Uncontended,
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
        matches!(self, Self::Readers | Self::Permits | Self::Weights)
    }

    pub fn is_writer(self, client: usize) -> bool {
        self == Self::Readers && client.is_multiple_of(WRITERS)
    }

    /// How much of the lock's limit a client takes.
    pub fn weight(self, client: usize) -> u64 {
        match self {
            Self::Weights => client as u64 % 3 + 1,
            Self::Readers if self.is_writer(client) => self.limit(),
            Self::Uncontended | Self::Contended | Self::Readers | Self::Permits => 1,
        }
    }

    pub const fn limit(self) -> u64 {
        match self {
            Self::Uncontended | Self::Contended => 1,
            Self::Readers => u32::MAX as u64,
            Self::Permits | Self::Weights => PERMITS,
        }
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
    /// The tenures of each client: for each tenure three numbers, when the client asked, got the lock, and began to
    /// release it. The numbers are microseconds since the beginning of the counted time. In
    /// the warm-up they are negative.
    pub tenures_us: Vec<Vec<i64>>,
    /// How often the library gave up waiting, without a grant.
    #[serde(default)]
    pub gave_up: u64,
}

/// The time during which a client held a lock, in microseconds since the counted time began.
#[derive(Clone, Copy, Debug)]
pub struct Tenure {
    pub client: usize,
    pub asked: i64,
    pub granted: i64,
    pub released: i64,
}

impl Answer {
    /// All tenures, ordered by their grants.
    pub fn tenures(&self) -> Vec<Tenure> {
        let mut tenures = Vec::new();
        for (client, numbers) in self.tenures_us.iter().enumerate() {
            for number in numbers.chunks_exact(3) {
                let [asked, granted, released] = [number[0], number[1], number[2]];
                tenures.push(Tenure { client, asked, granted, released });
            }
        }
        tenures.sort_by_key(|tenure| tenure.granted);
        tenures
    }
}

/// Builds the peer program of a language. Returns the program and its first arguments.
pub fn build(language: &str) -> Result<Vec<String>, String> {
    let script = repository().join("benches/peers/build");
    let output = run(Command::new(script).arg(language), BUILD)?;
    Ok(output.lines().map(str::to_owned).collect())
}

/// The time from the start of a peer program with this number of clients until its job counts.
pub fn warm_up(clients: usize) -> Duration {
    START + CONNECT * u32::try_from(clients).unwrap_or(u32::MAX)
}

/// Runs a peer program, which counts for this time after its warm-up. `words` are the program and its arguments. An
/// error is the end of the program's output.
pub fn answer(words: &[String], warm_up: Duration, counted: Duration) -> Result<Answer, String> {
    let output = run(Command::new(&words[0]).args(&words[1..]), warm_up + counted + END)?;
    let line = output.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("the answer is not valid, {error}"))
}

/// Runs a program to its end, and returns its standard output.
pub fn run(command: &mut Command, limit: Duration) -> Result<String, String> {
    let dir = Directory::new();
    let (output, complaints) = (dir.path().join("output"), dir.path().join("complaints"));
    let file = |path| File::create(path).expect("a writable directory");
    command.stdin(Stdio::null()).stdout(file(&output)).stderr(file(&complaints));
    let process = ProcessGroup::start(command);
    let mut process =
        process.map_err(|error| format!("{:?} does not run: {error}", command.get_program()))?;
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        match process.ended() {
            None => thread::sleep(Duration::from_millis(10)),
            Some(status) if status.success() => return Ok(fs::read_to_string(&output).unwrap_or_default()),
            Some(status) => return Err(format!("{status}: {}", last_lines(&complaints))),
        }
    }
    Err(format!("the program did not end within {} s: {}", limit.as_secs(), last_lines(&complaints)))
}

/// The last lines of a file, joined to one line.
pub fn last_lines(file: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].join(" / ")
}
