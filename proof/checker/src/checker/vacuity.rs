//! Enough happened for the run to mean something.

use crate::alarm::{Alarm, Check};
use crate::bounds::{Bounds, Happened};
use crate::history::{History, Verdict};
use crate::tenure::tenures;

/// Claim: at least as many grants, hand-offs, lease ends, faults and refused writes happened as the bounds say.
///
/// A run in which nothing happens breaks no promise. What is counted happened for certain.
#[must_use]
pub fn enough_happened(history: &History, bounds: &Bounds) -> Vec<Alarm> {
    let (happened, least) = (what_happened(history, bounds), bounds.least);
    [
        ("grants", happened.grants, least.grants),
        ("hand-offs", happened.handoffs, least.handoffs),
        ("lease ends", happened.lease_ends, least.lease_ends),
        ("faults", happened.faults, least.faults),
        ("refused writes", happened.refused_writes, least.refused_writes),
    ]
    .into_iter()
    .filter(|(_, happened, least)| happened < least)
    .map(|(what, happened, least)| {
        Alarm::new(Check::Vacuity, history, [], format!("{happened} {what} of {least} at least"))
    })
    .collect()
}

/// How much happened.
#[must_use]
pub fn what_happened(history: &History, bounds: &Bounds) -> Happened {
    let mut happened = Happened {
        grants: history.calls().filter(|(_, call)| call.granted().is_some()).count(),
        faults: history.faults().count(),
        refused_writes: history.writes().filter(|(_, write)| write.verdict == Verdict::Refused).count(),
        ..Happened::default()
    };
    for pair in tenures(history, bounds).windows(2) {
        let [before, next] = pair else { continue };
        if before.key != next.key {
            continue;
        }
        let granted = next.first.answered();
        // A release that was sent before the next grant was read ended this tenure; a later one, another.
        let release = before.released.filter(|release| release.start < granted);
        if release.is_some_and(|release| next.first.waits() && next.first.start < release.start) {
            happened.handoffs += 1;
        }
        if release.is_none() && before.maybe_released > granted {
            happened.lease_ends += 1;
        }
    }
    happened
}
