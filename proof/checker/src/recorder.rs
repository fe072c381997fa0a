//! Records the history of many threads.

use crate::history::{Call, Fault, Line, Nanos, Operation, Outcome};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The time on the machine's monotonic clock. All processes share this clock, so their histories can be merged.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    // Both conversions and the sum are safe: neither part of the time is negative, and 2^64 ns are 584 years.
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
    /// The first error of a write. `finish` returns this error.
    failure: Option<io::Error>,
}

impl Recorder {
    /// A recorder that writes to a new file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let output = Output { file: BufWriter::new(File::create(path)?), failure: None };
        Ok(Self { output: Mutex::new(output) })
    }

    /// Writes a line.
    pub fn record(&self, line: &Line) {
        let written = serde_json::to_vec(line).map_err(io::Error::from);
        // A thread that panicked while it held the mutex may have written an incomplete line. `History::read` reports
        // such a line.
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let written = written.and_then(|mut line| {
            line.push(b'\n');
            output.file.write_all(&line)
        });
        if let Err(error) = written {
            output.failure.get_or_insert(error);
        }
    }

    /// Writes a fault that began at `start` and is healed now.
    pub fn fault(&self, name: &str, client: Option<u32>, start: Nanos) {
        self.record(&Line::Fault(Fault { name: name.to_owned(), client, start, end: now() }));
    }

    /// Starts the record of a call that is about to be sent.
    pub fn start(
        &self,
        client: u32,
        node: u32,
        key: &str,
        owner: &str,
        operation: Operation,
    ) -> OpenCall<'_> {
        OpenCall { recorder: self, call: Call::sent(client, node, key, owner, operation, now()) }
    }

    /// Closes the file.
    pub fn finish(self) -> io::Result<()> {
        let mut output = self.output.into_inner().unwrap_or_else(PoisonError::into_inner);
        match output.failure.take() {
            Some(error) => Err(error),
            None => output.file.flush(),
        }
    }
}

/// A call that a client has sent. If this value is dropped without an outcome, the history has a call without a reply.
#[derive(Debug)]
pub struct OpenCall<'r> {
    recorder: &'r Recorder,
    pub call: Call,
}

impl OpenCall<'_> {
    /// Records that the wait is in the server's queue now.
    pub fn enqueued(&mut self) {
        self.call.enqueued = Some(now());
    }

    /// Records the outcome, which is [`Outcome::Unknown`] if the connection was closed. Returns the recorded call.
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
