//! A freed lock reaches a waiter in time.

use super::index::{FaultSpans, calls_by_owner};
use super::queue::HOLDS_BACK;
use crate::bounds::Bounds;
use crate::history::{Call, History, Nanos, Operation, Outcome, Wait};
use crate::report::ms;
use crate::spans::{Spans, grouped};
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::collections::{BTreeMap, BTreeSet};

/// Claim: a wait that begins a tenure has its reply within [`Bounds::handoff`]. This time counts from the start of the
/// wait, or from the instant at which all earlier tenures had begun and the wait fitted beside them, whichever is
/// later.
///
/// The earlier tenures are those with smaller tokens. Each of them was over at the reply to a release that left no
/// holds, or at the end of the last lease that a call may have set. The wait fitted as soon as enough earlier tenures
/// were over: the other tenures left room for the wait, even with their largest possible weights and smallest possible
/// limits. From that time on the server had to grant the wait, except in these cases:
///
/// - Another owner held the lock by a grant that is not in the history. Only an acquisition without a reply can get
///   such a grant.
/// - A kept place held the wait back.
/// - The wait was behind another request that did not fit, while other owners still held the lock.
/// - A fault may have delayed the reply.
///
/// In these cases the check claims nothing. The first and the last case depend on [`Bounds::settle`].
pub fn a_freed_lock_reaches_a_waiter(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let faults = FaultSpans::of(history, bounds);
    let unseen = unseen_tenures(history, bounds);
    let held_back = HeldBack::of(history, bounds);

    let tenures = tenures(history, bounds);
    let mut violations = Vec::new();
    for of_key in tenures.chunk_by(|one, other| one.key == other.key) {
        let mut earlier = Earlier::default();
        for (at, tenure) in of_key.iter().enumerate() {
            let wait = tenure.first;
            let in_its_way = earlier.in_the_way_of(of_key, tenure);
            let fitted = earlier.fitted(of_key, tenure, &in_its_way);
            let is_free = earlier.all_over(fitted);
            let latest = earlier.latest;
            earlier.add(at, tenure);
            let Some(latest) = latest.filter(|_| wait.waits()) else { continue };
            let late = wait.answered() > fitted.saturating_add(bounds.handoff);
            let excused = || {
                let overlaps = |spans: &BTreeMap<&str, Spans>| {
                    spans.get(tenure.key).is_some_and(|spans| spans.overlap(fitted, wait.answered()))
                };
                faults.may_delay(wait.client, fitted, wait.answered())
                    || overlaps(&unseen)
                    || overlaps(if is_free { &held_back.by_places } else { &held_back.by_waits })
            };
            if late && !excused() {
                let before = if in_its_way.is_empty() { vec![latest.1] } else { in_its_way };
                let before: Vec<_> = before.into_iter().map(|at| &of_key[at]).collect();
                violations.push(violation(history, &before, tenure, fitted));
            }
        }
    }
    violations
}

