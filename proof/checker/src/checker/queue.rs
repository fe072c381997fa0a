//! The order of grants is the order of the queue, so no waiter starves.

use super::index::{FaultSpans, IndexedCall, calls_by_owner};
use crate::bounds::Bounds;
use crate::history::{Call, History, Nanos, Operation, Outcome, Token, Wait};
use crate::report::ms;
use crate::spans::MinFrom;
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::cmp::Reverse;
use std::collections::HashMap;

/// How long after its wait limit a kept place still holds back the waits behind it.
pub(super) const HOLDS_BACK: Nanos = 100_000_000;

/// The number of tenures with which [`Arrivals::that_passed_later`] compares a place: the last tenures that were
/// granted before the owner of the place.
const COMPARED: usize = 64;

/// Claim: after a wait was seen in the queue, an owner that arrives later begins no tenure before the wait is granted
/// or reaches its limit. This holds for all kinds of lock: a reader does not pass a writer, and a light request does
/// not pass a heavy request. So no waiter starves.
///
/// [`Call::enqueued`] is the time when the wait was seen. An owner whose first call started after that time is behind
/// the wait. Tokens give the order of grants. A wait without a grant was in the queue up to its limit, so a later
/// owner whose grant was read before the limit has passed the wait.
///
/// With KEEP, the owner's next wait continues the place of the earlier wait. If the owner came back while the place
/// still held back the waits behind it, the two waits count as one. If the owner came back later, or after its
/// connection was closed, other owners may have passed the place while the owner was away. But an owner behind the
/// place that is still in the queue after this return begins its tenure later than the owner of the place. Places are
/// kept in the memory of one server. So the check claims nothing for a place that a fault to the servers, or an
/// operation on them, may have ended.
///
/// Two kinds of calls may pass a waiter. The first kind is a re-entry, so only calls that begin a tenure count. The
/// second kind is a call that continues the place of an earlier wait, so its owner counts as arrived with the earlier
/// wait. A run that tests the order gives each waiter its own owner, so that no wait continues the place of another
/// waiter.
pub fn queue_order_is_grant_order(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let faults = FaultSpans::of(history, bounds);
    let mut arrivals = HashMap::<_, Nanos>::new();
    let mut places = HashMap::<_, Vec<_>>::new();
    for ((key, _), calls) in calls_by_owner(history) {
        first_arrivals(&calls, key, bounds, &mut arrivals);
        places.entry(key).or_default().extend(places_of(&calls, &faults, bounds));
    }

    let tenures = tenures(history, bounds);
    let mut violations = Vec::new();
    for of_key in tenures.chunk_by(|one, other| one.key == other.key) {
        let key = of_key[0].key;
        let arrived = |tenure: &Tenure<'_>| {
            arrivals.get(&(key, tenure.token)).map_or(0, |arrival| tenure.began_after.min(*arrival))
        };
        let all = Arrivals::of(of_key, arrived);
        for place in places.get(key).into_iter().flatten() {
            if let Some(passed) = all.that_passed(place, bounds) {
                let (owner, came) = (&place.call.owner, arrived(passed).saturating_sub(place.first));
                let what = format!(
                    "{owner} was in the queue of {key}, but {} came {} later and was granted the lock first",
                    passed.owner,
                    ms(came)
                );
                let lines = place.lines.iter().copied().chain([passed.line]);
                violations.push(Violation::new(Check::Queue, history, lines, what));
            }
        }
    }
    violations
}

/// A wait, and what is certain about its place in the queue.
#[derive(Clone, Debug)]
struct Place<'h> {
    call: &'h Call,
    /// The lines of the calls that waited at this place, in order.
    lines: Vec<usize>,
    /// When the first wait was seen in the queue.
    first: Nanos,
    /// From this time on, no later owner may pass the place.
    since: Nanos,
}

/// The places of the waits of an owner.
fn places_of<'h>(calls: &[IndexedCall<'h>], faults: &FaultSpans, bounds: &Bounds) -> Vec<Place<'h>> {
    let mut places = Vec::new();
    let mut earlier: Option<Place<'_>> = None;
    for &(line, call) in calls {
        let continued =
            earlier.take().and_then(|earlier| continue_place(&earlier, line, call, faults, bounds));
        let new = || {
            let seen = call.enqueued?;
            Some(Place { call, lines: vec![line], first: seen, since: seen })
        };
        if let Some(place) = continued.or_else(new) {
            earlier = Some(place.clone());
            places.push(place);
        }
    }
    places
}

