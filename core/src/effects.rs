//! The effects of a decision. The caller carries out the effects in one fixed order: store, replicate, notify, wake.

use crate::change::{Change, End};
use crate::encoding;
use crate::lock::Lock;
use crate::token::FencingToken;
use crate::units::Now;
use crate::waiter::Completion;
use std::mem;

/// Something that happened to a lock. Clients can subscribe to these events as keyspace events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An owner acquired the lock, or added a hold.
    Acquired,
    /// An owner released a hold.
    Released,
    /// An owner set a new lease.
    Renewed,
    /// A lease was over.
    LeaseOver,
}

/// The effects of one decision. The caller uses the value again for the next decision, so most decisions do not
/// allocate.
#[derive(Debug)]
pub struct Effects<H> {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// The waits that ended, in order.
    pub completions: Vec<Completion<H>>,
    payload: Vec<u8>,
    /// The records of the last acquired tenure, at the end of the payload. A further acquisition of this tenure
    /// replaces the records or the last of them.
    last: Option<LastRecords>,
    changes: usize,
    leased: bool,
    verbatim: bool,
    encoding_skipped: bool,
    /// A large lock whose leases are all over. Freeing such a lock takes long, so the caller frees the lock
    /// in parts.
    pub(crate) discarded: Option<Lock>,
}

/// The records of one tenure at the end of a payload.
#[derive(Debug)]
struct LastRecords {
    token: FencingToken,
    /// Where the first record begins.
    begin: usize,
    /// Where the last record begins, if it is a count.
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
            leased: false,
            verbatim: false,
            encoding_skipped: false,
            discarded: None,
        }
    }
}

/// What the server sends to replicas and the AOF for a decision.
#[derive(Debug, PartialEq, Eq)]
pub enum Propagation<'a> {
    /// Nothing, because nothing has changed.
    Nothing,
    /// The command as the client sent it. The command has the same result on a replica, and when the AOF is
    /// loaded.
    Verbatim,
    /// The changes, encoded.
    Changes(&'a [u8]),
}

impl<H> Effects<H> {
    /// Empties all lists. Keeps the memory that most decisions need, and releases the rest.
    #[inline(always)]
    pub fn clear(&mut self) {
        clear(&mut self.events, 256);
        clear(&mut self.completions, 64);
        clear(&mut self.payload, 4_096);
        self.last = None;
        self.changes = 0;
        self.leased = false;
        self.verbatim = false;
        self.encoding_skipped = false;
    }

    /// Lets this decision count its changes without encoding them, because the server replicates the command itself.
    pub const fn skip_encoding(&mut self) {
        self.encoding_skipped = true;
    }

    /// Whether the lock has changed.
    #[must_use]
    pub const fn changed(&self) -> bool {
        self.changes > 0
    }

    /// Whether a lease has begun, so that the key gets a new TTL.
    #[must_use]
    pub const fn leased(&self) -> bool {
        self.leased
    }

