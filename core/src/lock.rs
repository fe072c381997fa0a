//! The stored value: who holds the lock, and the one function that changes it.
//!
//! A lock in the keyspace has at least one holder. A lock that nobody holds has no key. All changes to a lock are
//! [`Change`]s, and [`Lock::apply`] carries them out: on the primary after a decision, on a replica as it receives them, and
//! when the AOF is loaded.
//!
//! A lock with one holder is a single allocation of 48 bytes, a [`CompactHolder`]. Several holders, or one that does not fit
//! there, are stored in a list. To change a lock in another than the two usual ways, it is converted to [`Unpacked`] and back.

use crate::change::Change;
use crate::compact_holder::CompactHolder;
use crate::holder::{Holder, Slots};
use crate::owner::Owner;
use crate::units::{Instant, Now, WallTime};
use crate::unpacked::{Unpacked, UnpackedHolders};
use std::{mem, slice};

/// The holders of one lock, and the TTL of its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock(Repr);

/// How a lock is stored. A holder that fits into [`CompactHolder`] is always stored there, so that equal locks compare as equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repr {
    One(CompactHolder),
    List { holders: Vec<Holder>, expires_at: WallTime },
}

/// The holders of a lock in the order of their grants: [`Lock::holders`].
#[derive(Clone, Debug)]
pub struct Holders<'a> {
    one: Option<Holder<&'a Owner>>,
    list: slice::Iter<'a, Holder>,
}

impl<'a> Iterator for Holders<'a> {
    type Item = Holder<&'a Owner>;

    fn next(&mut self) -> Option<Self::Item> {
        self.one.take().or_else(|| self.list.next().map(Holder::as_ref))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.list.len().saturating_add(usize::from(self.one.is_some()));
        (len, Some(len))
    }
}

impl ExactSizeIterator for Holders<'_> {}

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

impl Lock {
    /// A lock that nobody holds.
    #[must_use]
    pub const fn new() -> Self {
        Self(Repr::List { holders: Vec::new(), expires_at: WallTime::EPOCH })
    }

    /// A lock with these holders and this TTL. No owner may occur twice. `None` when there are no holders, or when they do not
    /// fit beside each other.
    #[must_use]
    pub fn held_by(holders: Vec<Holder>, expires_at: WallTime) -> Option<Self> {
        let count = holders.len();
        let fit = holders.iter().all(|holder| holder.slots.allows(count));
        (fit && count > 0).then(|| Self::pack(Unpacked { holders: holders.into(), expires_at }))
    }

    #[inline(always)]
    pub(crate) fn held_by_one(holder: Holder, expires_at: WallTime) -> Self {
        Self(match CompactHolder::new(holder, expires_at) {
            Ok(compact) => Repr::One(compact),
            Err(holder) => Repr::List { holders: vec![holder], expires_at },
        })
    }

    fn pack(Unpacked { holders, expires_at }: Unpacked) -> Self {
        let holders = match holders {
            UnpackedHolders::None => return Self::new(),
            UnpackedHolders::One(holder) => return Self::held_by_one(holder, expires_at),
            UnpackedHolders::Many(holders) => holders,
        };
        Self(Repr::List { holders, expires_at })
    }

    fn unpack(self) -> Unpacked {
        let expires_at = self.expires_at();
        let holders = match self.0 {
            Repr::One(compact) => UnpackedHolders::One(compact.unpack()),
            Repr::List { holders, .. } => holders.into(),
        };
        Unpacked { holders, expires_at }
    }

    #[inline(never)]
    fn with_unpacked(&mut self, work: impl FnOnce(&mut Unpacked)) {
        let mut unpacked = mem::take(self).unpack();
        work(&mut unpacked);
        *self = Self::pack(unpacked);
    }

