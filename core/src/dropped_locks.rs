//! Dropped locks: locks that the server evicted or expired before their leases were over.
//!
//! A dropped lock is kept under the name of its key. While the key is missing, decisions use the dropped lock. A name
//! is *unreplicated* from the moment at which its lock is kept or forgotten until the change is sent to replicas and
//! the AOF. If a decision replicates the change at once, the store marks the name as replicated.
//!
//! Memory is short when locks are evicted, so an entry is small: a hash, a key, a lock, and a short key in the same
//! cluster slot. An index by time is not necessary. If clients wait for a dropped lock, a decision is made when its
//! lease ends. Sweeps in the background visit the other dropped locks, in the order of the hashes of their keys. A
//! sweep remembers only the hash of the key that it visited last, and goes on [`after`](DroppedLocks::after) this hash.
//! So the memory of a sweep does not depend on the length of the keys.

use crate::cluster_slot::{SlotKey, slot_key};
use crate::lock::Lock;
use crate::name::{Db, LockName};
use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::mem;
use std::ops::Bound;

/// The position of a sweep: the database and the hash of the key that it visited last.
pub type SweepPosition = (Db, u64);

#[derive(Debug)]
struct DroppedLock {
    key: Box<[u8]>,
    lock: Lock,
    slot_key: Cell<Option<SlotKey>>,
}

/// The dropped locks of one database by the hashes of their keys. Two keys seldom have the same hash.
type ByHash = BTreeMap<u64, Vec<DroppedLock>>;

/// Dropped locks that FLUSHDB or FLUSHALL has ended. The caller frees these locks in parts, because freeing many locks
/// takes long.
#[derive(Debug, Default)]
pub struct FlushedLocks(Vec<ByHash>);

impl FlushedLocks {
    /// Whether all locks are freed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the locks of a further flush.
    pub fn append(&mut self, mut further: Self) {
        self.0.append(&mut further.0);
    }

    /// Frees about `most` locks.
    pub fn free(&mut self, most: usize) {
        for _ in 0..most {
            let Some(of_db) = self.0.last_mut() else { return };
            if of_db.pop_first().is_none() {
                self.0.pop();
            }
        }
    }
}

/// All dropped locks.
#[derive(Debug, Default)]
pub struct DroppedLocks {
    by_db: BTreeMap<Db, ByHash>,
    len: usize,
    unreplicated: BTreeSet<LockName>,
    hasher: RandomState,
}

impl DroppedLocks {
    /// Whether there are no dropped locks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many dropped locks there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The dropped lock of this name.
    #[must_use]
    pub fn get(&self, db: Db, key: &[u8]) -> Option<&Lock> {
        if self.is_empty() {
            return None;
        }
        let of_hash = self.by_db.get(&db)?.get(&self.hasher.hash_one(key))?;
        of_hash.iter().find(|dropped| *dropped.key == *key).map(|dropped| &dropped.lock)
    }

    /// Keeps a lock that the server has just dropped. The name of the lock becomes unreplicated.
    pub fn keep(&mut self, db: Db, key: &[u8], lock: Lock) {
        self.put(db, key, lock);
        self.unreplicated.insert((db, key.into()));
    }

    /// Keeps a lock without marking its name as unreplicated: the lock came from the primary or from a file, or is put
    /// back unchanged.
    pub fn put(&mut self, db: Db, key: &[u8], lock: Lock) {
        let hash = self.hasher.hash_one(key);
        let of_hash = self.by_db.entry(db).or_default().entry(hash).or_insert_with(|| Vec::with_capacity(1));
        match of_hash.iter_mut().find(|dropped| *dropped.key == *key) {
            Some(dropped) => dropped.lock = lock,
            None => {
                of_hash.push(DroppedLock { key: key.into(), lock, slot_key: Cell::new(None) });
                self.len = self.len.saturating_add(1);
            }
        }
    }

