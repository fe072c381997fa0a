//! What a run must keep to: the lengths of time that are promised, and how much must happen.

use crate::history::Nanos;

const MS: Nanos = 1_000_000;

/// The bounds that a history is judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// A lease may end this much early: milliseconds are whole on the wire, and clocks of two processes are read.
    pub tolerance: Nanos,
    /// A freed lock reaches the next waiter, reply read, within this.
    pub handoff: Nanos,
    /// A reply is read within this of the latest instant at which the server had to give it.
    pub answer: Nanos,
    /// After this a request whose client gave up acts no more, and what a fault did to timing is over. The check for
    /// prompt grants rests on it; those for overlap, tokens and counts do not.
    pub settle: Nanos,
    /// What must have activity at least.
    pub minimum: Activity,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            tolerance: 2 * MS,
            handoff: 50 * MS,
            answer: 100 * MS,
            settle: 1_000 * MS,
            minimum: Activity { grants: 1, handoffs: 1, lease_ends: 1, faults: 1, refused_writes: 1 },
        }
    }
}

/// How much activity in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Acquisitions granted.
    pub grants: usize,
    /// Tenures that a waiter was given when the one before was released.
    pub handoffs: usize,
    /// Tenures that nobody tried to end, and that made room all the same.
    pub lease_ends: usize,
    /// Faults.
    pub faults: usize,
    /// Stale writes that the store refused.
    pub refused_writes: usize,
}
