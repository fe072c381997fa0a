//! The quarantine: a time after a start or a promotion in which the server grants no new tenure.
//!
//! A server that has just started, and a replica that has just been promoted, may lack the last grants before the start
//! or promotion. The server grants no lease that is longer than the quarantine. During the quarantine, holders can
//! re-enter, renew and release, and can restore a lost tenure by its token. When the quarantine is over, the leases of
//! all lost tenures are over too.

use crate::change::End;
use crate::holder::{Load, Mode};
use crate::name::Db;
use crate::token::FencingToken;
use crate::units::{Instant, Span};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::mem;

/// When the quarantine began, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quarantine {
    began: Instant,
    length: Span,
    /// Tenures that began at this instant or earlier are unconfirmed.
    unconfirmed_until: Instant,
}

impl Quarantine {
    /// A quarantine of `length` from `began`. A length of zero is no quarantine.
    #[must_use]
    pub const fn new(began: Instant, length: Span) -> Self {
        Self { began, length, unconfirmed_until: began }
    }

    /// Begins the quarantine again, because the server was promoted.
    pub const fn restart(&mut self, now: Instant) {
        self.began = now;
        self.unconfirmed_until = now;
    }

    /// Marks the tenures in loaded data as unconfirmed. The end of the quarantine does not change.
    pub const fn loaded(&mut self, now: Instant) {
        self.unconfirmed_until = now;
    }

    /// Whether a tenure that began at `since` is from before the quarantine or from loaded data.
    #[must_use]
    pub fn is_unconfirmed(&self, since: Instant) -> bool {
        since <= self.unconfirmed_until
    }

    /// Sets the length, counted from the instant at which the quarantine began.
    pub const fn set_length(&mut self, length: Span) {
        self.length = length;
    }

    /// The instant at which the quarantine ends; `None` when the quarantine is over.
    #[must_use]
    pub fn ends(&self, now: Instant) -> Option<Instant> {
        if self.length == Span::default() {
            return None;
        }
        let end = self.began.after(self.length);
        (now < end).then_some(end)
    }
}

/// What a server has observed of a lock's tenures in this quarantine. The stored lock is not enough: it is from before
/// the quarantine and may be out of date.
///
/// This memory is about the tenures that have ended, the tenures that their owners have renewed, and the tenures whose
/// count of holds their owners have named. A released tenure cannot be restored. If a tenure has ended in any way, the
/// older tenures that do not fit beside it cannot be restored either, because they ended before it was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuarantineMemory {
    /// No tenure with this token or a smaller token can be restored.
    ended_up_to: Option<FencingToken>,
    /// What is known of single tenures; `None` when nothing is known. For most locks only `ended_up_to` is
    /// known. The box keeps the memory of these locks small.
    tenures: Option<Box<Tenures>>,
}

/// What a server has observed of single tenures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Tenures {
    /// For each mode that leaves room for other tenures: the token of the latest ended tenure of this mode.
    ended: BTreeMap<Mode, FencingToken>,
    /// The tenures in `ended` that were released.
    released: BTreeSet<FencingToken>,
    /// Confirmed tenures: their owners have renewed them.
    renewed: BTreeSet<FencingToken>,
    /// Tenures with a confirmed count of holds: their owners have named the count.
    holds_named: BTreeSet<FencingToken>,
}

impl Tenures {
    fn is_empty(&self) -> bool {
        self.ended.is_empty()
            && self.released.is_empty()
            && self.renewed.is_empty()
            && self.holds_named.is_empty()
    }
}

