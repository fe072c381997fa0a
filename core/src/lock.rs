//! The stored value: who holds the lock, and the one function that changes who holds it.
//!
//! A lock in the keyspace has at least one holder. A lock that nobody holds has no key. All changes to a lock are
//! [`Change`]s, and [`Lock::apply`] carries them out: in a decision of the primary, on a replica that receives the
//! changes, and when the AOF is loaded.
//!
//! A lock with one holder is a single allocation of 48 bytes, a [`CompactHolder`]. Several holders, or a holder that
//! does not fit into a `CompactHolder`, are stored in a [`HolderList`].

use crate::change::Change;
use crate::compact_holder::CompactHolder;
use crate::holder::{Holder, Load};
use crate::holder_list::{HolderList, Holders, Indexed, Present};
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::{Instant, Now, WallTime};
use std::hash::{Hash, Hasher};
use std::mem;

/// The holders of one lock, and the expiry time of its key.
#[derive(Clone, Debug)]
pub struct Lock(Repr);

/// How a lock is stored. A single holder that fits into [`CompactHolder`] is always stored as a
/// `CompactHolder`.
#[derive(Clone, Debug)]
enum Repr {
    One(CompactHolder),
    /// `None` for a lock that nobody holds, so that such a lock has no heap memory.
    List(Option<Box<List>>),
}

#[derive(Clone, Debug)]
struct List {
    holders: HolderList,
    expires_at: WallTime,
}

/// Whether a fencing token is valid: the answer of [`Lock::fencing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// The token is that of a present holder.
    Held,
    /// The token is not valid, and nobody holds the lock.
    Free,
    /// The token is not valid, and other owners hold the lock. The value is the largest of the tokens of these owners.
    /// The search is limited to the 4,096 latest tenures. If the leases of all these tenures are over, the value is the
    /// token of the holder whose lease ends last.
    HeldWith(FencingToken),
}

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

/// Locks with the same holders and the same expiry time are equal, however they are stored.
impl PartialEq for Lock {
    fn eq(&self, other: &Self) -> bool {
        self.time_to_expire() == other.time_to_expire() && self.holders().eq(other.holders())
    }
}

impl Eq for Lock {}

impl Hash for Lock {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.time_to_expire().hash(state);
        self.holders().for_each(|holder| holder.hash(state));
    }
}

impl Lock {
    /// A lock that nobody holds.
    #[must_use]
    pub const fn new() -> Self {
        Self(Repr::List(None))
    }

    /// A lock with these holders and this expiry time. No owner and no token may occur twice. `None` when there are no
    /// holders, or when the holders do not fit beside each other.
    #[must_use]
    pub fn held_by(holders: Vec<Holder>, expires_at: WallTime) -> Option<Self> {
        let load: Load = holders.iter().map(|holder| holder.mode).collect();
        let fit = load.is_allowed() && !holders.is_empty();
        fit.then(|| Self::of_list(Box::new(List { holders: holders.into(), expires_at })))
    }

    #[inline(always)]
    pub(crate) fn held_by_one(holder: Holder, expires_at: WallTime) -> Self {
        Self(match CompactHolder::new(holder, expires_at) {
            Ok(compact) => Repr::One(compact),
            Err(holder) => Repr::list(HolderList::Few(vec![holder]), expires_at),
        })
    }

    fn of_list(mut list: Box<List>) -> Self {
        if list.holders.iter().len() == 0 {
            return Self::new();
        }
        match list.holders.pop_only() {
            Some(holder) => Self::held_by_one(holder, list.expires_at),
            None => Self(Repr::List(Some(list))),
        }
    }

    /// Changes the list of holders. A lock with one holder is converted to a list and back.
    #[inline(never)]
    fn with_list(&mut self, change: impl FnOnce(&mut List)) {
        let expires_at = self.expires_at();
        let mut list = match mem::take(self).0 {
            Repr::One(compact) => {
                Box::new(List { holders: HolderList::Few(vec![compact.unpack()]), expires_at })
            }
            Repr::List(Some(list)) => list,
            Repr::List(None) => Box::new(List { holders: HolderList::Few(Vec::new()), expires_at }),
        };
        change(&mut list);
        *self = Self::of_list(list);
    }

