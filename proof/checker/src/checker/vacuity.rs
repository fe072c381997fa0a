//! The run had enough activity to prove something.

use crate::bounds::{Activity, Bounds};
use crate::history::{History, WriteOutcome};
use crate::tenure::tenures;
use crate::violation::{Check, Violation};

/// Claim: there were at least as many grants, hand-offs, lease ends, faults and refused writes as the bounds require.
///
/// A run without activity breaks no promise, but proves nothing. Only certain events are counted.
#[must_use]
pub fn enough_happened(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let (activity, least) = (measure_activity(history, bounds), bounds.minimum);
    [
        ("grants", activity.grants, least.grants),
        ("hand-offs", activity.handoffs, least.handoffs),
        ("lease ends", activity.lease_ends, least.lease_ends),
        ("faults", activity.faults, least.faults),
        ("refused writes", activity.refused_writes, least.refused_writes),
    ]
    .into_iter()
    .filter(|(_, activity, least)| activity < least)
    .map(|(what, activity, least)| {
        Violation::new(Check::Vacuity, history, [], format!("{activity} {what}, at least {least} required"))
    })
    .collect()
}

/// The activity in a run.
#[must_use]
pub fn measure_activity(history: &History, bounds: &Bounds) -> Activity {
    let mut activity = Activity {
        grants: history.calls().filter(|(_, call)| call.granted().is_some()).count(),
        faults: history.faults().count(),
        refused_writes: history.writes().filter(|(_, write)| write.outcome == WriteOutcome::Refused).count(),
        ..Activity::default()
    };
    for pair in tenures(history, bounds).windows(2) {
        let [before, next] = pair else { continue };
        if before.key != next.key {
            continue;
        }
        let granted = next.first.answered();
        // A release that was sent before the next grant was read ended this tenure. A later one ended another.
        let release = before.released.filter(|release| release.start < granted);
        if release.is_some_and(|release| next.first.waits() && next.first.start < release.start) {
            activity.handoffs += 1;
        }
        if release.is_none() && before.maybe_released > granted {
            activity.lease_ends += 1;
        }
    }
    activity
}
