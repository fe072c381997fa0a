//! What has happened to a lock between two readings.
//!
//! A listener uses one connection to receive the events of a lock and to read the lock. So the events that arrive
//! between two replies are exactly the events that the server published between the two readings. Owners and tokens
//! come only from readings. Events tell why a tenure ended.

use std::collections::BTreeMap;
use std::time::Instant;

use super::fact::{Fact, What};
use super::published::Change;
use crate::duration;
use crate::locks::{Holder, Lock};

/// A lock as last read.
pub(super) struct Reading {
    /// The holders by their tokens.
    pub(super) holders: BTreeMap<u64, Holder>,
    /// Whether `holders` has all holders.
    is_complete: bool,
    pub(super) at: Instant,
}

impl Reading {
    /// A reading now. `None` means that nobody holds the lock.
    pub(super) fn of(lock: Option<Lock>) -> Self {
        let (holding, holders) = lock.map_or((0, Vec::new()), |lock| (lock.holding, lock.holders));
        let is_complete = u64::try_from(holders.len()) == Ok(holding);
        let holders = holders.into_iter().map(|holder| (holder.token, holder)).collect();
        Self { holders, is_complete, at: Instant::now() }
    }

    /// Whether the lock has one holder, and is exclusive.
    fn is_exclusive(&self) -> bool {
        self.holders.len() == 1 && self.holders.values().all(|holder| holder.mode.is_exclusive())
    }

    /// Whether the lease of a holder should be over at this time.
    fn is_over(&self, holder: &Holder, at: Instant) -> bool {
        holder.lease_left <= duration::ms(at.saturating_duration_since(self.at))
    }
}

/// What has happened to a lock between two readings, in the order of time. `changes` are the events between the readings.
pub(super) fn facts(key: &[u8], before: &Reading, now: &Reading, changes: &[Change]) -> Vec<Fact> {
    // The holders with the smallest tokens are read first. So a holder that is missing in an incomplete reading may still
    // hold the lock if its token is larger than those in the reading.
    let last = now.holders.last_key_value().map(|(token, _)| *token);
    let departed = before.holders.values().filter(|holder| {
        !now.holders.contains_key(&holder.token) && (now.is_complete || Some(holder.token) < last)
    });
    let mut facts: Vec<Fact> =
        departed.map(|holder| departure(key, holder, before.is_over(holder, now.at), changes)).collect();
    // A holder that was missing in an incomplete reading is not new.
    if !before.is_complete {
        return facts;
    }
    let arrived: Vec<&Holder> =
        now.holders.values().filter(|holder| !before.holders.contains_key(&holder.token)).collect();
    // The changes before the first end are repeated acquisitions by the only holder.
    let own = match before.is_exclusive() {
        true => changes.iter().take_while(|change| change.end().is_none()).count(),
        false => 0,
    };
    let acquired =
        |from: usize| changes.iter().skip(from).filter(|change| **change == Change::Acquired).count();
    let more_holds = now
        .holders
        .values()
        .filter_map(|holder| Some(holder.holds.saturating_sub(before.holders.get(&holder.token)?.holds)));
    let seen = arrived.iter().map(|holder| holder.holds).chain(more_holds).sum::<u64>();
    let unseen = acquired(own).saturating_sub(usize::try_from(seen).unwrap_or(usize::MAX));
    // If the only holder is the same, it has acquired and released again.
    if unseen > 0 && !(before.is_exclusive() && facts.is_empty()) {
        facts.push(Fact { acquisitions: Some(unseen), ..Fact::of(key, What::Unseen) });
    }
    // The newest holders are those of the events.
    let old = arrived.len().saturating_sub(acquired(0));
    let (held, new) = arrived.split_at_checked(old).unwrap_or((&arrived, &[]));
    facts.extend(
        held.iter().map(|holder| Fact {
            held_for: Some(holder.held_for),
            ..Fact::of_holder(key, holder, What::Held)
        }),
    );
    facts.extend(new.iter().map(|holder| Fact::of_holder(key, holder, What::Acquired)));
    facts
}

