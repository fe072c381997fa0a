//! A freed lock reaches a waiter in time.

use super::index::{FaultSpans, group_calls};
use crate::bounds::Bounds;
use crate::history::{Call, History, Nanos, Operation};
use crate::report::ms;
use crate::spans::Spans;
use crate::tenure::tenures;
use crate::violation::{Check, Violation};
use std::collections::HashMap;

/// Claim: a wait that begins a tenure has its reply within the bound after the earlier tenure was over, or after the wait was sent, if that
/// was later.
///
/// The earlier tenure is the one with the next smaller token. It was over at the reply of a release that left no holds, or at the end of
/// the last lease that a call may have set. Then the lock was free, or another owner held it whose grant is not in the history.
/// This needs an acquisition without a reply. If such an acquisition may have held the lock, or a fault came in between, nothing is
/// claimed. Both depend on [`Bounds::settle`].
#[must_use]
pub fn a_freed_lock_reaches_a_waiter(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let faults = FaultSpans::of(history, bounds);
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
        let excused = faults.overlap(wait.client, free, wait.answered())
            || unseen.get(tenure.key).is_some_and(|spans| spans.overlap(free, wait.answered()));
        if late && !excused {
            let what = format!(
                "{} was free while {} waited, and its reply came {} later",
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

/// By key, the spans in which there may have been a tenure without a grant in the history.
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
        let open = calls
            .iter()
            .filter(|(_, call)| matches!(call.operation, Operation::Acquire { .. }) && call.is_open());
        if let Some(start) = open.map(|(_, call)| call.start).min() {
            spans.entry(key).or_default().push((start, over));
        }
    }
    spans.into_iter().map(|(key, spans)| (key, spans.into_iter().collect())).collect()
}
