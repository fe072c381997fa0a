//! The sum of the weights of a lock's tenures never exceeds the limit of any of these tenures.

use crate::bounds::Bounds;
use crate::history::{History, Nanos};
use crate::report::ms;
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::cmp::Reverse;

/// Claim, for each lock and each instant: the sum of the weights of the tenures that are certainly held is at most the
/// limit of each of these tenures. For exclusive locks this means that no two tenures overlap.
///
/// A tenure is certainly held in its definite-hold interval. This interval begins when a client has read the first
/// grant. The interval ends at the start of the first release that may have ended the tenure, or at the earliest time
/// at which the lease may have ended, whichever comes first. The server starts a lease after the start of the call that
/// sets the lease, so the interval lies within the tenure on the server. A call without a reply can end an interval,
/// but cannot begin an interval. The check uses the smallest weight and the largest limit that a tenure can have.
///
/// The claim does not hold if a failover may lose grants.
pub fn tenures_never_overlap(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let tenures = tenures(history, bounds);
    let mut violations = Vec::new();
    for of_key in tenures.chunk_by(|one, other| one.key == other.key) {
        let mut held: Vec<_> = of_key.iter().filter_map(|tenure| Some((tenure.held?.from, tenure))).collect();
        held.sort_by_key(|(from, _)| *from);
        // `present` has the tenures that are held at the beginning of `tenure`. Limits only grow, so the sum of the weights
        // can exceed a limit only at the beginning of a tenure.
        let mut present: Vec<&Tenure<'_>> = Vec::new();
        for (now, tenure) in held {
            present.retain(|other| end(other) > now);
            present.push(tenure);
            if let Some(together) = too_many(&present, now) {
                violations.push(violation(history, &together, now));
            }
        }
    }
    violations
}

/// The end of the definite-hold interval.
fn end(tenure: &Tenure<'_>) -> Nanos {
    tenure.held.map_or(0, |held| held.to)
}

/// A small set of tenures whose weights exceed the smallest limit: the last tenure of `present`, the tenure with the
/// smallest limit, and the heaviest other tenures. `None` if all tenures fit.
fn too_many<'t, 'h>(present: &[&'t Tenure<'h>], now: Nanos) -> Option<Vec<&'t Tenure<'h>>> {
    let weight = |tenures: &[&Tenure<'_>]| tenures.iter().map(|tenure| tenure.modes.weight).sum::<u64>();
    let by_limit = |tenure: &&&Tenure<'_>| (tenure.limit_at(now), Reverse(end(tenure)));
    let (&smallest, &new) = (present.iter().min_by_key(by_limit)?, present.last()?);
    let limit = smallest.limit_at(now);
    if weight(present) <= limit {
        return None;
    }
    let mut together = vec![smallest];
    let mut others: Vec<_> =
        present.iter().filter(|tenure| tenure.token != smallest.token).copied().collect();
    others.sort_by_key(|tenure| {
        (tenure.token != new.token, Reverse(tenure.modes.weight), Reverse(end(tenure)))
    });
    // The new tenure is the first of the others, unless its limit is the smallest.
    for tenure in others {
        if weight(&together) > limit {
            break;
        }
        together.push(tenure);
    }
    Some(together)
}

fn violation(history: &History, together: &[&Tenure<'_>], now: Nanos) -> Violation {
    let shown = || together.iter();
    let lines = shown().flat_map(|tenure| [Some(tenure.line), tenure.held.map(|held| held.by)]).flatten();
    let new = shown().max_by_key(|tenure| tenure.held.map(|held| held.from));
    let new = new.expect("one of them is new");
    let limit = shown().map(|tenure| tenure.limit_at(now)).min().unwrap_or(0);
    let others: Vec<_> = shown().filter(|tenure| tenure.token != new.token).collect();
    let left = others.iter().filter_map(|tenure| tenure.held).map(|held| held.to - now).min().unwrap_or(0);
    let holders: Vec<_> = others
        .iter()
        .map(|other| format!("{} held {} with token {}", other.owner, new.key, other.token))
        .collect();
    let mut what = format!(
        "{} for at least {} more when {} had read its grant with token {}",
        holders.join(" and "),
        ms(left),
        new.owner,
        new.token
    );
    if limit > 1 {
        let weight: u64 = shown().map(|tenure| tenure.modes.weight).sum();
        what += &format!(": the sum of the weights is {weight}, and the limit is {limit}");
    }
    Violation::new(Check::Overlap, history, lines, what)
}
