//! The run has enough activity to prove something.

use super::guard::stale_writes;
use super::index::{IndexedCall, calls_by_owner};
use crate::bounds::{Activity, Bounds};
use crate::history::{History, Operation, Outcome};
use crate::spans::Spans;
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::collections::HashMap;

/// Claim: the run has at least the activity that [`Bounds::minimum`] requires.
///
/// A run without activity breaks no promise, but proves nothing. The check counts only events that certainly
/// happened.
pub fn enough_happened(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let activity = measure_activity(history, bounds);
    let too_little = bounds.minimum.iter().filter(|(what, least)| activity[*what] < **least);
    too_little
        .map(|(what, least)| {
            let what = format!("{} {what}, at least {least} required", activity[what]);
            Violation::new(Check::Vacuity, history, [], what)
        })
        .collect()
}

/// The activity in a run.
pub fn measure_activity(history: &History, bounds: &Bounds) -> Activity {
    let tenures = tenures(history, bounds);
    // Hand-offs after a release, and tenures that ended without a release.
    let (mut handoffs, mut lease_ends) = (0, 0);
    for of_key in tenures.chunk_by(|one, other| one.key == other.key) {
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
                handoffs += 1;
            }
            if release.is_none() && before.maybe_released > granted {
                lease_ends += 1;
            }
        }
    }
    let by_key = tenures.chunk_by(|one, other| one.key == other.key);
    Activity::from([
        ("grants", history.calls().filter(|(_, call)| call.granted().is_some()).count()),
        ("hand-offs", handoffs),
        ("lease ends", lease_ends),
        ("tenures beside another one", by_key.map(held_beside_another).sum()),
        ("tenures renewed after a fault", renewed_after_a_fault(history, &tenures)),
        ("grants at a kept place", grants_after_a_slice(history)),
        ("stale plain writes", stale_writes(history, bounds, false)),
        ("stale guarded writes", stale_writes(history, bounds, true)),
        ("faults", history.faults().count()),
    ])
}

/// The number of tenures that their owner renewed with TOKEN after a fault to the servers had begun.
fn renewed_after_a_fault(history: &History, tenures: &[Tenure<'_>]) -> usize {
    let faults = history.faults().filter(|fault| fault.client.is_none());
    let faults: Spans = faults.map(|fault| (fault.start, fault.start)).collect();
    let renewals = history.calls().filter_map(|(_, call)| match (&call.operation, &call.outcome) {
        (Operation::Renew { token: Some(token), .. }, Outcome::Renewed { .. }) => {
            Some(((call.key.as_str(), *token), call.start))
        }
        _ => None,
    });
    let renewals: HashMap<_, _> = renewals.collect(); // the last renewal of each tenure
    let went_on = tenures.iter().filter(|tenure| {
        let last = renewals.get(&(tenure.key, tenure.token));
        last.is_some_and(|last| faults.overlap(tenure.first.answered(), *last))
    });
    went_on.count()
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
    let comes_back = |pair: &&[IndexedCall<'_>]| {
        let [(_, before), (_, next)] = pair else { return false };
        let ended = before.outcome == Outcome::NotAcquired || before.is_open();
        let kept = before.kept().filter(|_| ended && next.waits() && next.granted().is_some());
        kept.is_some_and(|(keep, _)| next.answered() < before.start + keep)
    };
    calls_by_owner(history).values().map(|calls| calls.windows(2).filter(comes_back).count()).sum()
}
