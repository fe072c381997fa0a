//! Broken promises.

use crate::history::{History, Nanos};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use std::fmt;
use std::str::FromStr;

/// The checks. Each tests one promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Two tenures of a lock never overlap.
    Overlap,
    /// Tokens grow, and each has one owner.
    Tokens,
    /// Hold counts add up.
    Counts,
    /// The order of the queue is the order of grants.
    Queue,
    /// A freed lock reaches a waiter within its bound.
    Promptness,
    /// Every call is answered.
    Answers,
    /// The fenced store accepted no stale write.
    Store,
    /// LOCK.GUARD runs the writes of holders, and no others.
    Guard,
    /// The run had enough activity to prove something.
    Vacuity,
}

impl FromStr for Check {
    type Err = serde::de::value::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::deserialize(name.into_deserializer())
    }
}

/// A promise that the history breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check that found it.
    pub check: Check,
    /// What is wrong.
    pub what: String,
    /// The fewest lines that show it, as indexes into [`History::lines`], in order of time.
    pub lines: Vec<usize>,
}

impl Violation {
    /// A violation that these lines show. Duplicates are removed.
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

    /// When the last line that shows it ended. By then the promise was broken.
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
