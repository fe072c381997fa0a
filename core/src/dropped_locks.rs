//! Shadows: tenures that the server has dropped from the keyspace before their leases were over.
//!
//! They stand under the names of the keys they had, and say what a lock is for as long as its key is missing. What
//! replicas and the AOF have not been told of yet is remembered: a shadow that was kept or forgotten. A change that is
//! told at once, because a step led to it, is not among that.
//!
//! Small on purpose, as there are many when memory is short: a hash, a name and a lock. Nothing is indexed by time. Whoever
//! waits for a lock has its line looked at when a lease ends; the others are met in turn, in the order of the hashes of their
//! names, by rounds that go on [`after`](Shadows::after) where they were. So a round remembers a number and no name, however
//! long the names are.

use crate::lock::Lock;
use crate::name::{Db, LockName};
use crate::slot::{SlotKey, slot_key};
use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::mem;
use std::ops::Bound;

/// Where a round through all shadows is: the database and the hash of the key that it has come to.
pub type SweepPosition = (Db, u64);

/// One shadow.
#[derive(Debug)]
struct Shadow {
    key: Box<[u8]>,
    lock: Lock,
    slot_key: Cell<Option<SlotKey>>,
}

/// The shadows of one database by the hashes of their keys. Nearly always there is one of a hash.
type ByHash = BTreeMap<u64, Vec<Shadow>>;

/// All shadows.
#[derive(Debug, Default)]
pub struct DroppedLocks {
    kept: BTreeMap<Db, ByHash>,
    len: usize,
    unreplicated: BTreeSet<LockName>,
    hasher: RandomState,
}

impl DroppedLocks {
    /// None at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The shadow of a lock.
    #[must_use]
    pub fn get(&self, db: Db, key: &[u8]) -> Option<&Lock> {
        if self.is_empty() {
            return None;
        }
        let of_hash = self.kept.get(&db)?.get(&self.hasher.hash_one(key))?;
        of_hash.iter().find(|dropped_lock| *dropped_lock.key == *key).map(|dropped_lock| &dropped_lock.lock)
    }

    /// Keeps a lock that the server has just dropped. Replicas and the AOF are to be told.
    pub fn keep(&mut self, db: Db, key: &[u8], lock: Lock) {
        self.put(db, key, lock);
        self.unreplicated.insert((db, key.into()));
    }

    /// Keeps a lock of which nobody needs to be told: a primary or a file has told of it, or it was here before.
    pub fn put(&mut self, db: Db, key: &[u8], lock: Lock) {
        let hash = self.hasher.hash_one(key);
        let of_hash = self.kept.entry(db).or_default().entry(hash).or_insert_with(|| Vec::with_capacity(1));
        match of_hash.iter_mut().find(|dropped_lock| *dropped_lock.key == *key) {
            Some(dropped_lock) => dropped_lock.lock = lock,
            None => {
                of_hash.push(Shadow { key: key.into(), lock, slot_key: Cell::new(None) });
                self.len = self.len.saturating_add(1);
            }
        }
    }

    /// Takes the shadow of a lock.
    pub fn take(&mut self, db: Db, key: &[u8]) -> Option<Lock> {
        self.take_shadow(db, key).map(|dropped_lock| dropped_lock.lock)
    }

    fn take_shadow(&mut self, db: Db, key: &[u8]) -> Option<Shadow> {
        let hash = self.hasher.hash_one(key);
        let of_db = self.kept.get_mut(&db)?;
        let of_hash = of_db.get_mut(&hash)?;
        let at = of_hash.iter().position(|dropped_lock| *dropped_lock.key == *key)?;
        let dropped_lock = of_hash.swap_remove(at);
        if of_hash.is_empty() {
            of_db.remove(&hash);
        }
        if of_db.is_empty() {
            self.kept.remove(&db);
        }
        self.len = self.len.saturating_sub(1);
        Some(dropped_lock)
    }

    /// Takes the shadow of a lock that has been broken. Replicas and the AOF are to be told.
    #[inline]
    pub fn forget(&mut self, db: Db, key: &[u8]) -> Option<Lock> {
        let Shadow { key, lock, .. } = self.take_shadow(db, key)?;
        self.unreplicated.insert((db, key.into()));
        Some(lock)
    }

    /// Whether there is something that replicas and the AOF have not been told of.
    #[must_use]
    pub fn has_unreplicated(&self) -> bool {
        !self.unreplicated.is_empty()
    }

