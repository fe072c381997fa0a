//! Violations of the promises.

use crate::history::History;
use std::fmt;

/// The checks. Each check tests one promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Tenures of a lock that do not fit together never overlap.
    Overlap,
    /// Tokens grow, and each token has one owner.
    Tokens,
    /// Hold counts add up.
    Counts,
    /// The order of the queue is the order of grants.
    Queue,
    /// A freed lock reaches a waiter in time.
    Promptness,
    /// Every call has a reply.
    Answers,
    /// A holder can renew its lease.
    Renewals,
    /// LOCK.GUARD runs the writes of holders, and no other writes.
    Guard,
    /// The run has enough activity to prove something.
    Vacuity,
}

/// A promise that the history breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub check: Check,
    pub what: String,
    /// The lines that show the violation, as few as possible, in order of time. Each number is an index into
    /// [`History::lines`].
    pub lines: Vec<usize>,
}

impl Violation {
    /// A violation that these lines show. Duplicate lines are removed.
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
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.check, self.what)
    }
}
