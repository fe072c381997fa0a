//! The turns of calls that need a connection for a wait, first come, first served.

use std::collections::BTreeSet;

/// The turns of one client. A turn is a number.
#[derive(Debug, Default)]
pub(crate) struct WaitingLine {
    latest: u64,
    /// The turns that have not begun.
    line: BTreeSet<u64>,
    /// The number of turns that have begun and not ended.
    begun: usize,
}

impl WaitingLine {
    /// Joins the end of the line.
    pub(crate) fn enter(&mut self) -> u64 {
        self.latest += 1;
        self.line.insert(self.latest);
        self.latest
    }

    /// Whether a turn has begun or can begin now: at most `most` turns run at the same time. If `is_fair` is false, the
    /// turn does not wait for earlier turns.
    pub(crate) fn has_begun(&mut self, turn: u64, most: usize, is_fair: bool) -> bool {
        let before = if is_fair { self.line.range(..turn).count() } else { 0 };
        if self.line.contains(&turn) && self.begun + before < most {
            self.line.remove(&turn);
            self.begun += 1;
        }
        !self.line.contains(&turn)
    }

    /// Ends a turn, or gives up a turn that has not begun.
    pub(crate) fn end(&mut self, turn: u64) {
        if !self.line.remove(&turn) {
            self.begun -= 1;
        }
    }
}