fn violation(history: &History, before: &[&Tenure<'_>], tenure: &Tenure<'_>, fitted: Nanos) -> Violation {
    let what = format!(
        "{} was free for {}, which waited, but the reply came {} later",
        tenure.key,
        tenure.owner,
        ms(tenure.first.answered() - fitted)
    );
    let lines = before.iter().flat_map(|before| {
        let freed_by = before.released.filter(|released| released.end == before.freed);
        [Some(before.line), freed_by.map(|released| released.line)].into_iter().flatten()
    });
    let lines = lines.chain([tenure.line]);
    Violation::new(Check::Promptness, history, lines, what)
}

/// The tenures of a key with smaller tokens than the tenure that is checked next.
#[derive(Debug, Default)]
struct Earlier {
    /// Sorted by the time from which each tenure was certainly over. Tenures that were over when an exclusive tenure
    /// began are left out.
    freed: BTreeSet<(Nanos, usize)>,
    /// The index of the tenure whose first grant was read last, and the time of this read.
    latest: Option<(Nanos, usize)>,
}

impl Earlier {
    fn add(&mut self, at: usize, tenure: &Tenure<'_>) {
        let begun = tenure.first.answered();
        self.latest = self.latest.max(Some((begun, at)));
        if tenure.modes.weight >= tenure.limit_at(begun) {
            self.freed.clear();
        }
        self.freed.insert((tenure.freed, at));
    }

    /// The tenures that left no room for `tenure` together, the latest end first. As soon as the tenure at the end of
    /// this list was over, the other tenures left room. The list is empty if there was always room.
    fn in_the_way_of(&self, of_key: &[Tenure<'_>], tenure: &Tenure<'_>) -> Vec<usize> {
        let (mut weight, mut limit) = (tenure.modes.most_weight, tenure.modes.least_limit);
        let mut those = Vec::new();
        for &(_, at) in self.freed.iter().rev() {
            those.push(at);
            weight = weight.saturating_add(of_key[at].modes.most_weight);
            limit = limit.min(of_key[at].modes.least_limit);
            if weight > limit {
                return those;
            }
        }
        Vec::new()
    }

    /// The earliest time at which the call of `tenure` had started, `tenure` fitted, and all earlier tenures had begun.
    fn fitted(&self, of_key: &[Tenure<'_>], tenure: &Tenure<'_>, in_its_way: &[usize]) -> Nanos {
        let ended = in_its_way.last().map_or(0, |&at| of_key[at].freed);
        let begun = self.latest.map_or(0, |(begun, _)| begun);
        ended.max(begun).max(tenure.first.start)
    }

    /// Whether all earlier tenures were over at `time`.
    fn all_over(&self, time: Nanos) -> bool {
        self.freed.last().is_none_or(|(freed, _)| *freed <= time)
    }
}

/// For each key, the spans in which waits that were not granted may have held back the waits behind them.
struct HeldBack<'h> {
    /// The spans that count while other owners hold the lock. In these spans the waits were in the queue, or their
    /// places were kept after the waits.
    by_waits: BTreeMap<&'h str, Spans>,
    /// The spans that count while the lock is free. In these spans the waits had ended, and their places were kept.
    by_places: BTreeMap<&'h str, Spans>,
}

impl<'h> HeldBack<'h> {
    fn of(history: &'h History, bounds: &Bounds) -> Self {
        let (mut waits, mut places) = (Vec::new(), Vec::new());
        for ((key, _), calls) in calls_by_owner(history) {
            for (at, (_, call)) in calls.iter().enumerate() {
                if !call.waits() || call.granted().is_some() {
                    continue;
                }
                let end = call.end.unwrap_or(Nanos::MAX);
                let kept = if call.kept().is_some() { HOLDS_BACK + bounds.tolerance } else { 0 };
                // The owner's next wait takes over the place, if the next wait has HOLDS and has reached the server.
                let takes_it = |next: &Call| {
                    let named = matches!(next.operation, Operation::Acquire { holds: Some(_), .. });
                    named && next.waits() && !next.is_open()
                };
                let back = calls[at + 1..].iter().find(|(_, next)| takes_it(next));
                let back = back.map_or(Nanos::MAX, |(_, next)| next.start.saturating_add(bounds.handoff));
                let over = end.saturating_add(kept).min(back.max(end));
                waits.push((key, (call.start, over)));
                if let (Some((_, Wait::Limit(limit))), true) =
                    (call.kept(), call.outcome == Outcome::NotAcquired)
                {
                    let left = (call.start + limit).saturating_sub(bounds.tolerance);
                    places.push((key, (left, over)));
                }
            }
        }
        Self { by_waits: grouped(waits), by_places: grouped(places) }
    }
}

/// For each key, the spans in which a tenure may have existed without a grant in the history.
fn unseen_tenures<'h>(history: &'h History, bounds: &Bounds) -> BTreeMap<&'h str, Spans> {
    grouped(calls_by_owner(history).into_iter().filter_map(|((key, _), calls)| {
        let is_open = |call: &Call| call.mode().is_some() && call.is_open();
        let leases = calls.iter().filter_map(|(_, call)| match call.operation {
            Operation::Renew { lease, .. } => Some(bounds.latest_lease_end(call, lease)),
            Operation::Acquire { lease, .. } => is_open(call).then(|| bounds.latest_lease_end(call, lease)),
            Operation::Release { .. } | Operation::Write { .. } => None,
        });
        let over = leases.max().unwrap_or(0);
        let open = calls.iter().filter(|(_, call)| is_open(call));
        Some((key, (open.map(|(_, call)| call.start).min()?, over)))
    }))
}