    /// The holders, in the order of their grants. A holder whose lease is over is among them until a decision ends its tenure.
    #[must_use]
    pub fn holders(&self) -> Holders<'_> {
        match &self.0 {
            Repr::One(compact) => Holders { one: Some(compact.holder()), list: [].iter() },
            Repr::List { holders, .. } => Holders { one: None, list: holders.iter() },
        }
    }

    /// The owners of the holders. A defragmenter moves their heap memory.
    pub fn owners_mut(&mut self) -> impl Iterator<Item = &mut Owner> {
        let (one, list) = match &mut self.0 {
            Repr::One(compact) => (Some(&mut compact.owner), &mut [][..]),
            Repr::List { holders, .. } => (None, holders.as_mut_slice()),
        };
        one.into_iter().chain(list.iter_mut().map(|holder| &mut holder.owner))
    }

    /// Whether nobody holds the lock. Such a lock has no key and no heap memory.
    #[must_use]
    pub fn is_free(&self) -> bool {
        matches!(&self.0, Repr::List { holders, .. } if holders.is_empty())
    }

    /// The tenure of `owner`.
    #[must_use]
    #[inline]
    pub fn holder(&self, owner: &Owner) -> Option<Holder<&Owner>> {
        match &self.0 {
            Repr::One(compact) => (compact.owner == *owner).then(|| compact.holder()),
            Repr::List { holders, .. } if holders.is_empty() => None,
            Repr::List { holders, .. } => find(holders, owner),
        }
    }

    /// Whether the lease of a holder is over.
    #[inline]
    pub(crate) fn any_expired(&self, now: Instant) -> bool {
        match &self.0 {
            Repr::One(compact) => compact.holder().is_over(now),
            Repr::List { holders, .. } => holders.iter().any(|holder| holder.is_over(now)),
        }
    }

    /// Whether a request with the limit `slots` fits beside the present holders: together they are at most as many as the
    /// request allows, and at most as many as each holder allows.
    #[must_use]
    pub fn admits(&self, slots: Slots) -> bool {
        let count = self.holders().len().saturating_add(1);
        slots.allows(count) && self.holders().all(|holder| holder.slots.allows(count))
    }

    /// The instant at which the first lease ends.
    #[must_use]
    pub fn first_deadline(&self) -> Option<Instant> {
        self.holders().map(|holder| holder.deadline).min()
    }

    /// The instant at which the last lease ends.
    #[must_use]
    pub fn last_deadline(&self) -> Option<Instant> {
        self.holders().map(|holder| holder.deadline).max()
    }

    /// The TTL of the key: the wall time of the last deadline, computed when that deadline was set. If the server deletes the
    /// key earlier, a client has set another TTL.
    #[must_use]
    pub fn expires_at(&self) -> WallTime {
        match &self.0 {
            Repr::One(compact) => compact.expires_at(),
            Repr::List { expires_at, .. } => *expires_at,
        }
    }

    /// The TTL of the key; `None` for a lock that nobody holds.
    #[must_use]
    pub fn time_to_expire(&self) -> Option<WallTime> {
        (!self.is_free()).then(|| self.expires_at())
    }

    /// Computes the TTL again by the present wall clock, which may have been set since.
    pub fn recompute_expiry(&mut self, now: Now) {
        self.with_unpacked(|lock| lock.recompute_expiry(now));
    }

    /// The bytes that the lock takes on the heap, beside its own size.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Repr::One(compact) => compact.owner.heap_size(),
            Repr::List { holders, .. } => {
                let owners: usize = holders.iter().map(|holder| holder.owner.heap_size()).sum();
                holders.capacity().saturating_mul(size_of::<Holder>()).saturating_add(owners)
            }
        }
    }

    /// Carries out one change. A lock changes in no other way.
    #[inline(always)]
    pub fn apply(&mut self, change: Change, now: Now) {
        match (&self.0, change) {
            // The two usual changes need no unpacking: a free lock is acquired, and the only holder releases it.
            (_, Change::Put(holder)) if self.is_free() => {
                let expires_at = now.wall_at(holder.deadline);
                // A free lock has no memory to release.
                mem::forget(mem::replace(self, Self::held_by_one(holder, expires_at)));
            }
            (Repr::One(compact), Change::End(token, _)) => {
                if compact.token() == Some(token) {
                    *self = Self::new();
                }
            }
            (_, change) => self.with_unpacked(|lock| lock.apply(change, now)),
        }
    }

    /// Carries out changes in order. The cost grows with the number of changes plus the number of holders, where many leases
    /// end together or all holders of a lock are put at once.
    pub fn apply_all(&mut self, changes: Vec<Change>, now: Now) {
        if !changes.is_empty() {
            self.with_unpacked(|lock| lock.apply_all(changes, now));
        }
    }
}