    /// What the server sends to replicas and the AOF.
    #[must_use]
    #[inline]
    pub fn propagation(&self) -> Propagation<'_> {
        if self.encoding_skipped && self.changed() {
            Propagation::Verbatim
        } else if self.payload.is_empty() {
            Propagation::Nothing
        } else if self.verbatim {
            Propagation::Verbatim
        } else {
            Propagation::Changes(&self.payload)
        }
    }

    /// Carries out one change of `lock`, and records it with its event.
    ///
    /// Consecutive acquisitions of one tenure become one record with the final state, for example when an owner
    /// re-enters with many waits.
    #[inline(always)]
    pub(crate) fn change(&mut self, lock: &mut Lock, change: Change, event: Event, now: Now) {
        if event == Event::Acquired && self.events.last() == Some(&Event::Acquired) {
            self.remove_superseded_records(&change);
        } else {
            self.last = None;
        }
        self.record(&change, now);
        self.leased |= change.begins_lease();
        self.events.push(event);
        lock.apply(change, now);
    }

    /// Removes the last records that `change` makes unnecessary: a put replaces all records of its tenure, and a count
    /// replaces an earlier count.
    #[inline(never)]
    fn remove_superseded_records(&mut self, change: &Change) {
        let Some(last) = &self.last else { return };
        let superseded = match change {
            Change::Put(holder) if holder.token == last.token => Some(last.begin),
            Change::Count(token, _) if *token == last.token => last.count,
            Change::Put(_) | Change::Count(..) | Change::End(..) | Change::AllOver => None,
        };
        if let Some(begin) = superseded {
            self.payload.truncate(begin);
        }
    }

    /// Ends all tenures of `lock`, because their leases are over. The caller discards the lock.
    pub(crate) fn all_over(&mut self, lock: &mut Lock, now: Now) {
        self.last = None;
        self.record(&Change::AllOver, now);
        self.events.push(Event::LeaseOver);
        self.discarded = Some(mem::take(lock));
    }

    #[inline]
    fn record(&mut self, change: &Change, now: Now) {
        if !self.encoding_skipped {
            let begin = self.payload.len();
            let acquired = match change {
                Change::Put(holder) => Some((holder.token, None)),
                Change::Count(token, _) => Some((*token, Some(begin))),
                Change::End(..) | Change::AllOver => None,
            };
            self.last = acquired.map(|(token, count)| {
                let same = self.last.as_ref().filter(|last| last.token == token);
                LastRecords { token, begin: same.map_or(begin, |last| last.begin.min(begin)), count }
            });
            encoding::append(&mut self.payload, change, now);
        }
        self.changes = self.changes.saturating_add(1);
        self.verbatim = false;
    }

    /// Replicates the command itself if the decision made one change. A replica that has applied all earlier changes
    /// gets the same result when it runs the command.
    pub(crate) fn replicate_verbatim(&mut self) {
        self.verbatim = self.changes == 1;
    }

    /// Replaces the recorded changes by the whole lock. The changes of a dropped lock are not enough, because replicas
    /// have no key to which they could apply the changes. If the lock is free now, the end of the dropped lock is
    /// replicated.
    pub fn replicate_whole_lock(&mut self, lock: &Lock, now: Now) {
        self.payload.clear();
        self.last = None;
        self.verbatim = false;
        self.encoding_skipped = false;
        if lock.is_free() {
            encoding::append_dropped_lock(&mut self.payload, None, now);
        } else {
            encoding::append_lock(&mut self.payload, lock, now);
        }
    }
}

/// Empties a list, and releases its memory beyond `kept` elements.
#[inline(always)]
fn clear<T>(list: &mut Vec<T>, kept: usize) {
    list.clear();
    if list.capacity() > kept {
        shrink(list, kept);
    }
}

#[inline(never)]
fn shrink<T>(list: &mut Vec<T>, kept: usize) {
    list.shrink_to(kept);
}

/// The event of a change that is not yet applied to `lock`.
#[must_use]
pub fn event_of(lock: &Lock, change: &Change) -> Event {
    match change {
        Change::End(_, End::Released) => Event::Released,
        Change::End(_, End::LeaseOver) | Change::AllOver => Event::LeaseOver,
        Change::Count(token, holds) => {
            let known = lock.of_token(*token);
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
    fn clear_releases_the_memory_of_a_large_decision() {
        let mut effects: Effects<u32> = Effects::default();
        let capacities = |effects: &Effects<u32>| {
            [effects.events.capacity(), effects.completions.capacity(), effects.payload.capacity()]
        };
        effects.events.reserve(10_000);
        effects.completions.reserve(10_000);
        effects.payload.reserve(1_000_000);
        effects.clear();
        assert_eq!(capacities(&effects), [256, 64, 4_096]);
        effects.clear();
        assert_eq!(capacities(&effects), [256, 64, 4_096], "the usual memory is kept");
    }
}
