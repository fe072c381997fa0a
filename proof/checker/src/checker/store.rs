//! The fenced store accepts no stale write.

use crate::bounds::Bounds;
use crate::history::{History, Token, WriteOutcome};
use crate::spans::grouped;
use crate::violation::{Check, Violation};
use std::collections::BTreeMap;

/// Claim: the store accepts no write with a smaller token than an earlier accepted write.
///
/// A write is earlier than another write if its reply came before the other write started. Concurrent writes have no
/// order. If a later tenure has a smaller token, the check finds the write of its owner.
pub fn the_store_accepted_no_stale_write(history: &History, _: &Bounds) -> Vec<Violation> {
    let accepted = history.writes().filter(|(_, write)| write.outcome == WriteOutcome::Accepted);
    let by_key: BTreeMap<_, Vec<_>> = grouped(accepted.map(|(line, write)| (&write.key, (line, write))));
    let mut violations = Vec::new();
    for (key, mut started) in by_key {
        let mut answered = started.clone();
        answered.sort_by_key(|(_, write)| write.end);
        started.sort_by_key(|(_, write)| write.start);
        let mut answered = answered.into_iter().peekable();
        let mut largest: Option<(Token, usize)> = None;
        for (line, write) in started {
            while let Some((at, before)) = answered.next_if(|(_, other)| other.end < write.start) {
                largest = largest.max(Some((before.token, at)));
            }
            if let Some((token, at)) = largest.filter(|&(token, _)| token > write.token) {
                let what = format!("the store accepted {} with token {} after {token}", key, write.token);
                violations.push(Violation::new(Check::Store, history, [at, line], what));
            }
        }
    }
    violations
}
