//! The record of a run: calls, the data beside the locks, and faults.
//!
//! All times are nanoseconds on one monotonic clock. A file has one line of JSON for each [`Line`]. Keys and owners
//! are text, because the workload uses no other bytes.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// A time or a duration in nanoseconds.
pub type Nanos = u64;
pub type Token = u64;

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// A call to the lock server.
    Call(Call),
    /// The data beside a lock, read at the end of the run.
    Data(Data),
    /// A fault in a server or a client.
    Fault(Fault),
}

/// A call: an operation and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub client: u32,
    /// The server to which the client sent the call.
    pub node: u32,
    pub key: String,
    pub owner: String,
    pub operation: Operation,
    /// The time of the invocation: just before the client sent the request.
    pub start: Nanos,
    /// The first time at which the wait was seen in the server's queue; `None` if the wait was not seen.
    pub enqueued: Option<Nanos>,
    /// A later time at which the wait was still in the queue.
    pub still_waiting: Option<Nanos>,
    /// The time of the response: just after the client read the reply or gave up. `None` if the call had no response at
    /// the end of the run.
    pub end: Option<Nanos>,
    pub outcome: Outcome,
}

/// The mode of a tenure: its limit for the sum of all weights, and its own weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mode {
    /// The number in SLOTS; 0 for SHARED, which has no limit.
    pub slots: u32,
    pub weight: u32,
}

impl Mode {
    /// A mode for one owner alone.
    pub const EXCLUSIVE: Self = Self { slots: 1, weight: 1 };
    pub const SHARED: Self = Self { slots: 0, weight: 1 };

    /// A permit of a semaphore with this weight.
    pub const fn of_slots(slots: u32, weight: u32) -> Self {
        Self { slots, weight }
    }

    /// The largest sum of weights that the mode allows.
    pub fn limit(self) -> u64 {
        if self.slots == 0 { u64::MAX } else { self.slots.into() }
    }

    /// Whether no other tenure fits beside a tenure of this mode.
    pub fn is_alone(self) -> bool {
        self.limit() <= self.weight.into()
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self::EXCLUSIVE
    }
}

/// What a call requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// LOCK.ACQUIRE.
    Acquire {
        lease: Nanos,
        wait: Wait,
        /// KEEP: how long the server keeps the place after the wait.
        keep: Option<Nanos>,
        /// HOLDS: the count to reach.
        holds: Option<u32>,
        mode: Mode,
    },
    /// LOCK.RELEASE.
    Release { released: HoldsReleased, token: Option<Token> },
    /// LOCK.RENEW.
    Renew {
        lease: Nanos,
        token: Option<Token>,
        /// HOLDS: the holds of a tenure to restore.
        holds: Option<u32>,
        /// SHARED, or SLOTS and WEIGHT: a larger limit, or the mode of a tenure to restore.
        mode: Option<Mode>,
    },
    /// An RPUSH of the token to the data beside the lock.
    Write {
        token: Token,
        /// Whether LOCK.GUARD runs the RPUSH.
        guarded: bool,
    },
}

/// Whether an acquisition waits for a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    No,
    Limit(Nanos),
    Unlimited,
}

/// Which holds a release ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldsReleased {
    One,
    /// One hold, so that this number of holds remains (HOLDS).
    Leaving(u32),
    All,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// ACQUIRE: the owner holds the lock, with this token and this number of holds.
    Granted { token: Token, holds: u32 },
    /// ACQUIRE: null.
    NotAcquired,
    /// RELEASE: the number of holds that remain.
    Left { holds: u32 },
    /// RENEW: the token of the renewed tenure.
    Renewed { token: Token },
    /// RPUSH: the token was written.
    Written,
    /// The server has refused the call and changed nothing. The text is the first word of the error.
    Error(String),
    /// The client read no reply. The call may have taken effect, take effect later, or never take effect.
    Unknown,
}