    /// Removes a dropped lock. Unlike [`Self::forget`], this function does not mark the name as unreplicated.
    pub fn take(&mut self, db: Db, key: &[u8]) -> Option<Lock> {
        self.remove(db, key).map(|dropped| dropped.lock)
    }

    fn remove(&mut self, db: Db, key: &[u8]) -> Option<DroppedLock> {
        let hash = self.hasher.hash_one(key);
        let of_db = self.by_db.get_mut(&db)?;
        let of_hash = of_db.get_mut(&hash)?;
        let at = of_hash.iter().position(|dropped| *dropped.key == *key)?;
        let removed = of_hash.swap_remove(at);
        if of_hash.is_empty() {
            of_db.remove(&hash);
        }
        if of_db.is_empty() {
            self.by_db.remove(&db);
        }
        self.len = self.len.saturating_sub(1);
        Some(removed)
    }

    /// Removes a dropped lock that has ended. The name of the lock becomes unreplicated.
    #[inline]
    pub fn forget(&mut self, db: Db, key: &[u8]) -> Option<Lock> {
        let DroppedLock { key, lock, .. } = self.remove(db, key)?;
        self.unreplicated.insert((db, key.into()));
        Some(lock)
    }

    /// Whether there are unreplicated names.
    #[must_use]
    pub fn has_unreplicated(&self) -> bool {
        !self.unreplicated.is_empty()
    }

    /// Removes and returns one unreplicated name. The caller replicates the dropped lock of this name, or the end of
    /// this lock.
    pub fn pop_unreplicated(&mut self) -> Option<LockName> {
        self.unreplicated.pop_first()
    }

    /// Records that a decision has replicated the dropped lock of this name, or the end of this lock.
    pub fn mark_replicated(&mut self, db: Db, key: &[u8]) {
        if self.has_unreplicated() {
            self.unreplicated.remove(&(db, key.into()));
        }
    }

    /// Removes the unreplicated locks when this server becomes a replica, because its primary does not know these
    /// locks.
    pub fn drop_unreplicated(&mut self) {
        for (db, key) in mem::take(&mut self.unreplicated) {
            self.take(db, &key);
        }
    }

    /// Removes and returns the dropped locks of a database, or of all databases. The module does not replicate the
    /// removal, because the server itself replicates FLUSHDB and FLUSHALL.
    pub fn flush(&mut self, db: Option<Db>) -> FlushedLocks {
        let Some(db) = db else {
            return FlushedLocks(mem::take(self).by_db.into_values().collect());
        };
        let of_db = self.by_db.remove(&db);
        let flushed = of_db.as_ref().map_or(0, |of_db| of_db.values().map(Vec::len).sum());
        self.len = self.len.saturating_sub(flushed);
        self.unreplicated.retain(|(other, _)| *other != db);
        FlushedLocks(of_db.into_iter().collect())
    }

    /// Exchanges the dropped locks of two databases, after SWAPDB has exchanged the keys.
    pub fn swap(&mut self, one: Db, other: Db) {
        let (first, second) = (self.by_db.remove(&one), self.by_db.remove(&other));
        self.by_db.extend(first.map(|locks| (other, locks)));
        self.by_db.extend(second.map(|locks| (one, locks)));
        let swapped = |(db, key): LockName| (db.swapped(one, other), key);
        self.unreplicated = mem::take(&mut self.unreplicated).into_iter().map(swapped).collect();
    }

    /// The dropped locks that a sweep visits after `last`, each with its position and key. If two keys share a hash and
    /// a sweep stops after the first key, this round of the sweep leaves out the second key.
    pub fn after(&self, last: Option<SweepPosition>) -> impl Iterator<Item = (SweepPosition, &[u8], &Lock)> {
        let from = last.map_or(Bound::Unbounded, |(db, _)| Bound::Included(db));
        self.by_db.range((from, Bound::Unbounded)).flat_map(move |(db, of_db)| {
            let begin = match last {
                Some((first, hash)) if first == *db => Bound::Excluded(hash),
                Some(_) | None => Bound::Unbounded,
            };
            of_db.range((begin, Bound::Unbounded)).flat_map(|(hash, of_hash)| {
                of_hash.iter().map(|dropped| ((*db, *hash), dropped.key.as_ref(), &dropped.lock))
            })
        })
    }

