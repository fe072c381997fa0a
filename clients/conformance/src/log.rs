//! The log of one scenario. A thread can wait until the log has new lines.

use lockward_tests::locked;
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The lines of a scenario, each with the milliseconds since the start of the scenario.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    begun: Instant,
    shared: Arc<(Mutex<Lines>, Condvar)>,
}

#[derive(Debug, Default)]
struct Lines {
    lines: Vec<String>,
    rings: u64,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), shared: Arc::default() }
    }

    /// Adds a line, and wakes the waiting threads.
    pub(crate) fn add(&self, line: impl Display) {
        let at = self.begun.elapsed().as_millis();
        let mut lines = locked(&self.shared.0);
        lines.lines.push(format!("{at:>6} {line}"));
        lines.rings += 1;
        self.shared.1.notify_all();
    }

    /// The last lines of the log.
    pub(crate) fn tail(&self, count: usize) -> String {
        let lines = &locked(&self.shared.0).lines;
        lines[lines.len().saturating_sub(count)..].join("\n")
    }

    /// Calls `look` now and after each new line, until `look` returns a value or `limit` has passed.
    pub(crate) fn wait<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        loop {
            let rings = locked(&self.shared.0).rings;
            if let Some(found) = look() {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let lines = locked(&self.shared.0);
            drop(self.shared.1.wait_timeout_while(lines, left, |lines| lines.rings == rings));
        }
    }
}
