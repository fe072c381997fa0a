//! Shadows: tenures that the server has dropped from the keyspace before their leases were over.
//!
//! They stand under the names of the keys they had, and say what a lock is for as long as its key is missing. What
//! replicas and the AOF have not been told of yet is remembered: a shadow that was kept or forgotten. A change that is
//! told at once, because a step led to it, is not among that.
//!
//! Small on purpose, as there are many when memory is short: a name, and a lock of its own allocation. Nothing is
//! indexed by time. Whoever waits for a lock has its line looked at when a lease ends; the others are met in turn, in
//! the order of their names, by rounds that go on [`after`](Shadows::after) where they were.

use crate::lock::Lock;
use crate::waiting::Db;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Bound;

/// The name of a lock: its database and key.
pub type Name = (Db, Box<[u8]>);

/// All shadows.
#[derive(Debug, Default)]
pub struct Shadows {
    kept: BTreeMap<Db, BTreeMap<Box<[u8]>, Box<Lock>>>,
    len: usize,
    untold: BTreeSet<Name>,
}

impl Shadows {
    /// None at all.
    #[must_use]
    pub const fn new() -> Self {
        Self { kept: BTreeMap::new(), len: 0, untold: BTreeSet::new() }
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
        self.kept.get(&db)?.get(key).map(Box::as_ref)
    }

    /// Keeps a lock that the server has just dropped. Replicas and the AOF are to be told.
    pub fn keep(&mut self, db: Db, key: &[u8], lock: Lock) {
        self.put(db, key, lock);
        self.untold.insert((db, key.into()));
    }

    /// Keeps a lock of which nobody needs to be told: a primary or a file has told of it, or it was here before.
    pub fn put(&mut self, db: Db, key: &[u8], lock: Lock) {
        if self.kept.entry(db).or_default().insert(key.into(), Box::new(lock)).is_none() {
            self.len = self.len.saturating_add(1);
        }
    }

    /// Takes the shadow of a lock.
    pub fn take(&mut self, db: Db, key: &[u8]) -> Option<Lock> {
        let locks = self.kept.get_mut(&db)?;
        let lock = locks.remove(key)?;
        if locks.is_empty() {
            self.kept.remove(&db);
        }
        self.len = self.len.saturating_sub(1);
        Some(*lock)
    }

    /// Takes the shadow of a lock that has been broken. Replicas and the AOF are to be told.
    #[inline]
    pub fn forget(&mut self, db: Db, key: &[u8]) -> Option<Lock> {
        let lock = self.take(db, key)?;
        self.untold.insert((db, key.into()));
        Some(lock)
    }

    /// Whether there is something that replicas and the AOF have not been told of.
    #[must_use]
    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Takes the name of one lock whose shadow, or that it has none any more, is to be told.
    pub fn pop_untold(&mut self) -> Option<Name> {
        self.untold.pop_first()
    }

    /// What became of a shadow has been told.
    pub fn told(&mut self, db: Db, key: &[u8]) {
        if self.has_untold() {
            self.untold.remove(&(db, key.into()));
        }
    }

    /// Forgets those that nobody was told of: this server follows another now, which knows nothing of them.
    pub fn drop_untold(&mut self) {
        for (db, key) in mem::take(&mut self.untold) {
            self.take(db, &key);
        }
    }

    /// Forgets the shadows of a database, or of all: it was flushed, which is told by itself.
    pub fn flush(&mut self, db: Option<Db>) {
        let Some(db) = db else {
            *self = Self::new();
            return;
        };
        let flushed = self.kept.remove(&db).map_or(0, |locks| locks.len());
        self.len = self.len.saturating_sub(flushed);
        self.untold.retain(|(other, _)| *other != db);
    }