    /// Takes the name of one lock whose shadow, or that it has none any more, is to be told.
    pub fn pop_unreplicated(&mut self) -> Option<LockName> {
        self.unreplicated.pop_first()
    }

    /// What became of a shadow has been told.
    pub fn mark_replicated(&mut self, db: Db, key: &[u8]) {
        if self.has_unreplicated() {
            self.unreplicated.remove(&(db, key.into()));
        }
    }

    /// Forgets those that nobody was told of: this server follows another now, which knows nothing of them.
    pub fn drop_unreplicated(&mut self) {
        for (db, key) in mem::take(&mut self.unreplicated) {
            self.take(db, &key);
        }
    }

    /// Forgets the shadows of a database, or of all: it was flushed, which is told by itself.
    pub fn flush(&mut self, db: Option<Db>) {
        let Some(db) = db else {
            *self = Self::new();
            return;
        };
        let flushed = self.kept.remove(&db).map_or(0, |of_db| of_db.values().map(Vec::len).sum());
        self.len = self.len.saturating_sub(flushed);
        self.unreplicated.retain(|(other, _)| *other != db);
    }

    /// Exchanges the shadows of two databases, as SWAPDB exchanged their keys.
    pub fn swap(&mut self, one: Db, other: Db) {
        let (first, second) = (self.kept.remove(&one), self.kept.remove(&other));
        self.kept.extend(first.map(|locks| (other, locks)));
        self.kept.extend(second.map(|locks| (one, locks)));
        let swapped = |(db, key): LockName| (db.swapped(one, other), key);
        self.unreplicated = mem::take(&mut self.unreplicated).into_iter().map(swapped).collect();
    }

    /// The shadows behind `last` in a round through all, each with where the round is then. If two keys share a hash, a round that is
    /// interrupted there sees only the first.
    pub fn after(&self, last: Option<SweepPosition>) -> impl Iterator<Item = (SweepPosition, &[u8], &Lock)> {
        let from = last.map_or(Bound::Unbounded, |(db, _)| Bound::Included(db));
        self.kept.range((from, Bound::Unbounded)).flat_map(move |(db, of_db)| {
            let begin = match last {
                Some((first, hash)) if first == *db => Bound::Excluded(hash),
                Some(_) | None => Bound::Unbounded,
            };
            of_db.range((begin, Bound::Unbounded)).flat_map(|(hash, of_hash)| {
                of_hash
                    .iter()
                    .map(|dropped_lock| ((*db, *hash), dropped_lock.key.as_ref(), &dropped_lock.lock))
            })
        })
    }

    /// The key at a position of the round. Of keys that share a hash, the first.
    #[must_use]
    pub fn key_at(&self, position: SweepPosition) -> Option<&[u8]> {
        Some(&self.at(position)?.key)
    }

    /// A short key of the same cluster slot as [`key_at`](Self::key_at). Found once for each dropped lock.
    #[must_use]
    pub fn slot_key_at(&self, position: SweepPosition) -> Option<SlotKey> {
        let dropped_lock = self.at(position)?;
        let key = dropped_lock.slot_key.get().unwrap_or_else(|| slot_key(&dropped_lock.key));
        dropped_lock.slot_key.set(Some(key));
        Some(key)
    }

    fn at(&self, (db, hash): SweepPosition) -> Option<&Shadow> {
        self.kept.get(&db)?.get(&hash)?.first()
    }

    /// The databases that have any.
    pub fn databases(&self) -> impl Iterator<Item = Db> {
        self.kept.keys().copied()
    }