    /// The holders, in the order of their tokens. A holder whose lease is over is included until a decision ends its
    /// tenure.
    #[must_use]
    pub fn holders(&self) -> Holders<'_> {
        match &self.0 {
            Repr::One(compact) => Holders::one(Some(compact.holder())),
            Repr::List(None) => Holders::one(None),
            Repr::List(Some(list)) => list.holders.iter(),
        }
    }

    /// The indexes, if the lock has more than a few holders.
    fn indexed(&self) -> Option<&Indexed> {
        match &self.0 {
            Repr::One(_) | Repr::List(None) => None,
            Repr::List(Some(list)) => list.holders.indexed(),
        }
    }

    /// How many holders each index has, if there are indexes. Only tests use this function.
    #[must_use]
    pub fn index_lengths(&self) -> Option<[usize; 4]> {
        self.indexed().map(Indexed::lengths)
    }

    /// The owners of the tenures whose tokens are larger than `after`, or of all tenures for `None`. Each
    /// owner comes with the token of its tenure. A defragmenter moves the owners' heap memory. To go on
    /// later, the defragmenter passes the token of the last tenure that it has visited.
    pub fn owners_mut(
        &mut self,
        after: Option<FencingToken>,
    ) -> impl Iterator<Item = (FencingToken, &mut Owner)> {
        let (one, list) = match &mut self.0 {
            Repr::One(compact) => (compact.token().zip(Some(&mut compact.owner)), None),
            Repr::List(list) => (None, list.as_mut().map(|list| list.holders.iter_mut(after))),
        };
        let of_list = list.into_iter().flatten().map(|holder| (holder.token, &mut holder.owner));
        one.into_iter().chain(of_list)
    }

    /// Whether nobody holds the lock. Such a lock has no key and no heap memory.
    #[must_use]
    #[inline]
    pub fn is_free(&self) -> bool {
        matches!(&self.0, Repr::List(None))
    }

    /// The tenure of `owner`.
    #[must_use]
    #[inline]
    pub fn holder(&self, owner: &Owner) -> Option<Holder<&Owner>> {
        match &self.0 {
            Repr::One(compact) => (compact.owner == *owner).then(|| compact.holder()),
            Repr::List(None) => None,
            Repr::List(Some(list)) => find(&list.holders, owner),
        }
    }

    /// The tenure with this token.
    #[must_use]
    pub fn of_token(&self, token: FencingToken) -> Option<Holder<&Owner>> {
        match &self.0 {
            Repr::One(compact) => (compact.token() == Some(token)).then(|| compact.holder()),
            Repr::List(list) => list.as_ref()?.holders.of_token(token).map(Holder::as_ref),
        }
    }

    /// The largest token of a present tenure.
    #[must_use]
    pub fn last_token(&self) -> Option<FencingToken> {
        self.holders().next_back().map(|holder| holder.token)
    }

    /// Whether the lease of any holder is over.
    #[inline]
    pub(crate) fn any_expired(&self, now: Instant) -> bool {
        self.first_deadline().is_some_and(|first| first <= now)
    }

    /// The tokens of at most `most` tenures whose leases are over.
    pub(crate) fn expired(&self, now: Instant, most: usize) -> Vec<FencingToken> {
        match self.indexed() {
            Some(indexed) => indexed.expired(now).take(most).collect(),
            None => {
                let over = self.holders().filter(|holder| holder.is_over(now));
                over.take(most).map(|holder| holder.token).collect()
            }
        }
    }

    /// The holders whose leases are not over, and the first `most` of them in the order of their tokens. Visits these
    /// holders or the others, whichever are fewer.
    #[must_use]
    pub fn present(&self, now: Instant, most: usize) -> Present {
        if let Some(indexed) = self.indexed() {
            return indexed.present(now, most);
        }
        let present = self.holders().filter(|holder| !holder.is_over(now));
        Present {
            first: present.clone().take(most).map(Holder::cloned).collect(),
            count: present.clone().count(),
            load: present.map(|holder| holder.mode).collect(),
        }
    }

    /// The load of the present tenures.
    #[must_use]
    #[inline]
    pub fn load(&self) -> Load {
        match &self.0 {
            Repr::One(compact) => Load::of(compact.holder().mode),
            Repr::List(None) => Load::NONE,
            Repr::List(Some(list)) => list.holders.load(),
        }
    }

    /// The load of the present tenures, except the tenure with this token.
    pub(crate) fn load_without(&self, token: Option<FencingToken>) -> Load {
        match self.indexed() {
            Some(indexed) => indexed.load_without(token.and_then(|token| Some(self.of_token(token)?.mode))),
            None => {
                let others = self.holders().filter(|holder| Some(holder.token) != token);
                others.map(|holder| holder.mode).collect()
            }
        }
    }

    /// Whether `token` is valid at `now`.
    #[must_use]
    pub fn fencing(&self, token: FencingToken, now: Instant) -> Fencing {
        /// At most this many holders are checked to find the largest token of a present holder.
        const MOST: usize = 4_096;
        let is_present = |holder: &Holder<&Owner>| !holder.is_over(now);
        if self.of_token(token).filter(is_present).is_some() {
            return Fencing::Held;
        }
        let Some((_, last)) = self.last_to_end().filter(|(deadline, _)| *deadline > now) else {
            return Fencing::Free;
        };
        let latest = self.holders().rev().take(MOST).find(is_present);
        Fencing::HeldWith(latest.map_or(last, |holder| holder.token))
    }

    /// The deadline and the token of the tenure whose lease ends last.
    fn last_to_end(&self) -> Option<(Instant, FencingToken)> {
        match &self.0 {
            Repr::One(compact) => Some(compact.holder()).map(|holder| (holder.deadline, holder.token)),
            Repr::List(list) => list.as_ref()?.holders.last_to_end(),
        }
    }

    /// The instant at which the first lease ends.
    #[must_use]
    pub fn first_deadline(&self) -> Option<Instant> {
        match &self.0 {
            Repr::One(compact) => Some(compact.holder().deadline),
            Repr::List(list) => list.as_ref()?.holders.first_deadline(),
        }
    }

    /// The instant at which the last lease ends.
    #[must_use]
    pub fn last_deadline(&self) -> Option<Instant> {
        self.last_to_end().map(|(deadline, _)| deadline)
    }

    /// The expiry time of the key: the wall time of the last deadline, computed when that deadline was set. If the
    /// server deletes the key earlier, a client has set another TTL.
    #[must_use]
    #[inline]
    pub fn expires_at(&self) -> WallTime {
        match &self.0 {
            Repr::One(compact) => compact.expires_at(),
            Repr::List(list) => list.as_ref().map_or(WallTime::EPOCH, |list| list.expires_at),
        }
    }

    /// The expiry time of the key; `None` for a lock that nobody holds.
    #[must_use]
    #[inline]
    pub fn time_to_expire(&self) -> Option<WallTime> {
        (!self.is_free()).then(|| self.expires_at())
    }

    /// Computes the expiry time again by the present wall clock, because the wall clock may have been set since the
    /// last change.
    pub fn recompute_expiry(&mut self, now: Now) {
        if let Some(deadline) = self.last_deadline() {
            self.with_list(|list| list.expires_at = now.wall_at(deadline));
        }
    }

    /// The size of the lock's heap memory in bytes. The memory of the owners is estimated from the first 64
    /// holders.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        const SAMPLED: usize = 64;
        let owners: usize = self.holders().take(SAMPLED).map(|holder| holder.owner.heap_size()).sum();
        let len = self.holders().len();
        let owners = if len > SAMPLED { (owners / SAMPLED).saturating_mul(len) } else { owners };
        match &self.0 {
            Repr::List(Some(list)) => {
                size_of::<List>().saturating_add(list.holders.heap_size()).saturating_add(owners)
            }
            Repr::List(None) | Repr::One(_) => owners,
        }
    }

    /// Whether visiting all holders, or freeing their memory, takes long.
    #[must_use]
    pub fn has_many_holders(&self) -> bool {
        const MANY: usize = 4_096;
        self.holders().len() > MANY
    }

    /// Returns this lock if no copy shares its memory. If a copy shares the memory, returns `None`, and the copy keeps
    /// the memory.
    pub(crate) fn unshared(self) -> Option<Self> {
        match self.0 {
            Repr::List(Some(list)) => {
                let List { holders, expires_at } = *list;
                holders.unshared().map(|holders| Self(Repr::list(holders, expires_at)))
            }
            Repr::One(_) | Repr::List(None) => Some(self),
        }
    }

    /// Removes the first holders of a lock that is not needed any more, so that their memory is freed in parts. Returns
    /// when each tenure began and when its lease ended.
    pub(crate) fn discard(&mut self, most: usize) -> Vec<(Instant, Instant)> {
        let tokens: Vec<FencingToken> = self.holders().take(most).map(|holder| holder.token).collect();
        let mut ended = Vec::with_capacity(tokens.len());
        self.with_list(|list| {
            ended.extend(
                tokens.iter().filter_map(|token| list.holders.end(*token)).map(|h| (h.since, h.deadline)),
            );
        });
        ended
    }

    /// Carries out one change. The holders of a stored lock change in no other way.
    #[inline(always)]
    pub fn apply(&mut self, change: Change, now: Now) {
        match (&self.0, change) {
            // The two most frequent changes need no list: the acquisition of a free lock, and the release by the only
            // holder.
            (_, Change::Put(holder)) if self.is_free() => {
                let expires_at = now.wall_at(holder.deadline);
                // A free lock has no memory to release.
                mem::forget(mem::replace(self, Self::held_by_one(holder, expires_at)));
            }
            (Repr::One(compact), Change::End(token, _)) => {
                if compact.token() == Some(token)
                    // The variant of the old value is known here, so dropping the value takes fewer checks.
                    && let Repr::One(ended) = mem::replace(&mut self.0, Repr::List(None))
                {
                    drop(ended);
                }
            }
            (_, change) => self.apply_other(change, now),
        }
    }

    #[inline(never)]
    fn apply_other(&mut self, change: Change, now: Now) {
        match (&self.0, change) {
            // A renewal or a re-entry of the only holder.
            (Repr::One(compact), Change::Put(holder)) if compact.owner == holder.owner => {
                let same_deadline = compact.holder().deadline == holder.deadline;
                let expires_at =
                    if same_deadline { compact.expires_at() } else { now.wall_at(holder.deadline) };
                *self = Self::held_by_one(holder, expires_at);
            }
            (Repr::One(compact), Change::Count(token, holds)) => {
                if compact.token() == Some(token) {
                    let holder = Holder { holds, ..compact.holder().cloned() };
                    *self = Self::held_by_one(holder, compact.expires_at());
                }
            }
            (_, Change::AllOver) => *self = Self::new(),
            (_, change) => self.with_list(|list| list.apply(change, now)),
        }
    }
}

