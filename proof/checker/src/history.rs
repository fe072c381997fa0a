//! What is recorded of a run: a line for each call, each write to the fenced store, and each fault.
//!
//! Every time is in nanoseconds on one monotonic clock. A file holds one line of JSON for each [`Line`]. Keys and owners
//! are text here, though the server takes any bytes: the trial chooses its own names.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write as _};
use std::path::Path;

/// An instant, or a length of time, in nanoseconds.
pub type Nanos = u64;

/// A fencing token.
pub type Token = u64;

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// A call to the lock server.
    Call(Call),
    /// A write to the fenced store that stands beside the lock.
    Write(Write),
    /// Something that was done to a server or a client.
    Fault(Fault),
}

/// A call: what was asked, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The client that made it.
    pub client: u32,
    /// The server it was sent to.
    pub node: u32,
    /// The lock.
    pub key: String,
    /// For whom the lock is asked.
    pub owner: String,
    /// What was asked.
    pub operation: Operation,
    /// Just before the request was sent.
    pub start: Nanos,
    /// Known only where somebody looked: an instant at which the server was seen to hold this wait in its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued: Option<Nanos>,
    /// Just after the reply was read, or the client gave the call up; `None`: the run ended and it still stood.
    pub end: Option<Nanos>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What a call asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// LOCK.ACQUIRE.
    Acquire {
        /// The lease asked for; the default one is written out.
        lease: Nanos,
        /// Whether it waits, and how long.
        wait: Wait,
        /// HOLDS: the count it should lead to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holds: Option<u32>,
    },
    /// LOCK.RELEASE.
    Release {
        /// Which holds it gives released.
        released: HoldsReleased,
        /// TOKEN: of which tenure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
    },
    /// LOCK.RENEW.
    Renew {
        /// The lease asked for.
        lease: Nanos,
        /// TOKEN: of which tenure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
        /// HOLDS: with how many a forgotten tenure is restored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holds: Option<u32>,
    },
}

/// Whether an acquisition waits for a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// It is answered at once.
    No,
    /// Until its wait limit.
    Limit(Nanos),
    /// Without limit.
    Unlimited,
}

/// What a release gives released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldsReleased {
    /// One hold.
    One,
    /// One hold, so that this many are left (HOLDS).
    Leaving(u32),
    /// Every hold (ALL).
    All,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// ACQUIRE: the owner holds the lock.
    Granted {
        /// The tenure's fencing token.
        token: Token,
        /// How many holds the owner has now.
        holds: u32,
    },
    /// ACQUIRE: null.
    NotAcquired,
    /// RELEASE: how many holds are left.
    Left {
        /// 0: the tenure is over.
        holds: u32,
    },
    /// RENEW: the lease is a new one.
    Renewed {
        /// The tenure's fencing token.
        token: Token,
    },
    /// The server refused: nothing has changed. The first word of what it said.
    Error(String),
    /// No reply was read. The call may have taken effect, or do so later, or never.
    Unknown,
}

/// A write to the fenced store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The client that made it.
    pub client: u32,
    /// The lock that guards what is written.
    pub key: String,
    /// The owner in whose name it writes.
    pub owner: String,
    /// The fencing token shown to the store.
    pub token: Token,
    /// Just before the store was asked.
    pub start: Nanos,
    /// Just after it answered.
    pub end: Nanos,
    /// What it did.
    pub outcome: WriteOutcome,
}

/// What the fenced store did with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteOutcome {
    /// It took it.
    Accepted,
    /// It refused it as stale: it had seen a larger token.
    Refused,
}

/// Something that was done to a server or a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What was done, in a word: `pause`, `kill`, `cut`.
    pub name: String,
    /// To which client; `None`: to the servers, and so to everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<u32>,
    /// Just before it was done.
    pub start: Nanos,
    /// Just after it was undone.
    pub end: Nanos,
}

