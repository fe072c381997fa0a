//! The stored value: who holds the lock, and the one function that changes it.
//!
//! A lock in the keyspace has at least one holder; a lock without one is a key that does not exist. What a command
//! does to a lock is told as [`Change`]s, and [`Lock::apply`] carries a change out: on the primary as it decides, on a
//! replica as it hears, and from the AOF as it loads.
//!
//! With one holder, the rule of an exclusive lock, the value is a single allocation of 48 bytes: a [`CompactHolder`] tenure. What
//! does not fit into that rests in a list, as several holders do.

use crate::owner::Owner;
use crate::packed::CompactHolder;
use crate::token::FencingToken;
use crate::units::{Instant, Now, Span, WallTime};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::{iter, mem, slice};

/// How many owners a request allows at once: 1 is exclusive, [`Slots::SHARED`] any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots(pub(crate) u32);

impl Slots {
    /// Nobody else.
    pub const EXCLUSIVE: Self = Self(1);
    /// Any number of others that say the same: a read lock. Written as 0.
    pub const SHARED: Self = Self(0);
    /// The largest number that can be named.
    pub const MAX: u32 = 1_000_000;

    /// `number` owners at set_once, 0 for any; `None` above [`Slots::MAX`].
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number, 0 for any.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether so many owners may hold the lock at once.
    pub(crate) fn allows(self, holders: usize) -> bool {
        self == Self::SHARED || usize::try_from(self.0).is_ok_and(|slots| holders <= slots)
    }
}

/// The fewer owners a number allows, the smaller it is; [`Slots::SHARED`] is the largest.
impl Ord for Slots {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |slots: Self| if slots == Self::SHARED { u32::MAX } else { slots.0 };
        rank(*self).cmp(&rank(*other))
    }
}

impl PartialOrd for Slots {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One owner's tenure, or a look at it: with the owner borrowed, where it rests in a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder<O = Owner> {
    /// Who holds the lock.
    pub owner: O,
    /// How often, from 1 on.
    pub holds: u32,
    /// The number of owners it named.
    pub slots: Slots,
    /// The number of this tenure.
    pub token: FencingToken,
    /// The instant its lease ends.
    pub deadline: Instant,
    /// The instant the tenure began.
    pub since: Instant,
}

impl<O> Holder<O> {
    /// Whether the lease is over.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now
    }

    /// How much of the lease is left.
    #[must_use]
    pub fn lease_left(&self, now: Instant) -> Span {
        now.until(self.deadline)
    }

    /// The same with another owner, or another way to have it.
    pub(crate) fn with<P>(self, owner: impl FnOnce(O) -> P) -> Holder<P> {
        let Self { owner: known, holds, slots, token, deadline, since } = self;
        Holder { owner: owner(known), holds, slots, token, deadline, since }
    }
}

impl Holder {
    /// A look at this.
    #[must_use]
    pub const fn as_ref(&self) -> Holder<&Owner> {
        let &Self { ref owner, holds, slots, token, deadline, since } = self;
        Holder { owner, holds, slots, token, deadline, since }
    }
}

impl Holder<&Owner> {
    /// The tenure that this looks at.
    #[must_use]
    pub fn cloned(self) -> Holder {
        self.with(Owner::clone)
    }
}

/// A change to one holder of a lock. All that ever happens to a lock is a series of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This owner now holds the lock as told, with a lease of its own: a grant, a renewal, a re-entry that extends it.
    Put(Holder),
    /// The tenure with this token now has so many holds, and the lease it had.
    Count(FencingToken, u32),
    /// The tenure with this token is over.
    End(FencingToken, End),
}

/// Why a tenure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The owner gave it back, or a larger token took its place.
    Released,
    /// Its lease was over.
    LeaseOver,
}

/// The holders of one lock, and when Redis is told to drop the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock(Repr);