#[inline(never)]
fn find<'a>(holders: &'a [Holder], owner: &Owner) -> Option<Holder<&'a Owner>> {
    holders.iter().find(|holder| holder.owner == *owner).map(Holder::as_ref)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::End;
    use crate::token::FencingToken;
    use crate::units::Span;

    const NOW: Now = Now { mono: Instant::from_micros(0), wall: WallTime::from_micros(0) };

    fn holder(owner: &str, slots: u32, token: u64) -> Holder {
        Holder {
            owner: Owner::new(owner.as_bytes()).unwrap(),
            holds: 1,
            slots: Slots::new(slots).unwrap(),
            token: FencingToken::new(token).unwrap(),
            deadline: Instant::from_micros(1_000),
            since: Instant::from_micros(0),
        }
    }

    fn lock(slots: &[u32]) -> Lock {
        let mut lock = Lock::new();
        for (i, slots) in slots.iter().enumerate() {
            lock.apply(Change::Put(holder(&format!("o{i}"), *slots, i as u64 + 1)), NOW);
        }
        lock
    }

    #[test]
    fn a_request_fits_if_it_and_every_holder_allow_one_more() {
        for (held, asked, fits) in [
            (&[][..], 1, true),
            (&[1], 1, false),
            (&[1], 0, false),
            (&[0], 0, true),
            (&[0], 1, false),
            (&[0, 0], 3, true),
            (&[0, 0], 2, false),
            (&[3, 2], 3, false),
            (&[3, 3], 3, true),
        ] {
            assert_eq!(lock(held).admits(Slots::new(asked).unwrap()), fits, "{held:?} + {asked}");
        }
    }

    #[test]
    fn holders_are_listed_in_the_order_of_their_grants() {
        let mut lock = lock(&[0, 0, 0]);
        lock.apply(Change::End(FencingToken::new(2).unwrap(), End::Released), NOW);
        let tokens: Vec<u64> = lock.holders().map(|holder| holder.token.get()).collect();
        assert_eq!(tokens, [1, 3]);
        lock.apply(Change::End(FencingToken::new(9).unwrap(), End::Released), NOW);
        lock.apply(Change::End(FencingToken::new(1).unwrap(), End::Released), NOW);
        lock.apply(Change::End(FencingToken::new(3).unwrap(), End::LeaseOver), NOW);
        assert!(lock.is_free());
        assert_eq!((lock.heap_size(), lock), (0, Lock::new()));
    }

    #[test]
    fn a_lock_knows_its_first_and_its_last_deadline_and_its_ttl() {
        assert_eq!((Lock::held_by(vec![], WallTime::EPOCH), Lock::new().time_to_expire()), (None, None));
        let until = |owner: &str, token, deadline| Holder {
            deadline: Instant::from_micros(deadline),
            ..holder(owner, 0, token)
        };
        let expires_at = WallTime::from_micros(7_000);
        let mut lock = Lock::held_by(vec![until("a", 1, 500), until("b", 2, 900)], expires_at).unwrap();
        assert_eq!(lock.first_deadline(), Some(Instant::from_micros(500)));
        assert_eq!(lock.last_deadline(), Some(Instant::from_micros(900)));
        assert_eq!(lock.time_to_expire(), Some(expires_at));
        assert_eq!(lock.owners_mut().count(), 2);
    }

    #[test]
    fn apply_all_has_the_same_result_as_apply_for_each_change() {
        let put = |owner: &str, slots, token| Change::Put(holder(owner, slots, token));
        let end = |token| Change::End(FencingToken::new(token).unwrap(), End::LeaseOver);
        let count = |token, holds| Change::Count(FencingToken::new(token).unwrap(), holds);
        let later = |owner: &str, token| {
            Change::Put(Holder { deadline: Instant::from_micros(9_000), ..holder(owner, 0, token) })
        };
        let at = Now { mono: Instant::from_micros(50), wall: WallTime::from_micros(7_000) };
        for changes in [
            vec![],
            vec![put("a", 0, 1)],
            vec![put("a", 0, 1), later("b", 2), put("c", 3, 3)],
            vec![put("a", 0, 1), put("a", 0, 2)],
            vec![put("a", 0, 1), put("b", 0, 1)],
            vec![put("a", 1, 1), put("b", 1, 2)],
            vec![put("a", 0, 1), end(1), put("b", 1, 2), count(2, 5)],
            vec![end(1), end(2)],
            vec![end(2), end(9)],
            vec![end(1), end(2), end(3)],
            vec![end(3), put("d", 1, 4)],
        ] {
            for mut held in [lock(&[]), lock(&[1]), lock(&[0, 0, 0])] {
                held.apply(later("o1", 2), NOW);
                let mut together = held.clone();
                together.apply_all(changes.clone(), at);
                changes.iter().for_each(|change| held.apply(change.clone(), at));
                assert_eq!(together, held, "{changes:?}");
            }
            let (mut together, mut free) = (Lock::new(), Lock::new());
            together.apply_all(changes.clone(), at);
            changes.iter().for_each(|change| free.apply(change.clone(), at));
            assert_eq!(together, free, "{changes:?}");
        }
    }

    #[test]
    fn a_change_without_unpacking_has_the_same_result_as_with_it() {
        let at = Now { mono: Instant::from_micros(50), wall: WallTime::from_micros(1_795_000_000_000_050) };
        let (usual, _) = usual_holder(30_000_000);
        let month = Holder { deadline: Instant::from_micros(30 * 24 * 3_600 * 1_000_000), ..usual.clone() };
        let locks =
            [lock(&[]), lock(&[1]), lock(&[0]), lock(&[0, 0]), Lock::held_by_one(usual.clone(), at.wall)];
        let ends =
            [End::Released, End::LeaseOver].map(|end| [1, 2, 9, usual.token.get()].map(|token| (token, end)));
        let ends = ends.into_iter().flatten();
        let changes = ends.map(|(token, end)| Change::End(FencingToken::new(token).unwrap(), end)).chain([
            Change::Put(holder("o0", 1, 1)),
            Change::Put(holder("o0", 0, 9)),
            Change::Put(holder("new", 0, 9)),
            Change::Put(usual),
            Change::Put(month),
            Change::Count(FencingToken::new(1).unwrap(), 700),
        ]);
        for change in changes {
            for held in &locks {
                let (mut directly, mut unpacked) = (held.clone(), held.clone());
                directly.apply(change.clone(), at);
                unpacked.with_unpacked(|lock| lock.apply(change.clone(), at));
                assert_eq!(directly, unpacked, "{change:?} of {held:?}");
            }
        }
    }

    #[test]
    fn a_put_ends_the_tenures_that_do_not_fit_beside_it() {
        for (held, put, left) in [
            (&[1][..], ("new", 1, 9), &[9][..]),
            (&[1], ("new", 1, 1), &[1]),
            (&[0, 0], ("new", 2, 9), &[2, 9]),
            (&[0, 0], ("new", 0, 1), &[2, 1]),
            (&[0, 0, 0], ("o1", 1, 2), &[2]),
            (&[0, 0, 0], ("o1", 0, 3), &[1, 3]),
            (&[0, 0, 0], ("new", 0, 9), &[1, 2, 3, 9]),
        ] {
            let mut lock = lock(held);
            let (owner, slots, token) = put;
            lock.apply(Change::Put(holder(owner, slots, token)), NOW);
            let tokens: Vec<u64> = lock.holders().map(|holder| holder.token.get()).collect();
            assert_eq!(tokens, left, "{put:?} beside {held:?}");
            assert!(Lock::held_by(lock.holders().map(Holder::cloned).collect(), WallTime::EPOCH).is_some());
        }
    }

    #[test]
    fn the_heap_holds_the_list_of_several_holders_and_long_owners() {
        let long = "x".repeat(200);
        let mut lock = Lock::held_by(vec![holder("A", 0, 1)], WallTime::EPOCH).unwrap();
        assert_eq!(lock.heap_size(), 0);
        lock.apply(Change::Put(holder(&long, 0, 2)), NOW);
        assert_eq!(lock.heap_size(), 2 * size_of::<Holder>() + 200);
        lock.apply(Change::End(FencingToken::new(1).unwrap(), End::Released), NOW);
        assert_eq!(lock.heap_size(), 200, "one holder has no list");
    }

    #[test]
    fn a_ttl_is_computed_when_the_last_deadline_changes_or_on_request() {
        let mut lock = Lock::new();
        lock.recompute_expiry(NOW);
        assert_eq!(lock.expires_at(), WallTime::EPOCH, "a free lock has no TTL");
        lock.apply(Change::Put(holder("A", 1, 1)), NOW);
        assert_eq!(lock.expires_at(), WallTime::from_micros(1_000));
        let later = Now { mono: Instant::from_micros(400), wall: WallTime::from_micros(90_000) };
        lock.apply(Change::Count(FencingToken::new(1).unwrap(), 2), later);
        assert_eq!(lock.expires_at(), WallTime::from_micros(1_000), "a count does not change it");
        lock.recompute_expiry(later);
        assert_eq!(lock.expires_at(), WallTime::from_micros(90_600));
    }

    /// A holder with present-day times whose lease lasts `micros`, and the TTL of its key.
    fn usual_holder(micros: i64) -> (Holder, WallTime) {
        let granted = 1_795_000_000_000_000;
        let owner = Owner::new(b"0f8fad5b-d9cb-469f-a165-70867728950e:17").unwrap();
        let (since, deadline) = (Instant::from_micros(70), Instant::from_micros(70 + micros));
        let holder = Holder { owner, since, deadline, ..holder("A", 1, granted as u64) };
        (holder, WallTime::from_micros(granted + micros))
    }

    fn is_compact(lock: &Lock) -> bool {
        matches!(lock.0, Repr::One(_))
    }

    #[test]
    fn a_holder_is_read_back_unchanged_whether_it_fits_or_not() {
        let month = 30 * 24 * 3_600 * 1_000_000;
        let later = |span: i64, mut by: (Holder, WallTime)| {
            by.1 = WallTime::from_micros(by.1.as_micros() + span);
            by
        };
        let with = |change: &dyn Fn(&mut Holder)| {
            let mut by = usual_holder(30_000_000);
            change(&mut by.0);
            by
        };
        for (what, fits, (holder, expires_at)) in [
            ("a lease that is over at once", true, usual_holder(0)),
            ("the usual lease", true, usual_holder(30_000_000)),
            ("a week", true, usual_holder(month / 4)),
            ("the longest lease that fits", true, usual_holder((1 << 40) - 1)),
            ("a lease longer by a microsecond", false, usual_holder(1 << 40)),
            ("a month", false, usual_holder(month)),
            ("a deadline before the grant", true, usual_holder(-1)),
            ("a clock that was set ahead", true, later((1 << 22) - 1, usual_holder(5_000))),
            ("a clock that was set ahead too far", false, later(1 << 22, usual_holder(5_000))),
            ("a clock that was set back", true, later(-(1 << 22), usual_holder(5_000))),
            ("a clock that was set back too far", false, later(-(1 << 22) - 1, usual_holder(5_000))),
            ("a small token", false, with(&|holder| holder.token = FencingToken::new(1).unwrap())),
            ("the largest token", false, with(&|holder| holder.token = FencingToken::MAX)),
            ("many holds", true, with(&|holder| holder.holds = 511)),
            ("more holds", false, with(&|holder| holder.holds = 512)),
            ("the largest count of holds", false, with(&|holder| holder.holds = u32::MAX)),
            ("shared", true, with(&|holder| holder.slots = Slots::SHARED)),
            ("many slots", true, with(&|holder| holder.slots = Slots(127))),
            ("more slots", false, with(&|holder| holder.slots = Slots(128))),
            ("the largest number of slots", false, with(&|holder| holder.slots = Slots(Slots::MAX))),
            ("the earliest instant", false, with(&|holder| holder.since = Instant::from_micros(i64::MIN))),
            ("the latest instant", false, with(&|holder| holder.deadline = Instant::from_micros(i64::MAX))),
        ] {
            let lock = Lock::held_by(vec![holder.clone()], expires_at).unwrap();
            assert_eq!(is_compact(&lock), fits, "{what}");
            assert!(lock.holders().eq([holder.as_ref()]), "{what}: {lock:?}");
            assert_eq!(lock.expires_at(), expires_at, "{what}");
            assert_eq!((lock.heap_size() == 0, lock.is_free()), (fits, false), "{what}");
        }
        let (longest, _) = usual_holder(Span::MAX.as_millis().cast_signed() * 1_000);
        let since = longest.deadline;
        let lock =
            Lock::held_by(vec![Holder { since, ..longest }], WallTime::from_micros(1_795_000_000_000_000));
        assert!(is_compact(&lock.unwrap()), "the latest deadline of any lease fits");
    }

    #[test]
    fn a_lock_is_compact_again_when_its_holder_fits_again() {
        let (holder, expires_at) = usual_holder(30_000_000);
        let token = holder.token;
        let mut lock = Lock::held_by(vec![holder.clone()], expires_at).unwrap();
        let packed = lock.clone();
        lock.apply(Change::Count(token, 512), NOW);
        assert!(!is_compact(&lock) && lock != packed);
        lock.apply(Change::Count(token, 1), NOW);
        assert_eq!(lock, packed);
        let at = Now { mono: holder.since, wall: WallTime::from_micros(1_795_000_000_000_000) };
        let other = Holder { token: FencingToken::new(1).unwrap(), slots: Slots::SHARED, ..holder.clone() };
        let other = Holder { owner: Owner::new(b"B").unwrap(), ..other };
        lock.apply(Change::Put(Holder { slots: Slots::SHARED, ..holder.clone() }), at);
        lock.apply(Change::Put(other.clone()), at);
        assert!(!is_compact(&lock));
        lock.apply(Change::End(other.token, End::Released), at);
        lock.apply(Change::Put(holder), at);
        assert_eq!(lock, packed);
        lock.apply(Change::End(token, End::Released), at);
        assert!(lock.is_free() && lock.heap_size() == 0);
    }

    #[test]
    fn a_lock_takes_48_bytes() {
        assert_eq!(size_of::<Lock>(), 48);
    }
}
