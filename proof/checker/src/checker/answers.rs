//! Every call is answered.

use crate::violation::{Violation, Check};
use crate::bounds::Bounds;
use crate::history::{History, Operation, Outcome, Wait};
use crate::report::ms;
use crate::spans::Spans;
use std::collections::HashMap;

/// Claim: no call stands when the run ends, and each is answered within the bound after its wait limit.
///
/// A call whose connection was closed counts as answered. The bound is not asked of it, nor of a wait without limit,
/// nor where a fault to the servers or to this client fell into the call: what a stopped process reads late is not the
/// server's doing.
#[must_use]
pub fn every_call_is_answered(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let mut faults = HashMap::<_, Vec<_>>::new();
    for fault in history.faults() {
        let over = fault.end.saturating_add(bounds.settle);
        faults.entry(fault.client).or_default().push((fault.start, over));
    }
    let faults: HashMap<_, Spans> =
        faults.into_iter().map(|(whose, spans)| (whose, spans.into_iter().collect())).collect();
    let mut violations = Vec::new();
    for (line, call) in history.calls() {
        let Some(end) = call.end else {
            let what = format!("{} never got an answer about {}", call.owner, call.key);
            violations.push(Violation::new(Check::Answers, history, [line], what));
            continue;
        };
        let wait = match call.operation {
            Operation::Acquire { wait: Wait::Limit(limit), .. } => limit,
            Operation::Acquire { wait: Wait::Unlimited, .. } => continue,
            Operation::Acquire { wait: Wait::No, .. } | Operation::Release { .. } | Operation::Renew { .. } => 0,
        };
        let due = call.start.saturating_add(wait).saturating_add(bounds.answer);
        let excused = [None, Some(call.client)]
            .iter()
            .filter_map(|whose| faults.get(whose))
            .any(|spans| spans.overlap(call.start, end));
        if end > due && call.outcome != Outcome::Unknown && !excused {
            let what = format!(
                "{} got its answer about {} {} after it was due",
                call.owner,
                call.key,
                ms(end - due)
            );
            violations.push(Violation::new(Check::Answers, history, [line], what));
        }
    }
    violations
}