    /// Exchanges the shadows of two databases, as SWAPDB exchanged their keys.
    pub fn swap(&mut self, one: Db, other: Db) {
        let (first, second) = (self.kept.remove(&one), self.kept.remove(&other));
        self.kept.extend(first.map(|locks| (other, locks)));
        self.kept.extend(second.map(|locks| (one, locks)));
        let swapped = |(db, key): Name| (db.swapped(one, other), key);
        self.untold = mem::take(&mut self.untold).into_iter().map(swapped).collect();
    }

    /// The names behind `last` in a round through all.
    pub fn after<'a>(&'a self, last: Option<&Name>) -> impl Iterator<Item = Name> + use<'a> {
        let (from, behind) = match last {
            None => (Bound::Unbounded, None),
            Some((db, key)) => (Bound::Included(*db), Some((*db, key.clone()))),
        };
        self.kept.range((from, Bound::Unbounded)).flat_map(move |(db, locks)| {
            let begin = match &behind {
                Some((first, key)) if first == db => Bound::Excluded(key.clone()),
                Some(_) | None => Bound::Unbounded,
            };
            locks.range((begin, Bound::Unbounded)).map(|(key, _)| (*db, key.clone()))
        })
    }

    /// The databases that have any.
    pub fn databases(&self) -> impl Iterator<Item = Db> {
        self.kept.keys().copied()
    }

    /// The shadows of one database, by their keys.
    pub fn of(&self, db: Db) -> impl Iterator<Item = (&[u8], &Lock)> {
        self.kept.get(&db).into_iter().flatten().map(|(key, lock)| (key.as_ref(), lock.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Holder, Slots};
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

    fn name(db: Db, key: &str) -> Name {
        (db, key.as_bytes().into())
    }

    fn kept(names: &[(Db, &str)]) -> Shadows {
        let mut shadows = Shadows::new();
        for ((db, key), token) in names.iter().zip(1..) {
            shadows.keep(*db, key.as_bytes(), lock(token));
        }
        shadows
    }

    fn untold(shadows: &mut Shadows) -> Vec<Name> {
        std::iter::from_fn(|| shadows.pop_untold()).collect()
    }

    fn all(shadows: &Shadows) -> Vec<Name> {
        shadows.after(None).collect()
    }

    #[test]
    fn what_is_kept_is_found_under_its_name_and_taken_once() {
        let mut shadows = kept(&[(ZERO, "k"), (ONE, "k"), (ONE, "l")]);
        assert_eq!(shadows.len(), 3);
        for (db, key, token) in [(ZERO, b"k", 1), (ONE, b"k", 2), (ONE, b"l", 3)] {
            assert_eq!(shadows.get(db, key), Some(&lock(token)));
            assert_eq!(shadows.take(db, key), Some(lock(token)));
            assert_eq!(shadows.take(db, key), None);
            assert_eq!(shadows.get(db, key), None);
        }
        assert!(shadows.is_empty());
        assert_eq!(shadows.databases().count(), 0, "a database without shadows is not remembered");
    }

    #[test]
    fn a_later_shadow_of_a_lock_takes_the_place_of_the_earlier() {
        let mut shadows = kept(&[(ZERO, "k"), (ZERO, "k")]);
        assert_eq!((shadows.len(), shadows.get(ZERO, b"k")), (1, Some(&lock(2))));
        shadows.put(ZERO, b"k", lock(7));
        assert_eq!((shadows.len(), shadows.get(ZERO, b"k")), (1, Some(&lock(7))));
        assert_eq!(untold(&mut shadows), [name(ZERO, "k")], "told once");
    }

    #[test]
    fn what_was_kept_or_forgotten_is_to_be_told_and_what_was_put_or_taken_is_not() {
        let mut shadows = Shadows::new();
        assert!(!shadows.has_untold());
        shadows.put(ZERO, b"put", lock(1));
        shadows.take(ZERO, b"put");
        assert_eq!(shadows.forget(ZERO, b"put"), None);
        assert!(!shadows.has_untold());
        shadows.put(ZERO, b"forgotten", lock(2));
        assert_eq!(shadows.forget(ZERO, b"forgotten"), Some(lock(2)));
        shadows.keep(ONE, b"kept", lock(3));
        shadows.keep(ONE, b"told", lock(4));
        shadows.told(ONE, b"told");
        assert!(shadows.has_untold());
        assert_eq!(untold(&mut shadows), [name(ZERO, "forgotten"), name(ONE, "kept")]);
        assert!(!shadows.has_untold());
        shadows.told(ONE, b"kept");
        assert_eq!(all(&shadows), [name(ONE, "kept"), name(ONE, "told")]);
    }

    #[test]
    fn a_server_that_follows_keeps_what_all_know() {
        let mut shadows = kept(&[(ZERO, "untold")]);
        shadows.put(ZERO, b"told", lock(2));
        shadows.drop_untold();
        assert_eq!(all(&shadows), [name(ZERO, "told")]);
        assert!(shadows.len() == 1 && !shadows.has_untold());
    }

    #[test]
    fn a_flush_forgets_one_database_or_all_and_needs_no_telling() {
        let names = [(ZERO, "k"), (ONE, "k"), (ONE, "l"), (TWO, "k")];
        let mut shadows = kept(&names);
        shadows.flush(Some(ONE));
        assert_eq!(shadows.len(), 2);
        assert_eq!(all(&shadows), [name(ZERO, "k"), name(TWO, "k")]);
        shadows.flush(Some(ONE));
        assert_eq!(shadows.len(), 2);
        assert_eq!(untold(&mut shadows), [name(ZERO, "k"), name(TWO, "k")]);
        let mut shadows = kept(&names);
        shadows.flush(None);
        assert!(shadows.is_empty() && !shadows.has_untold());
    }

    #[test]
    fn databases_are_swapped_with_what_is_to_be_told() {
        let mut shadows = kept(&[(ZERO, "k"), (ZERO, "l"), (ONE, "m"), (TWO, "n")]);
        shadows.swap(ZERO, ONE);
        let swapped = [name(ZERO, "m"), name(ONE, "k"), name(ONE, "l"), name(TWO, "n")];
        assert_eq!((all(&shadows), untold(&mut shadows)), (swapped.to_vec(), swapped.to_vec()));
        shadows.swap(TWO, Db(3));
        assert_eq!(all(&shadows).last(), Some(&name(Db(3), "n")));
        shadows.swap(ONE, ONE);
        assert_eq!(all(&shadows).len(), 4, "a database exchanged with itself stays as it is");
        assert_eq!(shadows.len(), 4);
    }

    #[test]
    fn a_round_goes_on_where_it_was_though_that_is_gone() {
        let shadows = kept(&[(ZERO, "a"), (ZERO, "c"), (ONE, "a"), (TWO, "b")]);
        let after = |db, key| shadows.after(Some(&name(db, key))).collect::<Vec<_>>();
        assert_eq!(all(&shadows).len(), 4);
        assert_eq!(after(ZERO, "a"), [name(ZERO, "c"), name(ONE, "a"), name(TWO, "b")]);
        assert_eq!(after(ZERO, "b"), [name(ZERO, "c"), name(ONE, "a"), name(TWO, "b")]);
        assert_eq!(after(ZERO, "c"), [name(ONE, "a"), name(TWO, "b")]);
        assert_eq!(after(ONE, "a"), [name(TWO, "b")]);
        assert_eq!(after(TWO, "b"), []);
    }

    #[test]
    fn the_shadows_of_a_database_are_told_apart_from_the_others() {
        let shadows = kept(&[(ZERO, "a"), (ONE, "b"), (ONE, "c")]);
        assert_eq!(shadows.databases().collect::<Vec<_>>(), [ZERO, ONE]);
        let of = |db| shadows.of(db).map(|(key, lock)| (key.to_vec(), lock.clone())).collect::<Vec<_>>();
        assert_eq!(of(ONE), [(b"b".to_vec(), lock(2)), (b"c".to_vec(), lock(3))]);
        assert_eq!(of(TWO), []);
    }
}