impl QuarantineMemory {
    /// Whether nothing was observed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ended_up_to.is_none() && self.tenures.is_none()
    }

    fn change_tenures(&mut self, change: impl FnOnce(&mut Tenures)) {
        let mut tenures = self.tenures.take().unwrap_or_default();
        change(&mut tenures);
        self.tenures = Some(tenures).filter(|tenures| !tenures.is_empty());
    }

    /// Whether the owner of this tenure has renewed it.
    #[must_use]
    pub fn has_renewed(&self, token: FencingToken) -> bool {
        self.tenures.as_ref().is_some_and(|tenures| tenures.renewed.contains(&token))
    }

    /// Whether the owner of this tenure has named its count of holds.
    #[must_use]
    pub fn has_named_holds(&self, token: FencingToken) -> bool {
        self.tenures.as_ref().is_some_and(|tenures| tenures.holds_named.contains(&token))
    }

    /// Records that the owner of this tenure has renewed it.
    pub fn see_renewed(&mut self, token: FencingToken) {
        self.change_tenures(|tenures| _ = tenures.renewed.insert(token));
    }

    /// Records that the owner of this tenure has named its count of holds.
    pub fn see_holds_named(&mut self, token: FencingToken) {
        self.change_tenures(|tenures| _ = tenures.holds_named.insert(token));
    }

    /// Records that a tenure has ended at this server. A released tenure cannot be restored. A tenure whose lease was
    /// over can be restored, because its owner may have renewed it at another server.
    pub fn see_ended(&mut self, token: FencingToken, mode: Mode, end: End) {
        if !mode.admits_others() {
            return self.end_up_to(match end {
                End::Released => Some(token),
                End::LeaseOver => token.before(),
            });
        }
        self.change_tenures(|tenures| {
            tenures.renewed.remove(&token);
            tenures.holds_named.remove(&token);
            let latest = tenures.ended.entry(mode).or_insert(token);
            *latest = token.max(*latest);
            if end == End::Released {
                tenures.released.insert(token);
            }
        });
    }

    /// Records that no tenure with this token or a smaller token can be restored any more.
    pub fn end_up_to(&mut self, token: Option<FencingToken>) {
        if token <= self.ended_up_to {
            return;
        }
        self.ended_up_to = token;
        self.forget_tenures_ended();
    }

    /// Records that all holders have lost the lock. `last` is the largest of their tokens. RESTORE can store a tenure
    /// that had ended before, so a holder may have a token that this memory already counts as ended.
    pub fn see_all_ended(&mut self, last: Option<FencingToken>) {
        self.end_up_to(last);
        self.forget_tenures_ended();
    }

    fn forget_tenures_ended(&mut self) {
        let ended = self.ended_up_to;
        if self.tenures.is_some() {
            self.change_tenures(|tenures| {
                let is_later = |other: &FencingToken| Some(*other) > ended;
                tenures.ended.retain(|_, other| is_later(other));
                tenures.released.retain(is_later);
                tenures.renewed.retain(is_later);
                tenures.holds_named.retain(is_later);
            });
        }
    }

    /// Forgets the ended tenures up to this token. The caller records for all locks together that no tenure up to this
    /// token can be restored.
    pub(crate) fn forget_up_to(&mut self, token: Option<FencingToken>) {
        if token >= self.ended_up_to {
            self.end_up_to(token);
            self.ended_up_to = None;
        }
    }

    /// The number of entries for ended tenures.
    pub(crate) fn ended_entries(&self) -> usize {
        self.tenures.as_ref().map_or(0, |tenures| tenures.ended.len().saturating_add(tenures.released.len()))
    }

    /// The largest token of an ended tenure.
    #[must_use]
    pub fn last_ended(&self) -> Option<FencingToken> {
        let of_modes = self.tenures.as_ref().and_then(|tenures| tenures.ended.values().max());
        self.ended_up_to.max(of_modes.copied())
    }

    /// Whether a tenure with this token and mode can be restored, judged by the tenures that have ended at this server.
    #[must_use]
    pub fn may_restore(&self, token: FencingToken, mode: Mode) -> bool {
        let admits = |tenures: &Tenures| {
            !tenures.released.contains(&token)
                && tenures
                    .ended
                    .iter()
                    .all(|(ended, latest)| *latest <= token || Load::of(*ended).admits(mode))
        };
        self.ended_up_to < Some(token) && self.tenures.as_deref().is_none_or(admits)
    }
}

