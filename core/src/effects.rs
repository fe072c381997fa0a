//! What a step leaves to be done: the effects that somebody else carries out, in one fixed order: store, replicate,
//! notify, wake.

use crate::encoding;
use crate::lock::{Change, End, Lock};
use crate::quarantine::QuarantineMemory;
use crate::token::FencingToken;
use crate::units::Now;
use crate::wait_queues::Waiter;

/// An acquisition that has been granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of the tenure.
    pub token: FencingToken,
    /// How often the owner now holds the lock.
    pub holds: u32,
    /// Whether a hold was counted: not for a repeat.
    pub counted: bool,
}

/// Why a holder's request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotHeld {
    /// Nobody holds the lock.
    Free,
    /// Others hold it, the latest of them with this token.
    ByAnother(FencingToken),
    /// The owner holds it, but with this token and not the one it named.
    OtherToken(FencingToken),
}

/// A request that is answered with an error and has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The owner does not hold the lock.
    NotHeld(NotHeld),
    /// The count that the request should lead to cannot follow from the count the owner has.
    Holds {
        /// The count it has.
        has: u32,
    },
    /// The owner holds the lock as often as can be counted.
    TooManyHolds,
    /// There is no larger fencing token.
    TokensUsedUp,
    /// The named token lies more than a day ahead of the server's clock.
    TokenFarAhead,
}

/// How a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The owner holds the lock.
    Granted(Grant),
    /// The wait limit was reached, or the client was unblocked by hand.
    NotAcquired,
    /// It was its turn, but the request cannot be granted.
    Refused(Refusal),
    /// A later request of the same owner has taken the place.
    Superseded,
    /// The key now holds something else.
    WrongType,
    /// This server may not serve the key any more.
    NotServed,
    /// This server has become a replica.
    BecameReplica,
}

/// Something that happened to a lock, for those who listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A hold was added.
    Acquired,
    /// A hold was given back.
    Released,
    /// The lease was changed.
    Renewed,
    /// The lease was over.
    LeaseOver,
}

/// A waiter that has left the queue and is to be told how its wait ended.
#[derive(Debug)]
pub struct Completion<H> {
    /// The waiter.
    pub waiter: Waiter<H>,
    /// How its wait ended.
    pub outcome: Outcome,
}

/// What a step leaves to be done. Reused from step to step, so that a step need not allocate.
#[derive(Debug)]
pub struct Effects<H> {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Whom to wake, in order.
    pub completions: Vec<Completion<H>>,
    payload: Vec<u8>,
    /// The records at the end of the payload by which one tenure is acquired.
    last: Option<LastRecords>,
    changes: usize,
    verbatim: bool,
    replication_skipped: bool,
    quarantine_memory: QuarantineMemory,
}

/// The records at the end of a payload that are of one tenure: where they begin, and the last of them if it is a count.
#[derive(Debug)]
struct LastRecords {
    token: FencingToken,
    begin: usize,
    count: Option<usize>,
}

impl<H> Default for Effects<H> {
    fn default() -> Self {
        Self {
            events: Vec::new(),
            completions: Vec::new(),
            payload: Vec::new(),
            last: None,
            changes: 0,
            verbatim: false,
            replication_skipped: false,
            quarantine_memory: QuarantineMemory::default(),
        }
    }
}

/// What replicas and the AOF are sent for a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Propagation<'a> {
    /// Nothing: nothing has changed.
    Nothing,
    /// The command as it was given: where it is applied it can only lead to the same.
    Verbatim,
    /// The changes.
    Changes(&'a [u8]),
}

impl<H> Effects<H> {
    /// Forgets everything. Keeps the memory that most steps need, and gives back the rest.
    pub fn clear(&mut self) {
        clear(&mut self.events, 256);
        clear(&mut self.completions, 64);
        clear(&mut self.payload, 4_096);
        self.last = None;
        self.changes = 0;
        self.verbatim = false;
        self.replication_skipped = false;
        self.quarantine_memory = QuarantineMemory::default();
    }

    /// Nobody hears what the step changes: what the changes are need not be told, only that there are any.
    pub const fn skip_replication(&mut self) {
        self.replication_skipped = true;
    }

    /// What this server has seen of the lock's tenures in the step.
    #[must_use]
    pub const fn quarantine_memory(&self) -> QuarantineMemory {
        self.quarantine_memory
    }

    /// The owner of a tenure has named its count of holds.
    pub(crate) fn see_holds_named(&mut self, token: FencingToken) {
        self.quarantine_memory.holds_named = self.quarantine_memory.holds_named.max(Some(token));
    }

    /// The owner of a tenure has renewed it.
    pub(crate) fn see_renewed(&mut self, token: FencingToken) {
        self.quarantine_memory.renewed = self.quarantine_memory.renewed.max(Some(token));
    }

    /// Whether the lock has changed.
    #[must_use]
    pub const fn changed(&self) -> bool {
        self.changes > 0
    }