/// The end of a tenure. Events do not name owners. So events of several kinds do not tell how this tenure ended, and then
/// only the lease tells more. A lease may also be over before its event arrives.
fn departure(key: &[u8], holder: &Holder, is_over: bool, changes: &[Change]) -> Fact {
    let mut ends = changes.iter().filter_map(|change| change.end());
    let only = ends.next().filter(|first| ends.all(|other| other == *first));
    let otherwise = if is_over { Change::Expired.end() } else { None };
    let (what, reason) = only.or(otherwise).unwrap_or((What::Ended, None));
    Fact { reason: reason.map(str::to_owned), ..Fact::of_holder(key, holder, what) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::locks::Mode;
    use crate::text::Name;

    /// A reading of the lock at a time, with `holding` holders. `holders` has the holders in the reply, each with its
    /// owner, token, limit and remaining lease.
    fn reading(ms: u64, holding: u64, holders: &[(&str, u64, u64, u64)]) -> Reading {
        let holders = holders.iter().map(|&(owner, token, slots, lease_left)| Holder {
            owner: Name(owner.into()),
            holds: 1,
            token,
            mode: Mode { slots, weight: 1 },
            lease_left,
            held_for: 5,
        });
        let mode = Mode { slots: 0, weight: holding };
        let lock = Lock { mode, holding, holders: holders.collect(), waiters: 0, queue: None };
        let reading = Reading::of(Some(lock));
        Reading { at: reading.at + Duration::from_millis(ms), ..reading }
    }

    /// The facts about the lock `k`, as lines without their times.
    fn lines(before: &Reading, now: &Reading, events: &[&str]) -> Vec<String> {
        let changes: Vec<_> = events.iter().map(|event| Change::of(event.as_bytes())).collect();
        let facts = facts(b"k", before, now, &changes);
        facts.iter().map(|fact| fact.line().split_at(25).1.replace("  ", " ")).collect()
    }

    #[test]
    fn facts_about_a_chain_of_holders_are_in_order() {
        let (before, now) = (reading(0, 1, &[("A", 1, 1, 1_000)]), reading(50, 1, &[("B", 3, 1, 1_000)]));
        let events = ["lock.acquired", "lock.released", "lock.acquired", "lock.released", "lock.acquired"];
        let told = ["k released A token 1", "k acquired and ended, owner not seen", "k acquired B token 3"];
        assert_eq!(lines(&before, &now, &events), told);
    }

    #[test]
    fn repeated_acquisitions_of_the_only_holder_have_no_lines() {
        let (before, now) = (reading(0, 1, &[("A", 1, 1, 1_000)]), reading(50, 1, &[("A", 1, 1, 1_000)]));
        assert!(lines(&before, &now, &["lock.acquired", "lock.released", "lock.acquired"]).is_empty());
    }

    #[test]
    fn deadlines_tell_which_of_two_holders_is_lost() {
        let (before, now) = (reading(0, 2, &[("A", 1, 0, 50), ("B", 2, 0, 1_000)]), reading(70, 0, &[]));
        let told = ["k lost A token 1 shared lease over", "k ended B token 2 shared"];
        assert_eq!(lines(&before, &now, &["lock.released", "expired"]), told);
    }

    #[test]
    fn a_lease_may_be_over_before_its_event() {
        let (before, now) = (reading(0, 1, &[("A", 1, 1, 50)]), reading(70, 0, &[]));
        assert_eq!(lines(&before, &now, &[]), ["k lost A token 1 lease over"]);
    }

    #[test]
    fn only_the_newest_holders_of_a_new_lock_are_those_of_the_events() {
        let now = reading(50, 2, &[("A", 1, 0, 1_000), ("B", 2, 0, 1_000)]);
        let told = ["k held A token 1 shared held for 5 ms", "k acquired B token 2 shared"];
        assert_eq!(lines(&reading(0, 0, &[]), &now, &["lock.acquired"]), told);
    }

    #[test]
    fn a_holder_missing_in_an_incomplete_reading_is_neither_gone_nor_new() {
        let before = reading(0, 3, &[("A", 1, 0, 1_000), ("B", 2, 0, 1_000)]);
        let now = reading(50, 2, &[("B", 2, 0, 500), ("C", 3, 0, 500)]);
        assert_eq!(lines(&before, &now, &["lock.released"]), ["k released A token 1 shared"]);
        let incomplete = reading(90, 3, &[("B", 2, 0, 500)]);
        assert!(lines(&now, &incomplete, &[]).is_empty());
    }
}
