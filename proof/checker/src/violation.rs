//! What the checker says when a promise was broken.

use crate::history::{History, Nanos};
use crate::report::report;
use std::fmt;

/// The checks: each holds one promise against the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Two tenures of a lock never overlap.
    Overlap,
    /// Tokens rise, and each has one owner.
    Tokens,
    /// Hold counts add up.
    Counts,
    /// The order of the queue is the order of grants.
    Queue,
    /// A freed lock reaches a waiter within its bound.
    Promptness,
    /// Every call is answered.
    Answers,
    /// The fenced store took no stale write.
    Store,
    /// Enough activity for the run to mean something.
    Vacuity,
}

/// A promise that the history breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which check raised it.
    pub check: Check,
    /// What is wrong.
    pub what: String,
    /// The fewest lines that show it, as places in [`History::lines`], in order of time.
    pub lines: Vec<usize>,
}

impl Violation {
    /// A violation over these lines; a line reported twice is shown once.
    pub(crate) fn new(
        check: Check,
        history: &History,
        lines: impl IntoIterator<Item = usize>,
        what: String,
    ) -> Self {
        let mut lines: Vec<_> = lines.into_iter().collect();
        lines.sort_by_key(|&at| (history.lines[at].start(), at));
        lines.dedup();
        Self { check, what, lines }
    }

    /// The violation and the lines that show it, for a person to read: times in milliseconds from the start of the first line.
    /// What was done to the servers and to the same lock meanwhile stands below.
    #[must_use]
    pub fn report(&self, history: &History) -> String {
        report(self, history)
    }

    /// When the last line that shows it was over: by then the promise was broken.
    #[must_use]
    pub fn detected_at(&self, history: &History) -> Nanos {
        let ends = self.lines.iter().map(|&at| history.lines[at].end().unwrap_or(Nanos::MAX));
        ends.max().unwrap_or(Nanos::MAX)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.check, self.what)
    }
}
