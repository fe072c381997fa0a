//! The order of the queue is the order of grants.

use crate::bounds::Bounds;
use crate::history::{Call, History, Nanos, Operation, Outcome};
use crate::report::ms;
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::collections::HashMap;

/// Claim: an acquisition that started after a wait was seen in the queue is granted its tenure after that wait.
///
/// [`Call::enqueued`] says when a wait was seen, so a call that started later is behind it. Tokens give the order of grants. Two calls may
/// legally pass a waiter. One is a re-entry, so only calls that began a tenure count, and all its grants must have started
/// later. The other is a repeated wait, which takes the position of the earlier one, so owners with an open or superseded
/// call are left out. Waits without a grant, or that were not seen in the queue, claim nothing. A run that tests the order gives each
/// wait its own owner.
#[must_use]
pub fn queue_order_is_grant_order(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let mut earlier_wait = HashMap::<(&str, &str), Nanos>::new();
    let mut waited = HashMap::<_, Vec<_>>::new();
    for (line, call) in history.calls() {
        if may_have_a_position(call) {
            let since = earlier_wait.entry((&call.key, &call.owner)).or_insert(call.start);
            *since = call.start.min(*since);
        }
        if let (Some(enqueued), Some((token, _))) = (call.enqueued, call.granted()) {
            waited.entry((call.key.as_str(), token)).or_default().push((enqueued, line, call));
        }
    }
    let came_late = |tenure: &Tenure<'_>| {
        let wait = earlier_wait.get(&(tenure.key, tenure.owner));
        wait.is_none_or(|&since| since > tenure.first.answered())
    };

    let tenures = tenures(history, bounds);
    let mut violations = Vec::new();
    for of_key in tenures.chunk_by(|one, other| one.key == other.key) {
        let mut latest: Option<&Tenure<'_>> = None;
        for tenure in of_key {
            for &(enqueued, line, call) in waited.get(&(tenure.key, tenure.token)).into_iter().flatten() {
                if let Some(passed) = latest.filter(|passed| enqueued < passed.earliest) {
                    let what = format!(
                        "{} was in the queue of {}; {} came {} later and was granted it first",
                        call.owner,
                        tenure.key,
                        passed.owner,
                        ms(passed.earliest - enqueued)
                    );
                    violations.push(Violation::new(Check::Queue, history, [line, passed.line], what));
                }
            }
            if came_late(tenure) && latest.is_none_or(|latest| latest.earliest < tenure.earliest) {
                latest = Some(tenure);
            }
        }
    }
    violations
}

/// Whether a wait may have a position that a later call of its owner takes over.
fn may_have_a_position(call: &Call) -> bool {
    let superseded = matches!(&call.outcome, Outcome::Error(word) if word == "SUPERSEDED");
    matches!(call.operation, Operation::Acquire { .. }) && (call.is_open() || superseded)
}
