//! The run has enough activity to prove something.

use super::guard::count_writes;
use super::index::{IndexedCall, calls_by_owner};
use crate::bounds::{Activity, Bounds};
use crate::history::{History, Outcome};
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};

/// Claim: the run has at least the required numbers of grants, hand-offs, lease ends, faults, shared tenures, kept
/// places, and stale writes without LOCK.GUARD.
///
/// A run without activity breaks no promise, but proves nothing. The check counts only events that certainly
/// happened.
pub fn enough_happened(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let (activity, least) = (measure_activity(history, bounds), bounds.minimum);
    [
        ("grants", activity.grants, least.grants),
        ("hand-offs", activity.handoffs, least.handoffs),
        ("lease ends", activity.lease_ends, least.lease_ends),
        ("faults", activity.faults, least.faults),
        ("tenures beside another one", activity.shared, least.shared),
        ("grants from a kept place", activity.kept, least.kept),
        ("stale writes to plain data", activity.stale_writes, least.stale_writes),
    ]
    .into_iter()
    .filter(|(_, activity, least)| activity < least)
    .map(|(what, activity, least)| {
        Violation::new(Check::Vacuity, history, [], format!("{activity} {what}, at least {least} required"))
    })
    .collect()
}

/// The activity in a run.
pub fn measure_activity(history: &History, bounds: &Bounds) -> Activity {
    let mut activity = Activity {
        grants: history.calls().filter(|(_, call)| call.granted().is_some()).count(),
        faults: history.faults().count(),
        ..Activity::default()
    };
    let tenures = tenures(history, bounds);
    activity.kept = grants_after_a_slice(history);
    activity.stale_writes = count_writes(history, bounds, false).stale;
    for of_key in tenures.chunk_by(|one, other| one.key == other.key) {
        activity.shared += held_beside_another(of_key);
        for pair in of_key.windows(2) {
            let [before, next] = pair else { continue };
            let granted = next.first.answered();
            if !before.excludes(next, granted) {
                continue;
            }
            // If the release was sent before the next grant was read, the release has ended this tenure. A release that
            // was sent later has ended a later tenure of the owner.
            let release = before.released.filter(|release| release.start < granted);
            if release.is_some_and(|release| next.first.waits() && next.first.start < release.start) {
                activity.handoffs += 1;
            }
            if release.is_none() && before.maybe_released > granted {
                activity.lease_ends += 1;
            }
        }
    }
    activity
}

/// The number of tenures of a key that were held at the same time as another tenure.
fn held_beside_another(of_key: &[Tenure<'_>]) -> usize {
    let mut held: Vec<_> = of_key.iter().filter_map(|tenure| tenure.held).collect();
    held.sort_unstable_by_key(|held| held.from);
    let mut until = 0;
    let beside = held.iter().filter(|held| {
        let beside = held.from < until;
        until = until.max(held.to);
        beside
    });
    beside.count()
}

/// The number of granted waits whose owner had a kept place from an earlier wait that ended without a grant.
fn grants_after_a_slice(history: &History) -> usize {
    let pairs = calls_by_owner(history).into_values().map(|calls| {
        let comes_back = |pair: &&[IndexedCall<'_>]| match pair {
            [(_, before), (_, next)] => {
                let kept =
                    before.kept().filter(|_| before.outcome == Outcome::NotAcquired || before.is_open());
                next.waits()
                    && next.granted().is_some()
                    && kept.is_some_and(|(keep, _)| next.answered() < before.start + keep)
            }
            _ => false,
        };
        calls.windows(2).filter(comes_back).count()
    });
    pairs.sum()
}