    /// The shadows of one database, each with its key, in no useful order.
    pub fn of(&self, db: Db) -> impl Iterator<Item = (&[u8], &Lock)> {
        let of_db = self.kept.get(&db).into_iter().flat_map(BTreeMap::values).flatten();
        of_db.map(|dropped_lock| (dropped_lock.key.as_ref(), &dropped_lock.lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::{Holder, Slots};
    use crate::owner::Owner;
    use crate::token::FencingToken;
    use crate::units::{Instant, WallTime};

    const ZERO: Db = Db(0);
    const ONE: Db = Db(1);
    const TWO: Db = Db(2);

    fn lock(token: u64) -> Lock {
        let holder = Holder {
            owner: Owner::new(b"A").unwrap(),
            holds: 1,
            slots: Slots::EXCLUSIVE,
            token: FencingToken::new(token).unwrap(),
            deadline: Instant::from_micros(9),
            since: Instant::from_micros(0),
        };
        Lock::held_by(vec![holder], WallTime::EPOCH).unwrap()
    }

    fn name(db: Db, key: &str) -> LockName {
        (db, key.as_bytes().into())
    }

    fn kept(names: &[(Db, &str)]) -> DroppedLocks {
        let mut dropped_locks = DroppedLocks::new();
        for ((db, key), token) in names.iter().zip(1..) {
            dropped_locks.keep(*db, key.as_bytes(), lock(token));
        }
        dropped_locks
    }

    fn unreplicated(dropped_locks: &mut DroppedLocks) -> Vec<LockName> {
        std::iter::from_fn(|| dropped_locks.pop_unreplicated()).collect()
    }

    fn names_after(dropped_locks: &DroppedLocks, last: Option<SweepPosition>) -> Vec<LockName> {
        dropped_locks.after(last).map(|((db, _), key, _)| (db, key.into())).collect()
    }

    fn all(dropped_locks: &DroppedLocks) -> Vec<LockName> {
        let mut names = names_after(dropped_locks, None);
        names.sort();
        names
    }

    #[test]
    fn what_is_kept_is_found_under_its_name_and_taken_once() {
        let mut dropped_locks = kept(&[(ZERO, "k"), (ONE, "k"), (ONE, "l")]);
        assert_eq!(dropped_locks.len(), 3);
        for (db, key, token) in [(ZERO, b"k", 1), (ONE, b"k", 2), (ONE, b"l", 3)] {
            assert_eq!(dropped_locks.get(db, key), Some(&lock(token)));
            assert_eq!(dropped_locks.take(db, key), Some(lock(token)));
            assert_eq!(dropped_locks.take(db, key), None);
            assert_eq!(dropped_locks.get(db, key), None);
        }
        assert!(dropped_locks.is_empty());
        assert_eq!(dropped_locks.databases().count(), 0, "a database without shadows is not remembered");
    }

    #[test]
    fn a_later_shadow_of_a_lock_takes_the_place_of_the_earlier() {
        let mut dropped_locks = kept(&[(ZERO, "k"), (ZERO, "k")]);
        assert_eq!((dropped_locks.len(), dropped_locks.get(ZERO, b"k")), (1, Some(&lock(2))));
        dropped_locks.put(ZERO, b"k", lock(7));
        assert_eq!((dropped_locks.len(), dropped_locks.get(ZERO, b"k")), (1, Some(&lock(7))));
        assert_eq!(unreplicated(&mut dropped_locks), [name(ZERO, "k")], "told once");
    }

    #[test]
    fn what_was_kept_or_forgotten_is_to_be_told_and_what_was_put_or_taken_is_not() {
        let mut dropped_locks = DroppedLocks::new();
        assert!(!dropped_locks.has_unreplicated());
        dropped_locks.put(ZERO, b"put", lock(1));
        dropped_locks.take(ZERO, b"put");
        assert_eq!(dropped_locks.forget(ZERO, b"put"), None);
        assert!(!dropped_locks.has_unreplicated());
        dropped_locks.put(ZERO, b"forgotten", lock(2));
        assert_eq!(dropped_locks.forget(ZERO, b"forgotten"), Some(lock(2)));
        dropped_locks.keep(ONE, b"kept", lock(3));
        dropped_locks.keep(ONE, b"told", lock(4));
        dropped_locks.mark_replicated(ONE, b"told");
        assert!(dropped_locks.has_unreplicated());
        assert_eq!(unreplicated(&mut dropped_locks), [name(ZERO, "forgotten"), name(ONE, "kept")]);
        assert!(!dropped_locks.has_unreplicated());
        dropped_locks.mark_replicated(ONE, b"kept");
        assert_eq!(all(&dropped_locks), [name(ONE, "kept"), name(ONE, "told")]);
    }

    #[test]
    fn a_server_that_follows_keeps_what_all_know() {
        let mut dropped_locks = kept(&[(ZERO, "untold")]);
        dropped_locks.put(ZERO, b"told", lock(2));
        dropped_locks.drop_unreplicated();
        assert_eq!(all(&dropped_locks), [name(ZERO, "told")]);
        assert!(dropped_locks.len() == 1 && !dropped_locks.has_unreplicated());
    }

    #[test]
    fn a_flush_forgets_one_database_or_all_and_needs_no_telling() {
        let names = [(ZERO, "k"), (ONE, "k"), (ONE, "l"), (TWO, "k")];
        let mut dropped_locks = kept(&names);
        dropped_locks.flush(Some(ONE));
        assert_eq!(dropped_locks.len(), 2);
        assert_eq!(all(&dropped_locks), [name(ZERO, "k"), name(TWO, "k")]);
        dropped_locks.flush(Some(ONE));
        assert_eq!(dropped_locks.len(), 2);
        assert_eq!(unreplicated(&mut dropped_locks), [name(ZERO, "k"), name(TWO, "k")]);
        let mut dropped_locks = kept(&names);
        dropped_locks.flush(None);
        assert!(dropped_locks.is_empty() && !dropped_locks.has_unreplicated());
    }

    #[test]
    fn databases_are_swapped_with_what_is_to_be_told() {
        let mut dropped_locks = kept(&[(ZERO, "k"), (ZERO, "l"), (ONE, "m"), (TWO, "n")]);
        dropped_locks.swap(ZERO, ONE);
        let swapped = [name(ZERO, "m"), name(ONE, "k"), name(ONE, "l"), name(TWO, "n")];
        assert_eq!(
            (all(&dropped_locks), unreplicated(&mut dropped_locks)),
            (swapped.to_vec(), swapped.to_vec())
        );
        dropped_locks.swap(TWO, Db(3));
        assert_eq!(all(&dropped_locks).last(), Some(&name(Db(3), "n")));
        dropped_locks.swap(ONE, ONE);
        assert_eq!(all(&dropped_locks).len(), 4, "a database exchanged with itself stays as it is");
        assert_eq!(dropped_locks.len(), 4);
    }

    #[test]
    fn a_round_goes_on_where_it_was_though_that_is_gone() {
        let names = [(ZERO, "a"), (ZERO, "c"), (ZERO, "b"), (ONE, "a"), (TWO, "b")];
        let mut dropped_locks = kept(&names);
        let round: Vec<(SweepPosition, LockName)> =
            dropped_locks.after(None).map(|(at, key, _)| (at, (at.0, key.into()))).collect();
        assert_eq!(round.len(), names.len());
        assert!(round.is_sorted_by(|(earlier, _), (later, _)| earlier < later));
        for (nth, (at, (db, key))) in round.iter().enumerate() {
            let left: Vec<LockName> = round[nth + 1..].iter().map(|(_, name)| name.clone()).collect();
            assert_eq!(names_after(&dropped_locks, Some(*at)), left);
            dropped_locks.take(*db, key);
            assert_eq!(names_after(&dropped_locks, Some(*at)), left);
        }
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut dropped_locks = DroppedLocks::new();
        dropped_locks.put(ZERO, b"k", lock(1));
        let hash = dropped_locks.hasher.hash_one(b"k".as_slice());
        let other = Shadow { key: b"other".as_slice().into(), lock: lock(2), slot_key: Cell::new(None) };
        dropped_locks.kept.get_mut(&ZERO).unwrap().get_mut(&hash).unwrap().push(other);
        dropped_locks.len += 1;
        assert_eq!(dropped_locks.get(ZERO, b"k"), Some(&lock(1)));
        assert_eq!((dropped_locks.after(None).count(), dropped_locks.of(ZERO).count()), (2, 2));
        assert_eq!(dropped_locks.take(ZERO, b"k"), Some(lock(1)));
        assert_eq!((dropped_locks.get(ZERO, b"k"), dropped_locks.len()), (None, 1));
        dropped_locks.flush(Some(ZERO));
        assert!(dropped_locks.is_empty());
    }

    #[test]
    fn the_shadows_of_a_database_are_told_apart_from_the_others() {
        let dropped_locks = kept(&[(ZERO, "a"), (ONE, "b"), (ONE, "c")]);
        assert_eq!(dropped_locks.databases().collect::<Vec<_>>(), [ZERO, ONE]);
        let of = |db| {
            dropped_locks.of(db).map(|(key, lock)| (key.to_vec(), lock.clone())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(of(ONE), BTreeMap::from([(b"b".to_vec(), lock(2)), (b"c".to_vec(), lock(3))]));
        assert_eq!(of(TWO), BTreeMap::new());
    }
}