impl Repr {
    fn list(holders: HolderList, expires_at: WallTime) -> Self {
        Self::List(Some(Box::new(List { holders, expires_at })))
    }
}

impl List {
    fn last_deadline(&self) -> Option<Instant> {
        self.holders.last_to_end().map(|(deadline, _)| deadline)
    }

    fn apply(&mut self, change: Change, now: Now) {
        let before = self.last_deadline();
        match change {
            Change::Put(holder) => {
                self.end_conflicting(&holder);
                self.holders.put(holder);
            }
            Change::Count(token, holds) => self.holders.count(token, holds),
            Change::End(token, _) => _ = self.holders.end(token),
            Change::AllOver => self.holders = HolderList::Few(Vec::new()),
        }
        if let Some(last) = self.last_deadline().filter(|last| Some(*last) != before) {
            self.expires_at = now.wall_at(last);
        }
    }

    /// Ends the tenures that do not fit beside `holder`, the oldest first. If every earlier change was applied, there
    /// are no such tenures. But a damaged AOF may lack the end of a tenure. Too many holders would then remain, and no
    /// server could load an RDB file with this lock.
    fn end_conflicting(&mut self, holder: &Holder) {
        if self.holders.load().admits(holder.mode)
            && self.holders.iter().next_back().map(|last| last.token) < Some(holder.token)
        {
            return;
        }
        let own = self.holders.of_owner(&holder.owner).map(|own| (own.token, own.mode));
        if own == Some((holder.token, holder.mode)) {
            return;
        }
        let same_token = self.holders.of_token(holder.token).filter(|known| known.owner != holder.owner);
        for token in own.map(|(token, _)| token).into_iter().chain(same_token.map(|known| known.token)) {
            self.holders.end(token);
        }
        while !self.holders.load().admits(holder.mode) {
            let Some(oldest) = self.holders.iter().next().map(|oldest| oldest.token) else { return };
            self.holders.end(oldest);
        }
    }
}

#[inline(never)]
fn find<'a>(holders: &'a HolderList, owner: &Owner) -> Option<Holder<&'a Owner>> {
    holders.of_owner(owner).map(Holder::as_ref)
}

#[cfg(test)]
mod tests;