    /// What replicas and the AOF are sent.
    #[must_use]
    pub fn propagation(&self) -> Propagation<'_> {
        if self.replication_skipped && self.changed() {
            Propagation::Verbatim
        } else if self.payload.is_empty() {
            Propagation::Nothing
        } else if self.verbatim {
            Propagation::Verbatim
        } else {
            Propagation::Changes(&self.payload)
        }
    }

    /// Records one change of `lock`, carries it out, and notes its event.
    ///
    /// Consecutive acquisitions of one tenure, as when its owner re-enters with many waits, are sent to replicas and the AOF as one
    /// change, with the final state.
    #[inline(always)]
    pub(crate) fn change(&mut self, lock: &mut Lock, change: Change, event: Event, now: Now) {
        if event == Event::Acquired && self.events.last() == Some(&Event::Acquired) {
            self.take_back(&change);
        } else {
            self.last = None;
        }
        self.record(&change, now);
        self.events.push(event);
        lock.apply(change, now);
    }

    /// Takes back what `change` says anew of the same tenure: a put says all, a count the count.
    #[inline(never)]
    fn take_back(&mut self, change: &Change) {
        let Some(last) = &self.last else { return };
        let superseded = match change {
            Change::Put(holder) if holder.token == last.token => Some(last.begin),
            Change::Count(token, _) if *token == last.token => last.count,
            Change::Put(_) | Change::Count(..) | Change::End(..) => None,
        };
        if let Some(begin) = superseded {
            self.payload.truncate(begin);
        }
    }

    /// Records changes of `lock` and carries them out together.
    pub(crate) fn change_all(&mut self, lock: &mut Lock, changes: Vec<Change>, now: Now) {
        changes.iter().for_each(|change| self.record(change, now));
        lock.apply_all(changes, now);
    }

    #[inline]
    fn record(&mut self, change: &Change, now: Now) {
        if !self.replication_skipped {
            let begin = self.payload.len();
            let (token, count) = match change {
                Change::Put(holder) => (holder.token, None),
                Change::Count(token, _) => (*token, Some(begin)),
                Change::End(token, _) => (*token, None),
            };
            let begin = self
                .last
                .as_ref()
                .filter(|last| last.token == token)
                .map_or(begin, |last| last.begin.min(begin));
            self.last = Some(LastRecords { token, begin, count });
            encoding::append(&mut self.payload, change, now);
        }
        self.changes = self.changes.saturating_add(1);
        self.verbatim = false;
        match *change {
            Change::End(token, End::Released) => {
                self.quarantine_memory.ended = self.quarantine_memory.ended.max(Some(token))
            }
            Change::End(token, End::LeaseOver) => {
                self.quarantine_memory.ended = self.quarantine_memory.ended.max(token.before())
            }
            Change::Put(_) | Change::Count(..) => {}
        }
    }

    /// Marks the only change so far as one that the command, given again where the same changes were heard, leads to.
    pub(crate) fn replicate_verbatim(&mut self) {
        self.verbatim = self.changes == 1;
    }

    /// For a lock that had a shadow, and whose key is missing elsewhere too: the changes become the whole lock, which
    /// goes back into the keyspace, or that there is no shadow any more.
    pub fn replicate_whole_lock(&mut self, lock: &Lock, now: Now) {
        self.payload.clear();
        self.last = None;
        self.verbatim = false;
        if lock.is_free() {
            encoding::append_dropped_lock(&mut self.payload, None, now);
        } else {
            encoding::append_lock(&mut self.payload, lock, now);
        }
    }
}

/// Empties a list that is used again, and gives back what it has room for beyond `kept`.
fn clear<T>(list: &mut Vec<T>, kept: usize) {
    list.clear();
    list.shrink_to(kept);
}

/// The event that a change heard from a primary stands for.
#[must_use]
pub fn event_of(lock: &Lock, change: &Change) -> Event {
    match change {
        Change::End(_, End::Released) => Event::Released,
        Change::End(_, End::LeaseOver) => Event::LeaseOver,
        Change::Count(token, holds) => {
            let known = lock.holders().find(|known| known.token == *token);
            if known.is_some_and(|known| known.holds > *holds) { Event::Released } else { Event::Acquired }
        }
        Change::Put(holder) => match lock.holder(&holder.owner) {
            Some(known) if known.token == holder.token && known.holds == holder.holds => Event::Renewed,
            _ => Event::Acquired,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_large_step_is_given_back() {
        let mut effects: Effects<u32> = Effects::default();
        let most = |effects: &Effects<u32>| {
            [effects.events.capacity(), effects.completions.capacity(), effects.payload.capacity()]
        };
        effects.events.reserve(10_000);
        effects.completions.reserve(10_000);
        effects.payload.reserve(1_000_000);
        effects.clear();
        assert_eq!(most(&effects), [256, 64, 4_096]);
        effects.clear();
        assert_eq!(most(&effects), [256, 64, 4_096], "the rest is kept");
    }
}
