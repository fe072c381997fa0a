//! The tenures of a history, and what is certain about each of them.
//!
//! A key and a granted token identify a tenure. These facts about a tenure are certain:
//!
//! - The tenure existed when its first grant was read, and during the span [`Held`].
//! - The tenure was over at [`Tenure::freed`].
//! - The tenure began after [`Tenure::began_after`].
//! - Its weight was at least [`Modes::weight`], and at most [`Modes::most_weight`].
//! - Its limit at any time was at most [`Tenure::limit_at`], and at least [`Modes::least_limit`].
//!
//! The calls of an owner on a lock come one after another, because each client waits for its reply. But a call without a
//! reply may act at any later time, so fewer facts are certain. After such a call, a workload should
//! use the owner again only in calls that name TOKEN or HOLDS.

use crate::bounds::Bounds;
use crate::history::{Call, History, Mode, Nanos, Operation, Outcome, Token};
use crate::spans::MinFrom;
use std::collections::{BTreeMap, HashMap};

/// A tenure, with the facts that the history shows about it.
#[derive(Debug)]
pub struct Tenure<'h> {
    pub key: &'h str,
    pub token: Token,
    pub owner: &'h str,
    /// The grant that was read first, and the line of this grant.
    pub first: &'h Call,
    pub line: usize,
    /// The grant whose call started last, after its line.
    pub last: (usize, &'h Call),
    /// The earliest start of a call that may have begun the tenure: a granted call, or an acquisition of the owner
    /// without a reply.
    pub began_after: Nanos,
    pub modes: Modes,
    /// The span in which the owner certainly held the tenure.
    pub held: Option<Held>,
    /// From this time on, the tenure was certainly over.
    pub freed: Nanos,
    /// The first release with a reply that left no holds, after the tenure began.
    pub released: Option<Released>,
    /// The earliest start of a release that may have ended the tenure.
    pub maybe_released: Nanos,
}

impl Tenure<'_> {
    /// The largest limit that the tenure can have at `time`.
    pub fn limit_at(&self, time: Nanos) -> u64 {
        let larger = self.modes.larger.iter().take_while(|(start, _)| *start <= time);
        larger.fold(self.modes.limit, |limit, (_, larger)| limit.max(*larger))
    }

    /// The span in which the owner certainly held the tenure, if the whole call lies in it.
    pub fn held_during(&self, call: &Call) -> Option<Held> {
        self.held.filter(|held| held.from <= call.start && call.answered() <= held.to)
    }

    /// Whether this tenure and `other` certainly did not fit together before `until`.
    pub fn excludes(&self, other: &Tenure<'_>, until: Nanos) -> bool {
        self.modes.weight + other.modes.weight > self.limit_at(until).min(other.limit_at(until))
    }
}

/// The definite-hold interval: the owner held the lock at every instant from `from` up to `to`.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub from: Nanos,
    pub to: Nanos,
    /// The line of a call whose lease lasts at least until `to`.
    pub by: usize,
}

/// A release with a reply that left no holds. Releases are ordered by the time of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Released {
    pub end: Nanos,
    pub start: Nanos,
    pub line: usize,
}

/// Facts about the calls of an owner on a lock, except its grants.
#[derive(Default)]
struct OwnerCalls {
    /// For each TOKEN, the starts of the releases that may have ended a tenure, indexed by the time of the reply.
    releases: HashMap<Option<Token>, MinFrom<Nanos>>,
    /// The releases that left no holds, by start.
    nothing_left: MinFrom<Released>,
    /// For each TOKEN: the earliest end of a lease that a renewal without a reply may have set.
    open_renewal: HashMap<Option<Token>, Nanos>,
    /// The latest end of a lease that a call without a reply may have set.
    latest_open: Nanos,
    /// The earliest start of an acquisition without a reply.
    open_acquire: Option<Nanos>,
    /// The modes in calls without a reply.
    open_modes: Vec<Mode>,
    /// The modes in renewals without a reply, each with the TOKEN and the start of the renewal.
    open_claims: Vec<(Option<Token>, Nanos, Mode)>,
}