/// At most this many locks and ended tenures, counted together, have their own entries in [`QuarantineMemories`]. The
/// entries take at most 20 MB.
pub const MOST_ENTRIES: usize = 200_000;

/// What this server has observed of each lock in this quarantine.
#[derive(Debug, Default)]
pub struct QuarantineMemories {
    /// Locks are found by the hash of the key, so that an entry for a long key takes no more memory than an entry for a
    /// short key. Two locks with the same hash share one entry. A shared entry is safe, because no token is given
    /// twice: at worst, the server restores or confirms too few tenures.
    by_lock: HashMap<(Db, u64), QuarantineMemory>,
    /// The sum of [`QuarantineMemory::ended_entries`] over all locks in `by_lock`.
    ended_entries: usize,
    /// For each database that was flushed: the largest token given before the flush. The key `None` stands for all
    /// databases. When there are too many entries, the end of a tenure gets no entry, but raises the value of `None` to
    /// its token.
    flushed: HashMap<Option<Db>, FencingToken>,
    hasher: RandomState,
}

impl QuarantineMemories {
    /// The number of locks and ended tenures, counted together.
    pub fn entries(&self) -> usize {
        self.by_lock.len().saturating_add(self.ended_entries)
    }

    /// The largest token up to which all tenures of the database have ended.
    fn floor(&self, db: Db) -> Option<FencingToken> {
        [None, Some(db)].into_iter().filter_map(|db| self.flushed.get(&db)).copied().max()
    }

    /// What is remembered of a lock.
    pub fn get(&self, db: Db, key: &[u8]) -> QuarantineMemory {
        let mut known = self.by_lock.get(&(db, self.hasher.hash_one(key))).cloned().unwrap_or_default();
        known.end_up_to(self.floor(db));
        known
    }

    /// Removes and returns what is remembered of a lock.
    #[inline(never)]
    pub fn take(&mut self, db: Db, key: &[u8]) -> QuarantineMemory {
        let mut known = self.by_lock.remove(&(db, self.hasher.hash_one(key))).unwrap_or_default();
        self.ended_entries = self.ended_entries.saturating_sub(known.ended_entries());
        known.end_up_to(self.floor(db));
        known
    }

    /// Stores what is remembered of a lock.
    #[inline(never)]
    pub fn put(&mut self, db: Db, key: &[u8], mut known: QuarantineMemory) {
        if self.entries().saturating_add(known.ended_entries()) >= MOST_ENTRIES
            && let Some(ended) = known.last_ended()
        {
            let floor = self.flushed.entry(None).or_insert(ended);
            *floor = ended.max(*floor);
            known.end_up_to(Some(ended));
        }
        known.forget_up_to(self.floor(db));
        if !known.is_empty() {
            self.ended_entries = self.ended_entries.saturating_add(known.ended_entries());
            self.by_lock.insert((db, self.hasher.hash_one(key)), known);
        }
    }

    /// Whether nothing was observed of any lock.
    pub fn is_empty(&self) -> bool {
        self.by_lock.is_empty()
    }

    /// One database has been flushed, or all databases if `db` is `None`. All tenures up to the token `last` have
    /// ended.
    pub fn flush(&mut self, db: Option<Db>, last: FencingToken) {
        self.flushed.insert(db, last);
    }

