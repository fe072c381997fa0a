//! The tenures that a history shows, and what is certain about each.
//!
//! A tenure is a key and a token that an acquisition was granted. Three things can be said of it for certain, whatever
//! activity between the reading of one reply and the next:
//!
//! - It was there when its first grant was read, and for as long as [`Held`] says.
//! - It was over at [`Tenure::freed`].
//! - If nothing of its owner is open, it began after [`Tenure::earliest`].
//!
//! A call without an answer may act at any later time, so it can only take certainty away. That is why owners that got
//! no answer should not be used again without naming TOKEN or HOLDS: nothing could be said of them any more.

use crate::bounds::Bounds;
use crate::history::{Call, History, Operation, Nanos, Outcome, Token};
use crate::spans::MinFrom;
use std::collections::{BTreeMap, HashMap};

/// A tenure, as far as the history shows it.
#[derive(Debug)]
pub(crate) struct Tenure<'h> {
    pub(crate) key: &'h str,
    pub(crate) token: Token,
    pub(crate) owner: &'h str,
    /// The grant that was read first, and its line.
    pub(crate) first: &'h Call,
    pub(crate) line: usize,
    /// The earliest start of all its grants.
    pub(crate) earliest: Nanos,
    /// When it was certainly there.
    pub(crate) held: Option<Held>,
    /// From then on it was certainly over.
    pub(crate) freed: Nanos,
    /// The first answered release that left nothing, after it began.
    pub(crate) released: Option<Released>,
    /// The earliest start of a release that can have been its last.
    pub(crate) maybe_released: Nanos,
}

/// The definite-hold interval: the owner held the lock at every instant from `from` up to `to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    /// The line of the call whose lease reaches so far.
    pub(crate) by: usize,
}

/// An answered release that left nothing. The one that was answered first is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Released {
    pub(crate) end: Nanos,
    pub(crate) start: Nanos,
    pub(crate) line: usize,
}

/// What an owner did to a lock, group_calls from being granted it.
#[derive(Default)]
struct OwnerCalls {
    /// Releases that can have been a last one: when they were answered, when they started. By the token they name.
    last: HashMap<Option<Token>, Vec<(Nanos, Nanos)>>,
    /// Releases that left nothing, by start.
    nothing_left: Vec<(Nanos, Released)>,
    /// Of the renewals without an answer, by the token they name: the earliest end of a lease.
    open_renewal: HashMap<Option<Token>, Nanos>,
    /// The latest end of a lease that a call without an answer can have set.
    latest_open: Nanos,
}

impl OwnerCalls {
    fn of<'h>(history: &'h History, bounds: &Bounds) -> HashMap<(&'h str, &'h str), Self> {
        let mut all = HashMap::<_, Self>::new();
        for (line, call) in history.calls() {
            let owner_calls = all.entry((call.key.as_str(), call.owner.as_str())).or_default();
            let reach = |lease| match call.end {
                Some(end) => end.saturating_add(bounds.settle).saturating_add(lease),
                None => Nanos::MAX,
            };
            match call.operation {
                Operation::Release { token, .. } => {
                    let left_nothing = call.outcome == Outcome::Left { holds: 0 };
                    if call.is_open() || left_nothing {
                        owner_calls.last.entry(token).or_default().push((call.answered(), call.start));
                    }
                    if left_nothing {
                        let released = Released { end: call.answered(), start: call.start, line };
                        owner_calls.nothing_left.push((call.start, released));
                    }
                }
                Operation::Renew { lease, token, .. } if call.is_open() => {
                    let end = call.start.saturating_add(lease);
                    let least = owner_calls.open_renewal.entry(token).or_insert(end);
                    *least = end.min(*least);
                    owner_calls.latest_open = owner_calls.latest_open.max(reach(lease));
                }
                Operation::Acquire { lease, .. } if call.is_open() => {
                    owner_calls.latest_open = owner_calls.latest_open.max(reach(lease));
                }
                Operation::Renew { .. } | Operation::Acquire { .. } => {}
            }
        }
        all
    }
}

/// The same, ready to be asked.
struct Answers {
    last: HashMap<Option<Token>, MinFrom<Nanos>>,
    nothing_left: MinFrom<Released>,
    open_renewal: HashMap<Option<Token>, Nanos>,
    latest_open: Nanos,
}

impl From<OwnerCalls> for Answers {
    fn from(owner_calls: OwnerCalls) -> Self {
        Self {
            last: owner_calls.last.into_iter().map(|(token, all)| (token, all.into_iter().collect())).collect(),
            nothing_left: owner_calls.nothing_left.into_iter().collect(),
            open_renewal: owner_calls.open_renewal,
            latest_open: owner_calls.latest_open,
        }
    }
}

