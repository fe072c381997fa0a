//! A freed lock reaches a waiter within its bound.

use super::group_calls;
use crate::violation::{Violation, Check};
use crate::bounds::Bounds;
use crate::history::{Call, History, Operation, Nanos};
use crate::report::ms;
use crate::spans::Spans;
use crate::tenure::tenures;
use std::collections::HashMap;

/// Claim: a wait that begins a tenure is answered within the bound after the tenure before was over, or after it was
/// sent, if that was later.
///
/// The tenure before is the one with the next smaller token. It was over when a release that left nothing was answered,
/// or when the last lease that anything can have set was; so the lock was free by then, or was another's that the
/// history does not show. For that there must be an acquisition without an answer: where one can have held the lock
/// meanwhile, nothing is claimed, nor where a fault fell between. Both rest on [`Bounds::settle`].
#[must_use]
pub fn a_freed_lock_reaches_a_waiter(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let mut faults = HashMap::<_, Vec<_>>::new();
    for fault in history.faults() {
        let over = fault.end.saturating_add(bounds.settle);
        faults.entry(fault.client).or_default().push((fault.start, over));
    }
    let faults: HashMap<_, Spans> =
        faults.into_iter().map(|(whose, spans)| (whose, spans.into_iter().collect())).collect();
    let unseen = unseen_tenures(history, bounds);

    let tenures = tenures(history, bounds);
    let mut violations = Vec::new();
    for pair in tenures.windows(2) {
        let [before, tenure] = pair else { continue };
        let wait = tenure.first;
        if before.key != tenure.key || !wait.waits() {
            continue;
        }
        let free = before.freed.max(wait.start);
        let late = wait.answered() > free.saturating_add(bounds.handoff);
        let excused = [None, Some(wait.client)]
            .iter()
            .filter_map(|whose| faults.get(whose))
            .chain(unseen.get(tenure.key))
            .any(|spans| spans.overlap(free, wait.answered()));
        if late && !excused {
            let what = format!(
                "{} was free for {}, who waited, and heard of it {} later",
                tenure.key,
                tenure.owner,
                ms(wait.answered() - free)
            );
            let freed_by = before.released.filter(|released| released.end == before.freed);
            let lines = [before.line, tenure.line].into_iter().chain(freed_by.map(|released| released.line));
            violations.push(Violation::new(Check::Promptness, history, lines, what));
        }
    }
    violations
}

/// By key, when a tenure can have been there that no grant tells of.
fn unseen_tenures<'h>(history: &'h History, bounds: &Bounds) -> HashMap<&'h str, Spans> {
    let reach = |call: &Call, lease: Nanos| match call.end {
        Some(end) => end.saturating_add(bounds.settle).saturating_add(lease),
        None => Nanos::MAX,
    };
    let mut spans = HashMap::<_, Vec<_>>::new();
    for ((key, _), calls) in group_calls(history, |call| (call.key.as_str(), call.owner.as_str())) {
        let leases = calls.iter().filter_map(|(_, call)| match call.operation {
            Operation::Renew { lease, .. } => Some((call, lease)),
            Operation::Acquire { lease, .. } if call.is_open() => Some((call, lease)),
            Operation::Acquire { .. } | Operation::Release { .. } => None,
        });
        let over = leases.map(|(call, lease)| reach(call, lease)).max().unwrap_or(0);
        let open =
            calls.iter().filter(|(_, call)| matches!(call.operation, Operation::Acquire { .. }) && call.is_open());
        if let Some(start) = open.map(|(_, call)| call.start).min() {
            spans.entry(key).or_default().push((start, over));
        }
    }
    spans.into_iter().map(|(key, spans)| (key, spans.into_iter().collect())).collect()
}