/// The place of a call, if the call certainly continues the earlier place.
fn continue_place<'h>(
    earlier: &Place<'h>,
    line: usize,
    call: &'h Call,
    faults: &FaultSpans,
    bounds: &Bounds,
) -> Option<Place<'h>> {
    let before = earlier.call;
    let (keep, wait) = before.kept()?;
    let (Operation::Acquire { lease, .. }, Operation::Acquire { holds: Some(_), .. }, true) =
        (&before.operation, &call.operation, call.waits())
    else {
        return None;
    };
    let came = call.enqueued.into_iter().chain(call.granted().map(|_| call.answered())).min()?;
    let reached = before.outcome == Outcome::NotAcquired;
    let left = match wait {
        Wait::Limit(limit) if reached => before.start + limit,
        Wait::Limit(_) | Wait::Unlimited => before.still_waiting.or(before.enqueued)?,
        Wait::No => return None,
    };
    let absent = came.saturating_sub(left) + bounds.tolerance;
    let in_order = before.end.is_some_and(|end| end.max(left) <= call.start);
    // The server may have granted the lock to an owner whose connection was closed, for at most its lease. Such an
    // owner has no place in the queue.
    let may_have_held = !reached && (before.outcome != Outcome::Unknown || absent >= *lease);
    if !in_order || may_have_held || absent >= keep || faults.disturbed_servers(earlier.first, came) {
        return None;
    }
    let since = if reached && absent < HOLDS_BACK { earlier.since } else { came };
    let lines = earlier.lines.iter().copied().chain([line]).collect();
    Some(Place { call, lines, first: earlier.first, since })
}

/// For each tenure of an owner: the earliest time at which the owner may have joined the queue for the tenure. If an
/// earlier wait had no reply, was superseded, or had KEEP, the owner may have joined the queue with that earlier wait.
fn first_arrivals<'h>(
    calls: &[IndexedCall<'h>],
    key: &'h str,
    bounds: &Bounds,
    arrivals: &mut HashMap<(&'h str, Token), Nanos>,
) {
    let mut place: Option<(Nanos, Nanos)> = None;
    for (_, call) in calls {
        if !matches!(call.operation, Operation::Acquire { .. }) {
            continue;
        }
        let kept = place.filter(|(_, until)| *until >= call.start);
        let arrived = kept.map_or(call.start, |(since, _)| since.min(call.start));
        let superseded = matches!(&call.outcome, Outcome::Error(word) if word == "SUPERSEDED");
        if let Some((token, _)) = call.granted() {
            let first = arrivals.entry((key, token)).or_insert(arrived);
            *first = arrived.min(*first);
            place = kept.filter(|(_, until)| *until == Nanos::MAX);
        } else if call.is_open() || superseded {
            place = Some((arrived, Nanos::MAX));
        } else if let Some((keep, _)) = call.kept() {
            let until = call.answered().saturating_add(keep).saturating_add(bounds.tolerance);
            place = Some((arrived, until.max(kept.map_or(0, |(_, until)| until))));
        }
    }
}

/// The tenures of a key, indexed by the arrival of their owners.
struct Arrivals<'t, 'h> {
    /// The tenures in the order of their tokens, each with the arrival of its owner.
    tenures: Vec<(&'t Tenure<'h>, Nanos)>,
    smallest_token: MinFrom<(Token, usize)>,
    first_reply: MinFrom<(Nanos, usize)>,
}

impl<'t, 'h> Arrivals<'t, 'h> {
    fn of(of_key: &'t [Tenure<'h>], arrived: impl Fn(&Tenure<'h>) -> Nanos) -> Self {
        let tenures: Vec<_> = of_key.iter().map(|tenure| (tenure, arrived(tenure))).collect();
        let each = || tenures.iter().enumerate();
        Self {
            smallest_token: each().map(|(at, (tenure, arrived))| (*arrived, (tenure.token, at))).collect(),
            first_reply: each()
                .map(|(at, (tenure, arrived))| (*arrived, (tenure.first.answered(), at)))
                .collect(),
            tenures,
        }
    }

    /// A tenure that has passed a place.
    fn that_passed(&self, place: &Place<'_>, bounds: &Bounds) -> Option<&'t Tenure<'h>> {
        let call = place.call;
        let after = place.since.saturating_add(1);
        let (token, left) = match (call.granted(), &call.operation) {
            (Some((token, _)), _) => (token, 0),
            (None, Operation::Acquire { wait: Wait::Limit(limit), .. })
                if call.outcome == Outcome::NotAcquired =>
            {
                (0, (call.start + limit).saturating_sub(bounds.tolerance))
            }
            _ => return None,
        };
        let earlier = self.smallest_token.get(after).filter(|(other, _)| *other < token);
        let passed = match earlier {
            Some((_, at)) => Some(at),
            None => self.first_reply.get(after).filter(|(answered, _)| *answered < left).map(|(_, at)| at),
        };
        let passed = passed.map(|at| self.tenures[at].0).filter(|passed| passed.owner != call.owner);
        passed.or_else(|| self.that_passed_later(place, token))
    }

    /// A tenure that was granted before the owner of a place, although the tenure's owner was behind the first wait of
    /// the place. The tenure's owner was still in the queue after the owner of the place had come back.
    fn that_passed_later(&self, place: &Place<'_>, token: Token) -> Option<&'t Tenure<'h>> {
        let end = self.tenures.partition_point(|(tenure, _)| tenure.token < token);
        let earlier = self.tenures.get(end.saturating_sub(COMPARED)..end)?;
        let mut earlier: Vec<_> = earlier
            .iter()
            .filter(|(tenure, arrived)| {
                let waited = tenure.first.still_waiting.filter(|_| tenure.began_after == tenure.first.start);
                *arrived > place.first && waited > Some(place.since) && tenure.owner != place.call.owner
            })
            .collect();
        earlier.sort_by_key(|(_, arrived)| Reverse(*arrived));
        Some(earlier.first()?.0)
    }
}
