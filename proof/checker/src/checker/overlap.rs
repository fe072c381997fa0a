//! The sum of the weights of a lock's tenures never exceeds the limit of any of these tenures.

use crate::bounds::Bounds;
use crate::history::{History, Nanos};
use crate::report::ms;
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::cmp::Reverse;
use std::collections::BTreeSet;

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
        let mut present = Present::default();
        for (now, what, at) in events(of_key) {
            match what {
                Event::Over => present.remove(of_key, at, now),
                Event::Limit(limit) => present.change_limit(of_key, at, limit, now),
                Event::Held => {
                    present.add(of_key, at, now);
                    if let Some(together) = present.too_many(of_key, at) {
                        violations.push(violation(history, of_key, &together, now));
                    }
                }
            }
        }
    }
    violations
}

/// An event of a definite-hold interval. The variants are in the order in which the check handles events of the same
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Over,
    /// From now on, the limit of the tenure may be this number.
    Limit(u64),
    Held,
}

/// The events of the tenures of a key in order of time, each with the index of its tenure.
fn events(of_key: &[Tenure<'_>]) -> Vec<(Nanos, Event, usize)> {
    let mut events = Vec::new();
    for (at, tenure) in of_key.iter().enumerate() {
        let Some(held) = tenure.held else { continue };
        events.extend([(held.from, Event::Held, at), (held.to, Event::Over, at)]);
        let limits = tenure.limits().filter(|(start, _)| held.from < *start && *start < held.to);
        events.extend(limits.map(|(start, limit)| (start, Event::Limit(limit), at)));
    }
    events.sort_unstable();
    events
}

/// The tenures of a key that are certainly held.
#[derive(Debug, Default)]
struct Present {
    /// The tenures in the order of their limits. Among tenures with the same limit, the tenure with the latest end
    /// comes first.
    by_limit: BTreeSet<(u64, Reverse<Nanos>, usize)>,
    weight: u64,
}

impl Present {
    fn add(&mut self, of_key: &[Tenure<'_>], at: usize, now: Nanos) {
        self.by_limit.insert(entry(of_key, at, of_key[at].limit_at(now)));
        self.weight += of_key[at].modes.weight;
    }

    fn remove(&mut self, of_key: &[Tenure<'_>], at: usize, now: Nanos) {
        let before = entry(of_key, at, of_key[at].limit_at(now.saturating_sub(1)));
        if self.by_limit.remove(&before) {
            self.weight -= of_key[at].modes.weight;
        }
    }

    fn change_limit(&mut self, of_key: &[Tenure<'_>], at: usize, limit: u64, now: Nanos) {
        self.by_limit.remove(&entry(of_key, at, of_key[at].limit_at(now.saturating_sub(1))));
        self.by_limit.insert(entry(of_key, at, limit));
    }

    /// A small set of tenures whose weights exceed the smallest limit: the new tenure, the tenure with the smallest
    /// limit, and the heaviest other tenures. `None` if all tenures fit.
    fn too_many(&self, of_key: &[Tenure<'_>], new: usize) -> Option<Vec<usize>> {
        let &(limit, _, smallest) = self.by_limit.first().filter(|(limit, ..)| self.weight > *limit)?;
        let mut together = vec![smallest];
        if new != smallest {
            together.push(new);
        }
        let mut others: Vec<_> = self.by_limit.iter().filter(|(.., at)| !together.contains(at)).collect();
        others.sort_by_key(|(_, to, at)| (Reverse(of_key[*at].modes.weight), *to));
        let mut others = others.into_iter();
        while together.iter().map(|&at| of_key[at].modes.weight).sum::<u64>() <= limit {
            together.push(others.next()?.2);
        }
        Some(together)
    }
}

fn entry(of_key: &[Tenure<'_>], at: usize, limit: u64) -> (u64, Reverse<Nanos>, usize) {
    (limit, Reverse(of_key[at].held.map_or(0, |held| held.to)), at)
}

fn violation(history: &History, of_key: &[Tenure<'_>], together: &[usize], now: Nanos) -> Violation {
    let shown = || together.iter().map(|&at| &of_key[at]);
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
