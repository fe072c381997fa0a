//! Writes a history down while it happens, for many threads at once.

use crate::history::{Call, Operation, Line, Nanos, Outcome};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The time now, on the machine's monotonic clock: histories recorded by several processes can be put together.
#[must_use]
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither part is ever negative, and 2^64 ns are 584 years.
    let part = |part: i64| Nanos::try_from(part).unwrap_or_default();
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// Writes lines to a file.
#[derive(Debug)]
pub struct Recorder {
    output: Mutex<Output>,
}

#[derive(Debug)]
struct Output {
    file: BufWriter<File>,
    /// The first thing that went wrong: reported at the end, where somebody can act on it.
    failure: Option<io::Error>,
}

impl Recorder {
    /// A recorder that writes to a new file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        let output = Output { file: BufWriter::new(File::create(path)?), failure: None };
        Ok(Self { output: Mutex::new(output) })
    }

    /// Writes a line down.
    pub fn record(&self, line: &Line) {
        let written = serde_json::to_vec(line).map_err(io::Error::from);
        // A thread that died while it held the lock can have left half a line: reading the file back says so.
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let written = written.and_then(|mut line| {
            line.push(b'\n');
            output.file.write_all(&line)
        });
        if let Err(error) = written {
            output.failure.get_or_insert(error);
        }
    }

    /// Notes that a call is about to be sent.
    #[must_use]
    pub fn start(&self, client: u32, node: u32, key: &str, owner: &str, operation: Operation) -> OpenCall<'_> {
        let call = Call {
            client,
            node,
            key: key.to_owned(),
            owner: owner.to_owned(),
            operation,
            start: now(),
            enqueued: None,
            end: None,
            outcome: Outcome::Unknown,
        };
        OpenCall { recorder: self, call }
    }

    /// Closes the file.
    ///
    /// # Errors
    /// When a line could not be written: the history is not whole, and must not be judged.
    pub fn finish(self) -> io::Result<()> {
        let mut output = self.output.into_inner().unwrap_or_else(PoisonError::into_inner);
        match output.failure.take() {
            Some(error) => Err(error),
            None => output.file.flush(),
        }
    }
}

/// A call that has been sent. Dropped without an answer, it is recorded as one that never got any.
#[derive(Debug)]
pub struct OpenCall<'r> {
    recorder: &'r Recorder,
    call: Call,
}

impl OpenCall<'_> {
    /// The server was seen to hold this wait in its queue.
    pub fn enqueued(&mut self) {
        self.call.enqueued = Some(now());
    }

    /// It was granted, and known to be, at that instant. For what is no call to the server, but what somebody believes.
    pub fn at(&mut self, instant: Nanos, outcome: Outcome) {
        // Before it was known.
        self.call.start = instant.saturating_sub(1);
        self.call.end = Some(instant);
        self.call.outcome = outcome;
    }

    /// The reply was read, or the connection is closed ([`Outcome::Unknown`]). Returns what is recorded.
    pub fn answered(mut self, outcome: Outcome) -> Call {
        self.call.end = Some(now());
        self.call.outcome = outcome;
        self.call.clone()
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.recorder.record(&Line::Call(self.call.clone()));
    }
}