/// The data beside a lock: the written tokens, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    pub key: String,
    /// Whether LOCK.GUARD ran the writes.
    pub guarded: bool,
    pub tokens: Vec<Token>,
    pub start: Nanos,
    pub end: Nanos,
}

/// The key of the data beside a lock. In a cluster, this key is in the slot of the lock.
pub fn data_key(lock: &str, guarded: bool) -> String {
    format!("{{{lock}}}{}", if guarded { "guarded" } else { "plain" })
}

/// The value of [`Fault::client`] for an operation on the servers, such as the move of a slot. Such an operation does
/// not excuse a late reply.
pub const NOBODY: u32 = u32::MAX - 1;

/// A fault in a server or a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The name, such as `pause`, `kill` or `cut`.
    pub name: String,
    /// The client. `None` means a fault to the servers, which affects all clients. [`NOBODY`] means an operation on the
    /// servers that clients must not notice.
    pub client: Option<u32>,
    /// The time just before the fault began.
    pub start: Nanos,
    /// The time just after the fault ended.
    pub end: Nanos,
}

impl Operation {
    /// An acquisition without KEEP and HOLDS.
    pub const fn acquire(lease: Nanos, wait: Wait, mode: Mode) -> Self {
        Self::Acquire { lease, wait, keep: None, holds: None, mode }
    }

    /// An exclusive acquisition without KEEP and HOLDS.
    pub const fn exclusive(lease: Nanos, wait: Wait) -> Self {
        Self::acquire(lease, wait, Mode::EXCLUSIVE)
    }

    /// The command as a text of words. Its times are whole milliseconds.
    pub fn command(&self, key: &str, owner: &str) -> String {
        let ms = |time: Nanos| time / 1_000_000;
        match self {
            Self::Acquire { lease, wait, keep, holds, mode } => {
                let block = match wait {
                    Wait::No => None,
                    // A limit is at least a millisecond here, because BLOCK 0 means a wait without limit.
                    Wait::Limit(limit) => Some(ms((*limit).max(1_000_000))),
                    Wait::Unlimited => Some(0),
                };
                let options =
                    option("BLOCK", block) + &option("KEEP", keep.map(ms)) + &option("HOLDS", *holds);
                let mode = if *mode == Mode::EXCLUSIVE { String::new() } else { words(*mode) };
                format!("LOCK.ACQUIRE {key} {owner} PX {}{options}{mode}", ms(*lease))
            }
            Self::Release { released, token } => {
                let left = match released {
                    HoldsReleased::One => String::new(),
                    HoldsReleased::Leaving(left) => option("HOLDS", Some(left)),
                    HoldsReleased::All => " ALL".to_owned(),
                };
                format!("LOCK.RELEASE {key} {owner}{left}{}", option("TOKEN", *token))
            }
            Self::Renew { lease, token, holds, mode } => {
                let options = option("TOKEN", *token) + &option("HOLDS", *holds);
                let mode = mode.map(words).unwrap_or_default();
                format!("LOCK.RENEW {key} {owner} PX {}{options}{mode}", ms(*lease))
            }
            Self::Write { token, guarded } => {
                let guard = if *guarded { format!("LOCK.GUARD {key} {token} ") } else { String::new() };
                format!("{guard}RPUSH {} {token}", data_key(key, *guarded))
            }
        }
    }
}

/// The words of an option, after a space. Empty without a value.
fn option(name: &str, value: Option<impl fmt::Display>) -> String {
    value.map(|value| format!(" {name} {value}")).unwrap_or_default()
}

/// The options of a mode, after a space.
fn words(mode: Mode) -> String {
    if mode.slots == 0 {
        return " SHARED".to_owned();
    }
    option("SLOTS", Some(mode.slots)) + &option("WEIGHT", Some(mode.weight).filter(|weight| *weight != 1))
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { token, holds } => write!(f, "token {token}, holds {holds}"),
            Self::NotAcquired => f.write_str("null"),
            Self::Left { holds } => write!(f, "{holds} left"),
            Self::Renewed { token } => write!(f, "token {token}"),
            Self::Written => f.write_str("written"),
            Self::Error(word) => write!(f, "-{word}"),
            Self::Unknown => f.write_str("no reply"),
        }
    }
}