/// How a lock rests. Whatever can be is packed, so that locks are equal when this is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repr {
    One(CompactHolder),
    List { holders: Vec<Holder>, expires_at: WallTime },
}

/// The holders of a lock in the order of their grants: [`Lock::holders`].
#[derive(Clone, Debug)]
pub struct Holders<'a> {
    packed: Option<Holder<&'a Owner>>,
    list: slice::Iter<'a, Holder>,
}

impl<'a> Iterator for Holders<'a> {
    type Item = Holder<&'a Owner>;

    fn next(&mut self) -> Option<Self::Item> {
        self.packed.take().or_else(|| self.list.next().map(Holder::as_ref))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.list.len().saturating_add(usize::from(self.packed.is_some()));
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

    /// A lock with these holders, each another owner, whose key has a TTL until `expires_at`; `None` when they are none
    /// or do not fit beside each other.
    #[must_use]
    pub fn held_by(holders: Vec<Holder>, expires_at: WallTime) -> Option<Self> {
        let count = holders.len();
        let fit = holders.iter().all(|holder| holder.slots.allows(count));
        (fit && count > 0).then(|| Self::pack(Unpacked { holders: holders.into(), expires_at }))
    }

    #[inline(always)]
    pub(crate) fn held_by_one(holder: Holder, expires_at: WallTime) -> Self {
        Self(match CompactHolder::new(holder, expires_at) {
            Ok(packed) => Repr::One(packed),
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
            Repr::One(packed) => UnpackedHolders::One(packed.unpack()),
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

    /// Who holds it, in the order of their grants. A holder whose lease is over stands here until somebody looks.
    #[must_use]
    pub fn holders(&self) -> Holders<'_> {
        match &self.0 {
            Repr::One(packed) => Holders { packed: Some(packed.holder()), list: [].iter() },
            Repr::List { holders, .. } => Holders { packed: None, list: holders.iter() },
        }
    }

    /// The holders' owners, for a defragmenter to move what they have on the heap.
    pub fn owners_mut(&mut self) -> impl Iterator<Item = &mut Owner> {
        let (packed, list) = match &mut self.0 {
            Repr::One(packed) => (Some(&mut packed.owner), &mut [][..]),
            Repr::List { holders, .. } => (None, holders.as_mut_slice()),
        };
        packed.into_iter().chain(list.iter_mut().map(|holder| &mut holder.owner))
    }

    /// Whether nobody holds it: such a lock has no key, and nothing on the heap.
    #[must_use]
    pub fn is_free(&self) -> bool {
        matches!(&self.0, Repr::List { holders, .. } if holders.is_empty())
    }

    /// The tenure of `owner`.
    #[must_use]
    #[inline]
    pub fn holder(&self, owner: &Owner) -> Option<Holder<&Owner>> {
        match &self.0 {
            Repr::One(packed) => (packed.owner == *owner).then(|| packed.holder()),
            Repr::List { holders, .. } if holders.is_empty() => None,
            Repr::List { holders, .. } => find(holders, owner),
        }
    }

    /// Whether the lease of a holder is over.
    #[inline]
    pub(crate) fn any_expired(&self, now: Instant) -> bool {
        match &self.0 {
            Repr::One(packed) => packed.holder().is_over(now),
            Repr::List { holders, .. } => holders.iter().any(|holder| holder.is_over(now)),
        }
    }

    /// Whether a request that names `slots` fits beside the present holders: counting it, they are no more than the
    /// number it named and no more than the number that any of them named.
    #[must_use]
    pub fn admits(&self, slots: Slots) -> bool {
        let counted = self.holders().len().saturating_add(1);
        slots.allows(counted) && self.holders().all(|holder| holder.slots.allows(counted))
    }

    /// The first instant at which a lease ends.
    #[must_use]
    pub fn first_deadline(&self) -> Option<Instant> {
        self.holders().map(|holder| holder.deadline).min()
    }

    /// The instant at which the last lease ends.
    #[must_use]
    pub fn last_deadline(&self) -> Option<Instant> {
        self.holders().map(|holder| holder.deadline).max()
    }

    /// The wall time of the last deadline as it was reckoned when that was set: the TTL that Redis shows. When Redis
    /// drops the key earlier than this, somebody has set another TTL by hand.
    #[must_use]
    pub fn expires_at(&self) -> WallTime {
        match &self.0 {
            Repr::One(packed) => packed.expires_at(),
            Repr::List { expires_at, .. } => *expires_at,
        }
    }

    /// The same for a lock that somebody holds. One that is free has no key.
    #[must_use]
    pub fn time_to_expire(&self) -> Option<WallTime> {
        (!self.is_free()).then(|| self.expires_at())
    }

    /// Reckons the TTL anew: the wall clock may have jumped since it was set.
    pub fn recompute_expiry(&mut self, now: Now) {
        self.with_unpacked(|lock| lock.recompute_expiry(now));
    }

    /// The bytes the lock takes on the heap, beside its own size.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Repr::One(packed) => packed.owner.heap_size(),
            Repr::List { holders, .. } => {
                let owners: usize = holders.iter().map(|holder| holder.owner.heap_size()).sum();
                holders.capacity().saturating_mul(size_of::<Holder>()).saturating_add(owners)
            }
        }
    }

    /// Carries out one change: the only way a lock changes, on a primary, on a replica and from a file.
    #[inline(always)]
    pub fn apply(&mut self, change: Change, now: Now) {
        match (&self.0, change) {
            // What happens to most locks needs no unpacking: somebody takes one that is free, and gives it back.
            (_, Change::Put(holder)) if self.is_free() => {
                let expires_at = now.wall_at(holder.deadline);
                // A lock that is free has nothing to drop.
                mem::forget(mem::replace(self, Self::held_by_one(holder, expires_at)));
            }
            (Repr::One(packed), Change::End(token, _)) => {
                if packed.token() == Some(token) {
                    *self = Self::new();
                }
            }
            (_, change) => self.with_unpacked(|lock| lock.apply(change, now)),
        }
    }

    /// Carries out changes in order. Where many come at once (leases that end together, the holders of a lock that is
    /// told whole), it costs as much as there are changes and holders, not as each change with all holders.
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

/// How a lock is worked on.
struct Unpacked {
    holders: UnpackedHolders,
    expires_at: WallTime,
}

enum UnpackedHolders {
    None,
    One(Holder),
    Many(Vec<Holder>),
}

impl From<Vec<Holder>> for UnpackedHolders {
    fn from(mut holders: Vec<Holder>) -> Self {
        if holders.len() > 1 { Self::Many(holders) } else { holders.pop().map_or(Self::None, Self::One) }
    }
}

impl Unpacked {
    fn holders(&self) -> &[Holder] {
        match &self.holders {
            UnpackedHolders::None => &[],
            UnpackedHolders::One(holder) => slice::from_ref(holder),
            UnpackedHolders::Many(holders) => holders,
        }
    }

    fn holders_mut(&mut self) -> &mut [Holder] {
        match &mut self.holders {
            UnpackedHolders::None => &mut [],
            UnpackedHolders::One(holder) => slice::from_mut(holder),
            UnpackedHolders::Many(holders) => holders,
        }
    }

    fn last_deadline(&self) -> Option<Instant> {
        self.holders().iter().map(|holder| holder.deadline).max()
    }

    fn recompute_expiry(&mut self, now: Now) {
        if let Some(deadline) = self.last_deadline() {
            self.expires_at = now.wall_at(deadline);
        }
    }

    fn apply(&mut self, change: Change, now: Now) {
        let before = self.last_deadline();
        match change {
            Change::Put(holder) => self.put(holder),
            Change::Count(token, holds) => self.count(token, holds),
            Change::End(token, _) => self.end(token),
        }
        if self.last_deadline() != before {
            self.recompute_expiry(now);
        }
    }

    fn apply_all(&mut self, changes: Vec<Change>, now: Now) {
        let mut changes = changes.into_iter().peekable();
        while let Some(change) = changes.next() {
            match change {
                Change::End(token, _) => {
                    let more = iter::from_fn(|| changes.next_if(|next| matches!(next, Change::End(..))));
                    let more = more
                        .filter_map(|end| if let Change::End(token, _) = end { Some(token) } else { None });
                    self.end_all(&iter::once(token).chain(more).collect(), now);
                }
                Change::Put(first) if self.holders().is_empty() => {
                    let more = iter::from_fn(|| changes.next_if(|next| matches!(next, Change::Put(_))));
                    let more = more
                        .filter_map(|put| if let Change::Put(holder) = put { Some(holder) } else { None });
                    self.put_all(iter::once(first).chain(more).collect(), now);
                }
                Change::Put(_) | Change::Count(..) => self.apply(change, now),
            }
        }
    }

    fn end_all(&mut self, tokens: &HashSet<FencingToken>, now: Now) {
        let before = self.last_deadline();
        self.retain(|holder| !tokens.contains(&holder.token));
        if self.last_deadline() != before {
            self.recompute_expiry(now);
        }
    }

    fn put_all(&mut self, holders: Vec<Holder>, now: Now) {
        let owners: HashSet<&Owner> = holders.iter().map(|holder| &holder.owner).collect();
        let tokens: HashSet<FencingToken> = holders.iter().map(|holder| holder.token).collect();
        let distinct = owners.len() == holders.len() && tokens.len() == holders.len();
        let fit = holders.iter().all(|holder| holder.slots.allows(holders.len()));
        if !distinct || !fit {
            return holders.into_iter().for_each(|holder| self.apply(Change::Put(holder), now));
        }
        self.holders = holders.into();
        self.recompute_expiry(now);
    }

    fn put(&mut self, holder: Holder) {
        self.end_conflicting(&holder);
        if let Some(known) = self.holders_mut().iter_mut().find(|known| known.owner == holder.owner) {
            *known = holder;
            return;
        }
        self.holders = match mem::replace(&mut self.holders, UnpackedHolders::None) {
            UnpackedHolders::None => UnpackedHolders::One(holder),
            UnpackedHolders::One(first) => UnpackedHolders::Many(vec![first, holder]),
            UnpackedHolders::Many(mut holders) => {
                holders.push(holder);
                UnpackedHolders::Many(holders)
            }
        };
    }

    /// Ends whatever cannot stand beside `holder`, the oldest first. Nothing has to, where every change before has been
    /// heard; a damaged AOF may lack the end of a tenure, and a lock with an owner too many cannot be loaded again.
    fn end_conflicting(&mut self, holder: &Holder) {
        loop {
            let others = || self.holders().iter().filter(|other| other.owner != holder.owner);
            let count = others().count().saturating_add(1);
            let twin = others().find(|other| other.token == holder.token);
            let fits = holder.slots.allows(count) && others().all(|other| other.slots.allows(count));
            let gone = if fits { twin } else { twin.or_else(|| others().min_by_key(|other| other.token)) };
            let Some(token) = gone.map(|gone| gone.token) else { return };
            self.end(token);
        }
    }

    fn count(&mut self, token: FencingToken, holds: u32) {
        if let Some(known) = self.holders_mut().iter_mut().find(|known| known.token == token) {
            known.holds = holds;
        }
    }

    fn end(&mut self, token: FencingToken) {
        self.retain(|holder| holder.token != token);
    }

    fn retain(&mut self, stays: impl Fn(&Holder) -> bool) {
        match &mut self.holders {
            UnpackedHolders::None => {}
            UnpackedHolders::One(holder) => {
                if !stays(holder) {
                    self.holders = UnpackedHolders::None;
                }
            }
            UnpackedHolders::Many(holders) => {
                holders.retain(stays);
                self.holders = mem::take(holders).into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn admission_looks_at_every_number_named() {
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
    fn holders_come_and_go_in_the_order_of_their_grants() {
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
    fn a_lock_lasts_as_long_as_the_last_of_its_holders() {
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
    fn changes_carried_out_together_come_to_the_same_as_one_after_the_other() {
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
    fn what_needs_no_unpacking_comes_to_the_same_as_with_it() {
        let at = Now { mono: Instant::from_micros(50), wall: WallTime::from_micros(1_795_000_000_000_050) };
        let (usual, _) = of_today(30_000_000);
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
    fn what_does_not_fit_beside_a_new_holder_has_gone_unheard() {
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
    fn the_fewer_owners_a_number_allows_the_smaller_it_is() {
        let mut numbers = [0, 7, 1, Slots::MAX, 5].map(|number| Slots::new(number).unwrap());
        numbers.sort();
        assert_eq!(numbers.map(Slots::number), [1, 5, 7, Slots::MAX, 0]);
        assert!(Slots::EXCLUSIVE < Slots::SHARED);
    }

    #[test]
    fn on_the_heap_are_the_list_of_several_holders_and_the_long_owners() {
        let long = "x".repeat(200);
        let mut lock = Lock::held_by(vec![holder("A", 0, 1)], WallTime::EPOCH).unwrap();
        assert_eq!(lock.heap_size(), 0);
        lock.apply(Change::Put(holder(&long, 0, 2)), NOW);
        assert_eq!(lock.heap_size(), 2 * size_of::<Holder>() + 200);
        lock.apply(Change::End(FencingToken::new(1).unwrap(), End::Released), NOW);
        assert_eq!(lock.heap_size(), 200, "one holder needs no list");
    }

    #[test]
    fn a_ttl_is_reckoned_by_the_wall_clock_as_it_is() {
        let mut lock = Lock::new();
        lock.recompute_expiry(NOW);
        assert_eq!(lock.expires_at(), WallTime::EPOCH, "nobody holds it");
        lock.apply(Change::Put(holder("A", 1, 1)), NOW);
        assert_eq!(lock.expires_at(), WallTime::from_micros(1_000));
        let jumped = Now { mono: Instant::from_micros(400), wall: WallTime::from_micros(90_000) };
        lock.apply(Change::Count(FencingToken::new(1).unwrap(), 2), jumped);
        assert_eq!(lock.expires_at(), WallTime::from_micros(1_000), "a count leaves it alone");
        lock.recompute_expiry(jumped);
        assert_eq!(lock.expires_at(), WallTime::from_micros(90_600));
    }

    /// A tenure of our days, `micros` after its grant, and when its key's TTL ends.
    fn of_today(micros: i64) -> (Holder, WallTime) {
        let granted = 1_795_000_000_000_000;
        let owner = Owner::new(b"0f8fad5b-d9cb-469f-a165-70867728950e:17").unwrap();
        let (since, deadline) = (Instant::from_micros(70), Instant::from_micros(70 + micros));
        let holder = Holder { owner, since, deadline, ..holder("A", 1, granted as u64) };
        (holder, WallTime::from_micros(granted + micros))
    }

    fn is_packed(lock: &Lock) -> bool {
        matches!(lock.0, Repr::One(_))
    }

    #[test]
    fn a_tenure_comes_back_as_it_was_whether_its_numbers_fit_or_not() {
        let month = 30 * 24 * 3_600 * 1_000_000;
        let later = |span: i64, mut by: (Holder, WallTime)| {
            by.1 = WallTime::from_micros(by.1.as_micros() + span);
            by
        };
        let with = |change: &dyn Fn(&mut Holder)| {
            let mut by = of_today(30_000_000);
            change(&mut by.0);
            by
        };
        for (what, fits, (holder, expires_at)) in [
            ("a lease over at once", true, of_today(0)),
            ("a usual one", true, of_today(30_000_000)),
            ("a week", true, of_today(month / 4)),
            ("the longest", true, of_today((1 << 40) - 1)),
            ("one longer", false, of_today(1 << 40)),
            ("a month", false, of_today(month)),
            ("a deadline before the grant", true, of_today(-1)),
            ("a clock that has jumped ahead", true, later((1 << 22) - 1, of_today(5_000))),
            ("further", false, later(1 << 22, of_today(5_000))),
            ("a clock that was set back", true, later(-(1 << 22), of_today(5_000))),
            ("further", false, later(-(1 << 22) - 1, of_today(5_000))),
            ("a small token", false, with(&|holder| holder.token = FencingToken::new(1).unwrap())),
            ("the largest token", false, with(&|holder| holder.token = FencingToken::MAX)),
            ("many holds", true, with(&|holder| holder.holds = 511)),
            ("more", false, with(&|holder| holder.holds = 512)),
            ("all holds", false, with(&|holder| holder.holds = u32::MAX)),
            ("shared", true, with(&|holder| holder.slots = Slots::SHARED)),
            ("many slots", true, with(&|holder| holder.slots = Slots(127))),
            ("more", false, with(&|holder| holder.slots = Slots(128))),
            ("all slots", false, with(&|holder| holder.slots = Slots(Slots::MAX))),
            ("no time at all", false, with(&|holder| holder.since = Instant::from_micros(i64::MIN))),
            ("a time past all", false, with(&|holder| holder.deadline = Instant::from_micros(i64::MAX))),
        ] {
            let lock = Lock::held_by(vec![holder.clone()], expires_at).unwrap();
            assert_eq!(is_packed(&lock), fits, "{what}");
            assert!(lock.holders().eq([holder.as_ref()]), "{what}: {lock:?}");
            assert_eq!(lock.expires_at(), expires_at, "{what}");
            assert_eq!((lock.heap_size() == 0, lock.is_free()), (fits, false), "{what}");
        }
        let (longest, _) = of_today(Span::MAX.as_millis().cast_signed() * 1_000);
        let since = longest.deadline;
        let lock =
            Lock::held_by(vec![Holder { since, ..longest }], WallTime::from_micros(1_795_000_000_000_000));
        assert!(is_packed(&lock.unwrap()), "any deadline that there is");
    }

    #[test]
    fn a_lock_is_packed_again_as_soon_as_it_fits() {
        let (holder, expires_at) = of_today(30_000_000);
        let token = holder.token;
        let mut lock = Lock::held_by(vec![holder.clone()], expires_at).unwrap();
        let packed = lock.clone();
        lock.apply(Change::Count(token, 512), NOW);
        assert!(!is_packed(&lock) && lock != packed);
        lock.apply(Change::Count(token, 1), NOW);
        assert_eq!(lock, packed);
        let at = Now { mono: holder.since, wall: WallTime::from_micros(1_795_000_000_000_000) };
        let other = Holder { token: FencingToken::new(1).unwrap(), slots: Slots::SHARED, ..holder.clone() };
        let other = Holder { owner: Owner::new(b"B").unwrap(), ..other };
        lock.apply(Change::Put(Holder { slots: Slots::SHARED, ..holder.clone() }), at);
        lock.apply(Change::Put(other.clone()), at);
        assert!(!is_packed(&lock));
        lock.apply(Change::End(other.token, End::Released), at);
        lock.apply(Change::Put(holder), at);
        assert_eq!(lock, packed);
        lock.apply(Change::End(token, End::Released), at);
        assert!(lock.is_free() && lock.heap_size() == 0);
    }

    #[test]
    fn a_lock_of_one_holder_fits_a_small_allocation() {
        assert_eq!(size_of::<Lock>(), 48);
    }
}