impl OwnerCalls {
    fn of<'h>(history: &'h History, bounds: &Bounds) -> HashMap<(&'h str, &'h str), Self> {
        let mut all = HashMap::<_, Self>::new();
        for (line, call) in history.calls() {
            let owner_calls = all.entry((call.key.as_str(), call.owner.as_str())).or_default();
            let reach = |lease| bounds.latest_lease_end(call, lease);
            match call.operation {
                Operation::Release { token, .. } => {
                    let left_nothing = call.outcome == Outcome::Left { holds: 0 };
                    if call.is_open() || left_nothing {
                        owner_calls.releases.entry(token).or_default().push(call.answered(), call.start);
                    }
                    if left_nothing {
                        let released = Released { end: call.answered(), start: call.start, line };
                        owner_calls.nothing_left.push(call.start, released);
                    }
                }
                Operation::Renew { lease, token, mode, .. } if call.is_open() => {
                    if let Some(mode) = claimed(token, mode) {
                        owner_calls.open_modes.push(mode);
                        owner_calls.open_claims.push((token, call.start, mode));
                    }
                    let end = call.start.saturating_add(lease);
                    let least = owner_calls.open_renewal.entry(token).or_insert(end);
                    *least = end.min(*least);
                    owner_calls.latest_open = owner_calls.latest_open.max(reach(lease));
                }
                Operation::Acquire { lease, mode, .. } if call.is_open() => {
                    let first = owner_calls.open_acquire.get_or_insert(call.start);
                    *first = call.start.min(*first);
                    owner_calls.open_modes.push(mode);
                    owner_calls.latest_open = owner_calls.latest_open.max(reach(lease));
                }
                Operation::Renew { .. } | Operation::Acquire { .. } | Operation::Write { .. } => {}
            }
        }
        for owner_calls in all.values_mut() {
            owner_calls.releases.values_mut().for_each(MinFrom::index);
            owner_calls.nothing_left.index();
        }
        all
    }
}

/// The mode that a renewal may give to a tenure. A renewal with TOKEN may restore a forgotten tenure, which is
/// exclusive if the renewal names no mode.
fn claimed(token: Option<Token>, mode: Option<Mode>) -> Option<Mode> {
    mode.or(token.map(|_| Mode::EXCLUSIVE))
}

/// The calls with a reply that set the lease of a tenure.
#[derive(Default)]
struct Settings<'h> {
    grants: Vec<(usize, &'h Call, Nanos)>,
    renewals: Vec<(usize, &'h Call, Nanos)>,
}

/// All tenures, sorted by key and token.
pub fn tenures<'h>(history: &'h History, bounds: &Bounds) -> Vec<Tenure<'h>> {
    let mut found = BTreeMap::<(&str, Token), Settings<'_>>::new();
    for (line, call) in history.calls() {
        match (&call.operation, call.granted(), &call.outcome) {
            (Operation::Acquire { lease, .. }, Some((token, _)), _) => {
                found.entry((&call.key, token)).or_default().grants.push((line, call, *lease));
            }
            (Operation::Renew { lease, .. }, None, Outcome::Renewed { token }) => {
                found.entry((&call.key, *token)).or_default().renewals.push((line, call, *lease));
            }
            _ => {}
        }
    }
    let owner_calls = OwnerCalls::of(history, bounds);
    found
        .into_iter()
        .filter_map(|((key, token), settings)| {
            let &(line, first, _) = settings.grants.iter().min_by_key(|(_, call, _)| call.answered())?;
            let &(last_line, last, _) = settings.grants.iter().max_by_key(|(_, call, _)| call.start)?;
            let owner_calls = &owner_calls[&(key, first.owner.as_str())];
            Some(tenure(key, token, [(line, first), (last_line, last)], &settings, owner_calls, bounds))
        })
        .collect()
}