    /// The key at a position of a sweep. If several keys share the hash, returns the first of these keys.
    #[must_use]
    pub fn key_at(&self, position: SweepPosition) -> Option<&[u8]> {
        Some(&self.at(position)?.key)
    }

    /// A short key in the same cluster slot as [`key_at`](Self::key_at). The short key is computed once for each
    /// dropped lock.
    #[must_use]
    pub fn slot_key_at(&self, position: SweepPosition) -> Option<SlotKey> {
        let dropped = self.at(position)?;
        let key = dropped.slot_key.get().unwrap_or_else(|| slot_key(&dropped.key));
        dropped.slot_key.set(Some(key));
        Some(key)
    }

    fn at(&self, (db, hash): SweepPosition) -> Option<&DroppedLock> {
        self.by_db.get(&db)?.get(&hash)?.first()
    }

    /// The databases that have dropped locks.
    pub fn databases(&self) -> impl Iterator<Item = Db> {
        self.by_db.keys().copied()
    }

    /// The dropped locks of one database, each with its key, in no particular order.
    pub fn of(&self, db: Db) -> impl Iterator<Item = (&[u8], &Lock)> {
        let of_db = self.by_db.get(&db).into_iter().flat_map(BTreeMap::values).flatten();
        of_db.map(|dropped| (dropped.key.as_ref(), &dropped.lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::{Holder, Mode};
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
            mode: Mode::EXCLUSIVE,
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
        let mut dropped_locks = DroppedLocks::default();
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
    fn a_kept_lock_is_found_by_its_name_and_taken_once() {
        let mut dropped_locks = kept(&[(ZERO, "k"), (ONE, "k"), (ONE, "l")]);
        assert_eq!(dropped_locks.len(), 3);
        for (db, key, token) in [(ZERO, b"k", 1), (ONE, b"k", 2), (ONE, b"l", 3)] {
            assert_eq!(dropped_locks.get(db, key), Some(&lock(token)));
            assert_eq!(dropped_locks.take(db, key), Some(lock(token)));
            assert_eq!(dropped_locks.take(db, key), None);
            assert_eq!(dropped_locks.get(db, key), None);
        }
        assert!(dropped_locks.is_empty());
        assert_eq!(dropped_locks.databases().count(), 0, "a database without dropped locks has no entry");
    }

    #[test]
    fn a_later_dropped_lock_replaces_the_earlier_one_of_its_name() {
        let mut dropped_locks = kept(&[(ZERO, "k"), (ZERO, "k")]);
        assert_eq!((dropped_locks.len(), dropped_locks.get(ZERO, b"k")), (1, Some(&lock(2))));
        dropped_locks.put(ZERO, b"k", lock(7));
        assert_eq!((dropped_locks.len(), dropped_locks.get(ZERO, b"k")), (1, Some(&lock(7))));
        assert_eq!(unreplicated(&mut dropped_locks), [name(ZERO, "k")], "replicated once");
    }

    #[test]
    fn keep_and_forget_leave_a_name_unreplicated_and_put_and_take_do_not() {
        let mut dropped_locks = DroppedLocks::default();
        assert!(!dropped_locks.has_unreplicated());
        dropped_locks.put(ZERO, b"put", lock(1));
        dropped_locks.take(ZERO, b"put");
        assert_eq!(dropped_locks.forget(ZERO, b"put"), None);
        assert!(!dropped_locks.has_unreplicated());
        dropped_locks.put(ZERO, b"forgotten", lock(2));
        assert_eq!(dropped_locks.forget(ZERO, b"forgotten"), Some(lock(2)));
        dropped_locks.keep(ONE, b"kept", lock(3));
        dropped_locks.keep(ONE, b"replicated", lock(4));
        dropped_locks.mark_replicated(ONE, b"replicated");
        assert!(dropped_locks.has_unreplicated());
        assert_eq!(unreplicated(&mut dropped_locks), [name(ZERO, "forgotten"), name(ONE, "kept")]);
        assert!(!dropped_locks.has_unreplicated());
        dropped_locks.mark_replicated(ONE, b"kept");
        assert_eq!(all(&dropped_locks), [name(ONE, "kept"), name(ONE, "replicated")]);
    }

    #[test]
    fn a_new_replica_keeps_only_the_replicated_locks() {
        let mut dropped_locks = kept(&[(ZERO, "unreplicated")]);
        dropped_locks.put(ZERO, b"replicated", lock(2));
        dropped_locks.drop_unreplicated();
        assert_eq!(all(&dropped_locks), [name(ZERO, "replicated")]);
        assert!(dropped_locks.len() == 1 && !dropped_locks.has_unreplicated());
    }

    #[test]
    fn a_flush_removes_one_database_or_all_and_leaves_nothing_unreplicated() {
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
    fn databases_are_swapped_with_their_unreplicated_names() {
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
        assert_eq!(all(&dropped_locks).len(), 4, "a database exchanged with itself does not change");
        assert_eq!(dropped_locks.len(), 4);
    }

    #[test]
    fn a_sweep_goes_on_after_its_last_position_even_if_that_lock_is_gone() {
        let names = [(ZERO, "a"), (ZERO, "c"), (ZERO, "b"), (ONE, "a"), (TWO, "b")];
        let mut dropped_locks = kept(&names);
        let sweep: Vec<(SweepPosition, LockName)> =
            dropped_locks.after(None).map(|(at, key, _)| (at, (at.0, key.into()))).collect();
        assert_eq!(sweep.len(), names.len());
        assert!(sweep.is_sorted_by(|(earlier, _), (later, _)| earlier < later));
        for (nth, (at, (db, key))) in sweep.iter().enumerate() {
            let left: Vec<LockName> = sweep[nth + 1..].iter().map(|(_, name)| name.clone()).collect();
            assert_eq!(names_after(&dropped_locks, Some(*at)), left);
            dropped_locks.take(*db, key);
            assert_eq!(names_after(&dropped_locks, Some(*at)), left);
        }
    }

    #[test]
    fn keys_that_share_a_hash_are_distinguished() {
        let mut dropped_locks = DroppedLocks::default();
        dropped_locks.put(ZERO, b"k", lock(1));
        let hash = dropped_locks.hasher.hash_one(b"k".as_slice());
        let other = DroppedLock { key: b"other".as_slice().into(), lock: lock(2), slot_key: Cell::new(None) };
        dropped_locks.by_db.get_mut(&ZERO).unwrap().get_mut(&hash).unwrap().push(other);
        dropped_locks.len += 1;
        assert_eq!(dropped_locks.get(ZERO, b"k"), Some(&lock(1)));
        assert_eq!((dropped_locks.after(None).count(), dropped_locks.of(ZERO).count()), (2, 2));
        assert_eq!(dropped_locks.take(ZERO, b"k"), Some(lock(1)));
        assert_eq!((dropped_locks.get(ZERO, b"k"), dropped_locks.len()), (None, 1));
        dropped_locks.flush(Some(ZERO));
        assert!(dropped_locks.is_empty());
    }

    #[test]
    fn the_dropped_locks_of_a_database_are_listed_without_the_others() {
        let dropped_locks = kept(&[(ZERO, "a"), (ONE, "b"), (ONE, "c")]);
        assert_eq!(dropped_locks.databases().collect::<Vec<_>>(), [ZERO, ONE]);
        let of = |db| {
            dropped_locks.of(db).map(|(key, lock)| (key.to_vec(), lock.clone())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(of(ONE), BTreeMap::from([(b"b".to_vec(), lock(2)), (b"c".to_vec(), lock(3))]));
        assert_eq!(of(TWO), BTreeMap::new());
    }
}