    /// Two databases have been swapped.
    pub fn swap(&mut self, one: Db, other: Db) {
        let swapped = |db: Db| db.swapped(one, other);
        self.by_lock = mem::take(&mut self.by_lock)
            .into_iter()
            .map(|((db, key), known)| ((swapped(db), key), known))
            .collect();
        self.flushed =
            mem::take(&mut self.flushed).into_iter().map(|(db, token)| (db.map(swapped), token)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::{Slots, Weight};

    const EXCLUSIVE: (u32, u32) = (1, 1);
    const READER: (u32, u32) = (0, 1);

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn mode((slots, weight): (u32, u32)) -> Mode {
        Mode::new(Slots::new(slots).unwrap(), Weight::new(weight).unwrap()).unwrap()
    }

    #[test]
    fn a_released_tenure_stays_ended_and_so_do_older_ones_that_do_not_fit_beside_an_ended_one() {
        use End::{LeaseOver, Released};
        for (ended, claim, may_be_restored) in [
            ((5, EXCLUSIVE, Released), (5, EXCLUSIVE), false),
            ((5, EXCLUSIVE, Released), (4, READER), false),
            ((5, EXCLUSIVE, Released), (6, EXCLUSIVE), true),
            ((5, EXCLUSIVE, LeaseOver), (5, EXCLUSIVE), true),
            ((5, EXCLUSIVE, LeaseOver), (4, READER), false),
            ((5, READER, Released), (5, READER), false),
            ((5, READER, Released), (4, READER), true),
            ((5, READER, Released), (4, EXCLUSIVE), false),
            ((5, READER, LeaseOver), (5, READER), true),
            ((5, READER, LeaseOver), (4, EXCLUSIVE), false),
            ((5, (8, 5), Released), (4, (8, 3)), true),
            ((5, (8, 5), Released), (4, (8, 4)), false),
            ((5, (8, 5), Released), (4, (5, 1)), false),
            ((5, (8, 8), Released), (4, (9, 1)), false),
        ] {
            let mut memory = QuarantineMemory::default();
            memory.see_ended(token(ended.0), mode(ended.1), ended.2);
            let may = memory.may_restore(token(claim.0), mode(claim.1));
            assert_eq!(may, may_be_restored, "{claim:?} after {ended:?}");
        }
    }

    #[test]
    fn the_end_of_one_reader_leaves_the_others() {
        let mut memory = QuarantineMemory::default();
        (1..=3).for_each(|number| memory.see_renewed(token(number)));
        memory.see_holds_named(token(2));
        memory.see_ended(token(2), mode(READER), End::Released);
        assert_eq!([1, 2, 3].map(|number| memory.has_renewed(token(number))), [true, false, true]);
        assert!(!memory.has_named_holds(token(2)) && memory.last_ended() == Some(token(2)));
        assert!(memory.may_restore(token(1), mode(READER)) && memory.may_restore(token(3), mode(READER)));
        memory.see_ended(token(3), mode(EXCLUSIVE), End::LeaseOver);
        assert!(!memory.has_renewed(token(1)) && !memory.may_restore(token(1), mode(READER)));
        memory.see_ended(token(9), mode(READER), End::LeaseOver);
        memory.see_ended(token(8), mode(READER), End::LeaseOver);
        let may_restore = |number, of| memory.may_restore(token(number), mode(of));
        assert!(may_restore(8, READER) && may_restore(9, READER) && may_restore(9, EXCLUSIVE));
        assert!(!may_restore(8, EXCLUSIVE));
        assert_eq!(memory.ended_entries(), 1, "leases that end take one entry for each mode");
    }

    #[test]
    fn nothing_is_left_of_a_tenure_that_was_stored_again_after_its_end() {
        let mut memory = QuarantineMemory::default();
        memory.end_up_to(FencingToken::new(9));
        memory.see_renewed(token(7));
        memory.see_holds_named(token(7));
        memory.see_all_ended(FencingToken::new(7));
        assert!(memory.tenures.is_none() && memory.last_ended() == Some(token(9)));
    }

    #[test]
    fn nothing_is_left_when_all_that_was_observed_is_forgotten() {
        let mut memory = QuarantineMemory::default();
        memory.see_renewed(token(5));
        memory.see_holds_named(token(6));
        assert!(!memory.is_empty());
        memory.forget_up_to(FencingToken::new(7));
        assert!(memory.is_empty());
    }
}
