//! Every call has a reply.

use super::index::FaultSpans;
use crate::bounds::Bounds;
use crate::history::{History, Outcome};
use crate::report::ms;
use crate::violation::{Check, Violation};

/// Claim: no call is open when the run ends, and each call has a reply within [`Bounds::answer`] after its wait limit.
///
/// A closed connection counts as a reply. [`Bounds::answer`] does not apply to closed connections, to waits without
/// limit, or to calls during a fault: a stopped server replies late, and a stopped client reads late.
pub fn every_call_is_answered(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let faults = FaultSpans::of(history, bounds);
    let mut violations = Vec::new();
    for (line, call) in history.calls() {
        let Some(end) = call.end else {
            let what = format!("the call of {} for {} has no reply", call.owner, call.key);
            violations.push(Violation::new(Check::Answers, history, [line], what));
            continue;
        };
        if call.waits() && call.wait_limit().is_none() {
            continue;
        }
        let wait = call.wait_limit().unwrap_or(0);
        let due = call.start.saturating_add(wait).saturating_add(bounds.answer);
        let excused = faults.may_delay(call.client, call.start, end);
        if end > due && call.outcome != Outcome::Unknown && !excused {
            let what =
                format!("{} got its reply for {} {} after it was due", call.owner, call.key, ms(end - due));
            violations.push(Violation::new(Check::Answers, history, [line], what));
        }
    }
    violations
}