/// The calls that set the lease of a tenure and were answered.
#[derive(Default)]
struct Settings<'h> {
    grants: Vec<(usize, &'h Call, Nanos)>,
    renewals: Vec<(usize, &'h Call, Nanos)>,
}

/// All tenures, by key and rising token.
pub(crate) fn tenures<'h>(history: &'h History, bounds: &Bounds) -> Vec<Tenure<'h>> {
    let mut found = BTreeMap::<(&str, Token), Settings<'_>>::new();
    for (line, call) in history.calls() {
        match (&call.operation, call.granted(), &call.outcome) {
            (Operation::Acquire { lease, .. }, Some((token, _)), _) => {
                found.entry((&call.key, token)).or_default().grants.push((line, call, *lease));
            }
            (Operation::Renew { lease, .. }, None, Outcome::Renewed { token }) => {
                found.entry((&call.key, *token)).or_default().renewals.push((line, call, *lease));
            }
            (Operation::Acquire { .. } | Operation::Release { .. } | Operation::Renew { .. }, _, _) => {}
        }
    }
    let owner_calls: HashMap<_, Answers> =
        OwnerCalls::of(history, bounds).into_iter().map(|(who, owner_calls)| (who, owner_calls.into())).collect();
    found
        .into_iter()
        .filter_map(|((key, token), settings)| {
            let &(line, first, _) = settings.grants.iter().min_by_key(|(_, call, _)| call.answered())?;
            let owner_calls = &owner_calls[&(key, first.owner.as_str())];
            Some(tenure(key, token, (line, first), &settings, owner_calls, bounds))
        })
        .collect()
}

fn tenure<'h>(
    key: &'h str,
    token: Token,
    (line, first): (usize, &'h Call),
    settings: &Settings<'h>,
    owner_calls: &Answers,
    bounds: &Bounds,
) -> Tenure<'h> {
    let earliest = settings.grants.iter().map(|(_, call, _)| call.start).min().unwrap_or(first.start);
    // A release that was answered before the first grant was asked for ended an earlier tenure.
    let maybe_released = [None, Some(token)]
        .iter()
        .filter_map(|named| owner_calls.last.get(named)?.get(earliest))
        .min()
        .unwrap_or(Nanos::MAX);
    // Whatever this release ended: the tenure was there before it started, and the owner holds nothing after it.
    let released = owner_calls.nothing_left.get(first.answered());

    let (lease_end, by) = certain_lease(token, settings, owner_calls);
    let to = lease_end.saturating_sub(bounds.tolerance).min(maybe_released);
    let from = first.answered();
    let held = (from < to).then_some(Held { from, to, by });

    let latest = settings.grants.iter().chain(&settings.renewals);
    let latest = latest.map(|(_, call, lease)| call.answered().saturating_add(*lease)).max();
    let lease_over = latest.unwrap_or(Nanos::MAX).max(owner_calls.latest_open);
    let freed = released.map_or(lease_over, |released| released.end.min(lease_over));
    Tenure { key, token, owner: &first.owner, first, line, earliest, held, freed, released, maybe_released }
}

/// The instant before which the lease cannot have ended, and the call that shows it.
///
/// An acquisition never shortens a lease, so each reaches at least from its start over its lease; only a renewal can cut
/// that short, to no less than its own start and lease. So, given which renewal was the last to act, the lease reaches as
/// far as that renewal or any acquisition that surely came after it. The last can be any without an answer, or any that
/// no other renewal surely followed: the least of all these cases is certain.
fn certain_lease(token: Token, settings: &Settings<'_>, owner_calls: &Answers) -> (Nanos, usize) {
    let reach = |(line, call, lease): &(usize, &Call, Nanos)| (call.start.saturating_add(*lease), *line);
    let mut grants: Vec<_> =
        settings.grants.iter().map(|grant| (grant.1.start, std::cmp::Reverse(reach(grant)))).collect();
    grants.sort_unstable();
    let furthest: MinFrom<_> = grants.into_iter().collect();
    let furthest_from = |from| furthest.get(from).map(|std::cmp::Reverse(reach)| reach);

    let open = [None, Some(token)].into_iter().filter_map(|named| owner_calls.open_renewal.get(&named).copied());
    let last_start = settings.renewals.iter().map(|(_, call, _)| call.start).max();
    let answered = match last_start {
        None => furthest_from(0),
        Some(last_start) => settings
            .renewals
            .iter()
            .filter(|(_, call, _)| call.answered() >= last_start)
            .map(|renewal| {
                let after = furthest_from(renewal.1.answered().saturating_add(1));
                after.map_or(reach(renewal), |after| after.max(reach(renewal)))
            })
            .min(),
    };
    // An open one only takes certainty away: what shows how far the lease reaches is the answered one.
    let (reach, line) = answered.unwrap_or((0, 0));
    (open.fold(reach, Nanos::min), line)
}
