//! The order of the queue is the order of grants.

use crate::violation::{Violation, Check};
use crate::bounds::Bounds;
use crate::history::{Call, History, Operation, Nanos, Outcome};
use crate::report::ms;
use crate::tenure::{Tenure, tenures};
use std::collections::HashMap;

/// Claim: who asked after a wait was seen in the queue is granted its tenure after that wait.
///
/// [`Call::enqueued`] says when a wait was seen there; a call that started later came behind it. Tokens say in which order
/// the grants were. Two things may pass a waiter by right: a re-entry, so only what began a tenure counts, and all its
/// grants must have started later; and a repeated wait, which takes the place of the earlier one, so an owner that has a
/// call open or superseded is left out. Waits that were not granted, or that nobody saw in the queue, claim nothing: a
/// run that means to try the order gives each wait an owner of its own.
#[must_use]
pub fn queue_order_is_grant_order(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let mut earlier_wait = HashMap::<(&str, &str), Nanos>::new();
    let mut waited = HashMap::<_, Vec<_>>::new();
    for (line, call) in history.calls() {
        if may_have_a_place(call) {
            let since = earlier_wait.entry((&call.key, &call.owner)).or_insert(call.start);
            *since = call.start.min(*since);
        }
        if let (Some(enqueued), Some((token, _))) = (call.enqueued, call.granted()) {
            waited.entry((call.key.as_str(), token)).or_default().push((enqueued, line, call));
        }
    }
    let came_late = |tenure: &Tenure<'_>| {
        let place = earlier_wait.get(&(tenure.key, tenure.owner));
        place.is_none_or(|&since| since > tenure.first.answered())
    };

    let tenures = tenures(history, bounds);
    let mut violations = Vec::new();
    for of_key in tenures.chunk_by(|one, other| one.key == other.key) {
        let mut latest: Option<&Tenure<'_>> = None;
        for tenure in of_key {
            for &(enqueued, line, call) in waited.get(&(tenure.key, tenure.token)).into_iter().flatten() {
                if let Some(passed) = latest.filter(|passed| enqueued < passed.earliest) {
                    let what = format!(
                        "{} was seen in the queue of {}; {} asked {} later and was granted it first",
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

/// Whether a wait may stand in the queue for a later call of its owner to take over.
fn may_have_a_place(call: &Call) -> bool {
    let superseded = matches!(&call.outcome, Outcome::Error(word) if word == "SUPERSEDED");
    matches!(call.operation, Operation::Acquire { .. }) && (call.is_open() || superseded)
}
