//! The turns of calls that need a connection for a wait, first come, first served.

use std::collections::BTreeSet;

/// Limits the number of connections on which one client waits. Each wait has a turn, which is a number.
#[derive(Debug, Default)]
pub(crate) struct WaitTurns {
    latest: u64,
    /// The turns that have not begun.
    waiting: BTreeSet<u64>,
    /// The number of turns that have begun and not ended.
    begun: usize,
}

impl WaitTurns {
    /// Adds a turn after all other turns.
    pub(crate) fn enter(&mut self) -> u64 {
        self.latest += 1;
        self.waiting.insert(self.latest);
        self.latest
    }

    /// Whether a turn has begun or can begin now: at most `most` turns run at the same time. If `is_fair`, the turn waits
    /// for earlier turns, otherwise for later turns.
    pub(crate) fn has_begun(&mut self, turn: u64, most: usize, is_fair: bool) -> bool {
        let before =
            if is_fair { self.waiting.range(..turn).count() } else { self.waiting.range(turn + 1..).count() };
        if self.waiting.contains(&turn) && self.begun + before < most {
            self.waiting.remove(&turn);
            self.begun += 1;
        }
        !self.waiting.contains(&turn)
    }

    /// Ends a turn, or gives up a turn that has not begun.
    pub(crate) fn end(&mut self, turn: u64) {
        if !self.waiting.remove(&turn) {
            self.begun -= 1;
        }
    }
}