impl Line {
    /// The start of the call, reading of data, or fault.
    pub const fn start(&self) -> Nanos {
        match self {
            Self::Call(call) => call.start,
            Self::Data(data) => data.start,
            Self::Fault(fault) => fault.start,
        }
    }

    /// The end of the call, reading of data, or fault; `None` for a call without an end.
    pub const fn end(&self) -> Option<Nanos> {
        match self {
            Self::Call(call) => call.end,
            Self::Data(data) => Some(data.end),
            Self::Fault(fault) => Some(fault.end),
        }
    }
}

impl Call {
    /// A call that was sent at `start` and has no reply yet.
    pub fn sent(client: u32, node: u32, key: &str, owner: &str, operation: Operation, start: Nanos) -> Self {
        Self {
            client,
            node,
            key: key.to_owned(),
            owner: owner.to_owned(),
            operation,
            start,
            enqueued: None,
            still_waiting: None,
            end: None,
            outcome: Outcome::Unknown,
        }
    }

    /// Whether the outcome is unknown.
    pub fn is_open(&self) -> bool {
        self.end.is_none() || self.outcome == Outcome::Unknown
    }

    /// The time when the client read the reply; `Nanos::MAX` if there was none.
    pub fn answered(&self) -> Nanos {
        if self.is_open() { Nanos::MAX } else { self.end.unwrap_or(Nanos::MAX) }
    }

    /// Whether the call waits in the queue if the lock is held.
    pub fn waits(&self) -> bool {
        matches!(self.operation, Operation::Acquire { wait: Wait::Limit(_) | Wait::Unlimited, .. })
    }

    /// The mode of an acquisition; `None` for other calls.
    pub const fn mode(&self) -> Option<Mode> {
        if let Operation::Acquire { mode, .. } = self.operation { Some(mode) } else { None }
    }

    /// The wait limit, if the call has one.
    pub const fn wait_limit(&self) -> Option<Nanos> {
        if let Operation::Acquire { wait: Wait::Limit(limit), .. } = self.operation {
            Some(limit)
        } else {
            None
        }
    }

    /// How long the server keeps the place of the call after the wait, and the kind of wait; `None` without KEEP.
    pub const fn kept(&self) -> Option<(Nanos, Wait)> {
        let Operation::Acquire { keep: Some(keep), wait, .. } = self.operation else { return None };
        Some((keep, wait))
    }

    /// The token and the holds, if the call was granted.
    pub fn granted(&self) -> Option<(Token, u32)> {
        let Outcome::Granted { token, holds } = self.outcome else { return None };
        self.end.map(|_| (token, holds))
    }
}

/// The record of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub lines: Vec<Line>,
}

impl History {
    /// Reads a history from a file.
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

    /// The calls, each with the index of its line.
    pub fn calls(&self) -> impl Iterator<Item = (usize, &Call)> {
        self.pick(|line| if let Line::Call(call) = line { Some(call) } else { None })
    }

    /// The data beside the locks, each with the index of its line.
    pub fn data(&self) -> impl Iterator<Item = (usize, &Data)> {
        self.pick(|line| if let Line::Data(data) = line { Some(data) } else { None })
    }

    /// The faults.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.pick(|line| if let Line::Fault(fault) = line { Some(fault) } else { None })
            .map(|(_, fault)| fault)
    }

    fn pick<'h, T: 'h>(
        &'h self,
        pick: fn(&'h Line) -> Option<&'h T>,
    ) -> impl Iterator<Item = (usize, &'h T)> {
        self.lines.iter().enumerate().filter_map(move |(at, line)| Some((at, pick(line)?)))
    }
}