fn tenure<'h>(
    key: &'h str,
    token: Token,
    [(line, first), last]: [(usize, &'h Call); 2],
    settings: &Settings<'h>,
    owner_calls: &OwnerCalls,
    bounds: &Bounds,
) -> Tenure<'h> {
    // If the reply to a release came before the first acquisition of this tenure, the release ended an earlier tenure.
    let maybe_released = [None, Some(token)]
        .iter()
        .filter_map(|named| owner_calls.releases.get(named)?.get(first.start))
        .min()
        .unwrap_or(Nanos::MAX);
    // A release that started after the first reply of this tenure, and that left no holds, ended the tenure, unless the
    // tenure had ended earlier.
    let released = owner_calls.nothing_left.get(first.answered());

    let (lease_end, by) = certain_lease(token, settings, owner_calls);
    let to = lease_end.saturating_sub(bounds.tolerance).min(maybe_released);
    let from = first.answered();
    let held = (from < to).then_some(Held { from, to, by });

    let latest = settings.grants.iter().chain(&settings.renewals);
    let latest = latest.map(|(_, call, lease)| call.answered().saturating_add(*lease)).max();
    let lease_over = latest.unwrap_or(Nanos::MAX).max(owner_calls.latest_open);
    let freed = released.map_or(lease_over, |released| released.end.min(lease_over));
    let began_after = owner_calls.open_acquire.unwrap_or(first.start).min(first.start);
    Tenure {
        key,
        token,
        owner: &first.owner,
        first,
        line,
        last,
        began_after,
        modes: Modes::of(token, first, settings, owner_calls),
        held,
        freed,
        released,
        maybe_released,
    }
}

/// The bounds of the limit and of the weight of a tenure.
///
/// The limit in a granted call is at least the limit of the tenure, because the server refuses a smaller limit. A
/// weight in a granted call is the weight of the tenure. Only a renewal changes the limit, and only a renewal that
/// restores a tenure changes the weight.
#[derive(Debug)]
pub struct Modes {
    /// The smallest weight that the tenure can have.
    pub weight: u64,
    /// The largest limit that the tenure can have had at its beginning.
    limit: u64,
    /// The limits in renewals, sorted by the start of the renewal.
    larger: Vec<(Nanos, u64)>,
    /// The largest weight that the tenure can have.
    pub most_weight: u64,
    /// The smallest limit that the tenure can have.
    pub least_limit: u64,
}

impl Modes {
    fn of(token: Token, first: &Call, settings: &Settings<'_>, owner_calls: &OwnerCalls) -> Self {
        let named = first.mode().unwrap_or_default();
        let answered = settings.renewals.iter().filter_map(|(_, call, _)| {
            let Operation::Renew { token, mode, .. } = call.operation else { return None };
            Some((call.start, claimed(token, mode)?))
        });
        let open = owner_calls.open_claims.iter();
        let open = open.filter(|(named, ..)| named.is_none_or(|named| named == token));
        let claims: Vec<_> = answered.chain(open.map(|&(_, start, mode)| (start, mode))).collect();

        let mut larger: Vec<_> = claims.iter().map(|(start, mode)| (*start, mode.limit())).collect();
        larger.sort_unstable();
        let grants = || settings.grants.iter().filter_map(|(_, call, _)| call.mode());
        let all = || {
            grants().chain(claims.iter().map(|(_, mode)| *mode)).chain(owner_calls.open_modes.iter().copied())
        };
        let weights = claims.iter().map(|(_, mode)| mode.weight).chain([named.weight]);
        Self {
            weight: weights.min().unwrap_or(1).into(),
            limit: named.limit(),
            larger,
            most_weight: all().map(|mode| mode.weight).max().unwrap_or(1).into(),
            least_limit: all().map(Mode::limit).min().unwrap_or(1),
        }
    }
}

/// The earliest time at which the lease may have ended, and the line of the call that shows this time.
///
/// An acquisition never shortens a lease. After an acquisition, the lease lasts at least until the start of the call
/// plus the requested length. After a renewal, the lease lasts at least until the start of the renewal plus its length,
/// even if the earlier lease was longer. So only the last renewal and the acquisitions after this renewal count. A
/// renewal without a reply may be the last renewal too. The function takes the earliest end of all these cases.
fn certain_lease(token: Token, settings: &Settings<'_>, owner_calls: &OwnerCalls) -> (Nanos, usize) {
    let last = settings.renewals.iter().max_by_key(|(_, call, _)| call.start);
    let from = last.map_or(0, |(_, call, _)| call.answered());
    let later = settings.grants.iter().filter(|(_, call, _)| call.start >= from);
    let reach = |(line, call, lease): &(usize, &Call, Nanos)| (call.start.saturating_add(*lease), *line);
    let (answered, line) = later.chain(last).map(reach).max().unwrap_or((0, 0));
    // A renewal without a reply can only make the end earlier. The returned line is always the line of a call with a
    // reply.
    let open =
        [None, Some(token)].into_iter().filter_map(|named| owner_calls.open_renewal.get(&named).copied());
    (open.fold(answered, Nanos::min), line)
}