impl Operation {
    /// The command that asks for this, word by word; every time in it is in whole milliseconds.
    #[must_use]
    pub fn command(&self, key: &str, owner: &str) -> Vec<String> {
        let ms = |time: Nanos| (time / 1_000_000).to_string();
        let mut options: Vec<(&str, Option<String>)> = Vec::new();
        let name = match self {
            Self::Acquire { lease, wait, holds } => {
                options.push(("PX", Some(ms(*lease))));
                match wait {
                    Wait::No => {}
                    // A limit of 0 would be none.
                    Wait::Limit(limit) => options.push(("BLOCK", Some(ms((*limit).max(1_000_000))))),
                    Wait::Unlimited => options.push(("BLOCK", Some("0".to_owned()))),
                }
                options.extend(holds.map(|holds| ("HOLDS", Some(holds.to_string()))));
                "LOCK.ACQUIRE"
            }
            Self::Release { released, token } => {
                match released {
                    HoldsReleased::One => {}
                    HoldsReleased::Leaving(left) => options.push(("HOLDS", Some(left.to_string()))),
                    HoldsReleased::All => options.push(("ALL", None)),
                }
                options.extend(token.map(|token| ("TOKEN", Some(token.to_string()))));
                "LOCK.RELEASE"
            }
            Self::Renew { lease, token, holds } => {
                options.push(("PX", Some(ms(*lease))));
                options.extend(token.map(|token| ("TOKEN", Some(token.to_string()))));
                options.extend(holds.map(|holds| ("HOLDS", Some(holds.to_string()))));
                "LOCK.RENEW"
            }
        };
        let options = options.into_iter().flat_map(|(name, value)| [Some(name.to_owned()), value]);
        [name, key, owner].map(str::to_owned).into_iter().chain(options.flatten()).collect()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { token, holds } => write!(f, "token {token}, holds {holds}"),
            Self::NotAcquired => f.write_str("null"),
            Self::Left { holds } => write!(f, "{holds} left"),
            Self::Renewed { token } => write!(f, "token {token}"),
            Self::Error(word) => write!(f, "-{word}"),
            Self::Unknown => f.write_str("no answer"),
        }
    }
}

impl Line {
    /// When it began.
    #[must_use]
    pub const fn start(&self) -> Nanos {
        match self {
            Self::Call(call) => call.start,
            Self::Write(write) => write.start,
            Self::Fault(fault) => fault.start,
        }
    }

    /// When it was over, if it ever was.
    #[must_use]
    pub const fn end(&self) -> Option<Nanos> {
        match self {
            Self::Call(call) => call.end,
            Self::Write(write) => Some(write.end),
            Self::Fault(fault) => Some(fault.end),
        }
    }
}

impl Call {
    /// Whether nobody knows what came of it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.end.is_none() || self.outcome == Outcome::Unknown
    }

    /// When its answer was read; `Nanos::MAX` when it never was.
    #[must_use]
    pub fn answered(&self) -> Nanos {
        if self.is_open() { Nanos::MAX } else { self.end.unwrap_or(Nanos::MAX) }
    }

    /// Whether it joins the queue when the lock is held.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self.operation, Operation::Acquire { wait: Wait::Limit(_) | Wait::Unlimited, .. })
    }

    /// Token and holds, if it was granted.
    #[must_use]
    pub fn granted(&self) -> Option<(Token, u32)> {
        match self.outcome {
            Outcome::Granted { token, holds } if self.end.is_some() => Some((token, holds)),
            Outcome::Granted { .. }
            | Outcome::NotAcquired
            | Outcome::Left { .. }
            | Outcome::Renewed { .. }
            | Outcome::Error(_)
            | Outcome::Unknown => None,
        }
    }
}

/// Everything that was recorded of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The lines, in whatever order they were written down.
    pub lines: Vec<Line>,
}

impl History {
    /// Reads a history from a file.
    ///
    /// # Errors
    /// When the file cannot be read, or a line is none of ours: the message says which.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut lines = Vec::new();
        for (number, text) in BufReader::new(File::open(path)?).lines().enumerate() {
            let line = serde_json::from_str(&text?).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {error}", number + 1))
            })?;
            lines.push(line);
        }
        Ok(Self { lines })
    }

    /// Writes the history to a file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for line in &self.lines {
            serde_json::to_writer(&mut file, line)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    }

    /// The calls, each with the place of its line.
    pub fn calls(&self) -> impl Iterator<Item = (usize, &Call)> {
        self.lines.iter().enumerate().filter_map(|(at, line)| match line {
            Line::Call(call) => Some((at, call)),
            Line::Write(_) | Line::Fault(_) => None,
        })
    }

    /// The writes to the store, each with the place of its line.
    pub fn writes(&self) -> impl Iterator<Item = (usize, &Write)> {
        self.lines.iter().enumerate().filter_map(|(at, line)| match line {
            Line::Write(write) => Some((at, write)),
            Line::Call(_) | Line::Fault(_) => None,
        })
    }

    /// The faults.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.lines.iter().filter_map(|line| match line {
            Line::Fault(fault) => Some(fault),
            Line::Call(_) | Line::Write(_) => None,
        })
    }
}
