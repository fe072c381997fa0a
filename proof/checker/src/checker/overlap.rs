//! The tenures of a lock never take more of it than each of them allows.

use crate::bounds::Bounds;
use crate::history::{History, Nanos};
use crate::report::ms;
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Claim: at every instant, the weights of the tenures whose definite-hold intervals contain it add up to at most the limit of each of
/// them. For an exclusive lock this says that no two tenures overlap.
///
/// A definite-hold interval begins when the first grant was read. It ends at the start of the first release that may have ended
/// the tenure, or at the time before which the lease cannot have ended, whichever is earlier. The server starts a lease after the
/// call started, so the interval lies within the server's tenure. Tenures whose intervals overlap are held at the same time. A
/// call without a reply can end an interval, but cannot begin one. The weight that is counted is the smallest that a tenure can
/// have, and its limit the largest.
///
/// The claim does not hold where a failover may lose grants.
#[must_use]
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

/// What happens to a definite-hold interval. Of events at the same time, ends come before begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Over,
    /// From now on the limit of the tenure may be this number.
    Limit(u64),
    Held,
}

/// The events of the tenures of a key, in order of time, each with the index of its tenure.
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

/// The tenures that are certainly held.
#[derive(Debug, Default)]
struct Present {
    /// The tenures in the order of their limits. Of tenures with the same limit, the one that is held longest comes first.
    by_limit: BTreeSet<(u64, Reverse<Nanos>, usize)>,
    weight: u64,
}

impl Present {
    fn add(&mut self, of_key: &[Tenure<'_>], at: usize, now: Nanos) {
        self.by_limit.insert(entry(of_key, at, of_key[at].limit_at(now)));
        self.weight += of_key[at].weight;
    }

    fn remove(&mut self, of_key: &[Tenure<'_>], at: usize, now: Nanos) {
        let before = entry(of_key, at, of_key[at].limit_at(now.saturating_sub(1)));
        if self.by_limit.remove(&before) {
            self.weight -= of_key[at].weight;
        }
    }

    fn change_limit(&mut self, of_key: &[Tenure<'_>], at: usize, limit: u64, now: Nanos) {
        self.by_limit.remove(&entry(of_key, at, of_key[at].limit_at(now.saturating_sub(1))));
        self.by_limit.insert(entry(of_key, at, limit));
    }

    /// The fewest tenures that exceed the limit together: the new one, the one with the smallest limit, and the heaviest others.
    /// `None` if all fit.
    fn too_many(&self, of_key: &[Tenure<'_>], new: usize) -> Option<Vec<usize>> {
        let &(limit, _, smallest) = self.by_limit.first().filter(|(limit, ..)| self.weight > *limit)?;
        let mut together = vec![smallest];
        if new != smallest {
            together.push(new);
        }
        let mut others: Vec<_> = self.by_limit.iter().filter(|(.., at)| !together.contains(at)).collect();
        others.sort_by_key(|(_, to, at)| (Reverse(of_key[*at].weight), *to));
        let mut others = others.into_iter();
        while together.iter().map(|&at| of_key[at].weight).sum::<u64>() <= limit {
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
        let weight: u64 = shown().map(|tenure| tenure.weight).sum();
        what += &format!(": a weight of {weight}, and the limit is {limit}");
    }
    Violation::new(Check::Overlap, history, lines, what)
}
