//! The holders of a lock with several holders, in the order of their tokens. The grants were made in the same order.
//!
//! A few holders are stored in a sorted list, because a list takes the least memory and is cheap to scan. For more
//! holders, there is an index for each query, so that an operation costs at most O(log n) for each holder that it
//! visits:
//!
//! | question | index |
//! | --- | --- |
//! | which tenure has this token, and which were granted first | `by_token` |
//! | which tenure has this owner | [`ByOwner`] |
//! | which lease ends first, and which last | `by_deadline` |
//! | the smallest limit | `limits`: how many holders have each limit |
//! | the sum of the weights | `weight` |

use crate::holder::{Holder, Load, Mode, Slots};
use crate::id_hash::{ById, shrink_if_sparse};
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::Instant;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map, hash_map};
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::Arc;
use std::{iter, mem, option, slice};

/// The largest number of holders in a sorted list.
const FEW: usize = 32;

/// When an indexed lock has only this many holders left, the holders are stored in a list again.
const FEW_AGAIN: usize = FEW / 2;

/// Holders. No two holders have the same owner or the same token.
#[derive(Clone, Debug)]
pub enum HolderList {
    /// Sorted by token.
    Few(Vec<Holder>),
    /// A copy of the lock shares this memory until the lock or the copy changes. So copying many holders is
    /// as cheap as copying a few.
    Many(Arc<Indexed>),
}

#[derive(Clone, Debug, Default)]
pub struct Indexed {
    /// The holders are in boxes to keep the nodes of the tree small. Nodes are about half empty, and a search reads
    /// several nodes, which are seldom in the CPU cache.
    by_token: BTreeMap<FencingToken, Box<Holder>>,
    by_owner: ByOwner,
    by_deadline: BTreeSet<(Instant, FencingToken)>,
    limits: BTreeMap<Slots, usize>,
    weight: u64,
}

/// The tokens of tenures by the keyed hash of their owners.
///
/// A table that grows rehashes its entries, which blocks the server. So the index has several tables. The
/// tables grow at different times, and each table blocks the server for a shorter time.
#[derive(Clone, Debug, Default)]
struct ByOwner {
    tables: [HashMap<u64, FencingToken, ById>; TABLES],
    /// Tenures whose owner has the same hash as an earlier owner. This list is nearly always empty.
    collisions: Vec<FencingToken>,
    hasher: RandomState,
}

const TABLES: usize = 16;

/// The holders of a lock in the order of their tokens: [`Lock::holders`](crate::Lock::holders).
#[derive(Clone, Debug)]
pub struct Holders<'a>(Iter<'a>);

#[derive(Clone, Debug)]
enum Iter<'a> {
    One(option::IntoIter<Holder<&'a Owner>>),
    Few(slice::Iter<'a, Holder>),
    Many(btree_map::Values<'a, FencingToken, Box<Holder>>),
}

impl<'a> Holders<'a> {
    /// At most one holder.
    pub(crate) fn one(holder: Option<Holder<&'a Owner>>) -> Self {
        Self(Iter::One(holder.into_iter()))
    }
}

impl<'a> Iterator for Holders<'a> {
    type Item = Holder<&'a Owner>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Iter::One(holder) => holder.next(),
            Iter::Few(holders) => holders.next().map(Holder::as_ref),
            Iter::Many(holders) => holders.next().map(|holder| holder.as_ref().as_ref()),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Iter::One(holder) => holder.size_hint(),
            Iter::Few(holders) => holders.size_hint(),
            Iter::Many(holders) => holders.size_hint(),
        }
    }
}

impl DoubleEndedIterator for Holders<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Iter::One(holder) => holder.next_back(),
            Iter::Few(holders) => holders.next_back().map(Holder::as_ref),
            Iter::Many(holders) => holders.next_back().map(|holder| holder.as_ref().as_ref()),
        }
    }
}

impl ExactSizeIterator for Holders<'_> {}

/// The holders whose leases are not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The first holders, up to the requested number.
    pub first: Vec<Holder>,
    /// How many holders there are.
    pub count: usize,
    /// The sum of their weights, and their smallest limit.
    pub load: Load,
}

/// No owner and no token may occur twice.
impl From<Vec<Holder>> for HolderList {
    fn from(mut holders: Vec<Holder>) -> Self {
        holders.sort_unstable_by_key(|holder| holder.token);
        if holders.len() <= FEW { Self::Few(holders) } else { Self::Many(Arc::new(Indexed::of(holders))) }
    }
}

impl HolderList {
    /// These holders in trees, even if there are few holders.
    #[cfg(test)]
    pub fn of_trees(holders: Vec<Holder>) -> Self {
        Self::Many(Arc::new(Indexed::of(holders)))
    }

    /// The indexes, if there are more than a few holders.
    pub fn indexed(&self) -> Option<&Indexed> {
        match self {
            Self::Few(_) => None,
            Self::Many(indexed) => Some(indexed),
        }
    }

    pub fn iter(&self) -> Holders<'_> {
        Holders(match self {
            Self::Few(holders) => Iter::Few(holders.iter()),
            Self::Many(indexed) => Iter::Many(indexed.by_token.values()),
        })
    }

    /// The holders whose tokens are larger than `after`, or all holders for `None`. The caller does not change tokens.
    pub fn iter_mut(&mut self, after: Option<FencingToken>) -> Box<dyn Iterator<Item = &mut Holder> + '_> {
        match self {
            Self::Few(holders) => {
                Box::new(holders.iter_mut().filter(move |holder| Some(holder.token) > after))
            }
            Self::Many(indexed) => {
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                let holders = Arc::make_mut(indexed).by_token.range_mut((from, Bound::Unbounded));
                Box::new(holders.map(|(_, holder)| holder.as_mut()))
            }
        }
    }

    pub fn of_token(&self, token: FencingToken) -> Option<&Holder> {
        match self {
            Self::Few(holders) => holders.iter().find(|holder| holder.token == token),
            Self::Many(indexed) => indexed.by_token.get(&token).map(Box::as_ref),
        }
    }

    pub fn of_owner(&self, owner: &Owner) -> Option<&Holder> {
        match self {
            Self::Few(holders) => holders.iter().find(|holder| holder.owner == *owner),
            Self::Many(indexed) => indexed.of_owner(owner),
        }
    }

    pub fn first_deadline(&self) -> Option<Instant> {
        match self {
            Self::Few(holders) => holders.iter().map(|holder| holder.deadline).min(),
            Self::Many(indexed) => indexed.by_deadline.first().map(|(deadline, _)| *deadline),
        }
    }

    pub fn load(&self) -> Load {
        match self {
            Self::Few(holders) => holders.iter().map(|holder| holder.mode).collect(),
            Self::Many(indexed) => indexed.load_without(iter::empty()),
        }
    }

    /// The deadline and the token of the tenure whose lease ends last.
    pub fn last_to_end(&self) -> Option<(Instant, FencingToken)> {
        match self {
            Self::Few(holders) => {
                let last = holders.iter().max_by_key(|holder| holder.deadline);
                last.map(|holder| (holder.deadline, holder.token))
            }
            Self::Many(indexed) => indexed.by_deadline.last().copied(),
        }
    }

    /// Adds a tenure. If the owner already has a tenure, the new tenure replaces it.
    pub fn put(&mut self, holder: Holder) {
        match self {
            Self::Few(holders) => {
                holders.retain(|known| known.owner != holder.owner);
                let at = holders.partition_point(|other| other.token < holder.token);
                holders.insert(at, holder);
                if holders.len() > FEW {
                    *self = Self::Many(Arc::new(Indexed::of(mem::take(holders))));
                }
            }
            Self::Many(indexed) => Arc::make_mut(indexed).put(holder),
        }
    }

    pub fn count(&mut self, token: FencingToken, holds: u32) {
        let known = match self {
            Self::Few(holders) => holders.iter_mut().find(|holder| holder.token == token),
            Self::Many(indexed) => Arc::make_mut(indexed).by_token.get_mut(&token).map(Box::as_mut),
        };
        if let Some(known) = known {
            known.holds = holds;
        }
    }

    pub fn end(&mut self, token: FencingToken) -> Option<Holder> {
        match self {
            Self::Few(holders) => {
                let at = holders.iter().position(|holder| holder.token == token)?;
                Some(holders.remove(at))
            }
            Self::Many(indexed) => {
                let indexed = Arc::make_mut(indexed);
                let ended = indexed.remove(token);
                if indexed.by_token.len() <= FEW_AGAIN {
                    let holders = mem::take(&mut indexed.by_token).into_values();
                    *self = Self::Few(holders.map(|holder| *holder).collect());
                }
                ended
            }
        }
    }

    /// Returns this list if no copy shares its memory. If a copy shares the memory, returns `None`, and the copy
    /// keeps the memory.
    pub fn unshared(self) -> Option<Self> {
        match self {
            Self::Few(_) => Some(self),
            Self::Many(shared) => Arc::into_inner(shared).map(|indexed| Self::Many(Arc::new(indexed))),
        }
    }

    /// Removes the only holder.
    pub fn pop_only(&mut self) -> Option<Holder> {
        match self {
            Self::Few(holders) if holders.len() == 1 => holders.pop(),
            Self::Few(_) | Self::Many(_) => None,
        }
    }

    /// The size of the heap memory in bytes, without the memory of the owners. Trees and tables are about
    /// half empty, so their entries count twice.
    pub fn heap_size(&self) -> usize {
        match self {
            Self::Few(holders) => holders.capacity().saturating_mul(size_of::<Holder>()),
            Self::Many(indexed) => {
                let entries = size_of::<(FencingToken, Box<Holder>)>()
                    .saturating_add(size_of::<(u64, FencingToken)>())
                    .saturating_add(size_of::<(Instant, FencingToken)>());
                let each = size_of::<Holder>().saturating_add(entries.saturating_mul(2));
                size_of::<Indexed>().saturating_add(indexed.by_token.len().saturating_mul(each))
            }
        }
    }
}

impl Indexed {
    /// Builds each tree from all entries at once, which costs O(n) if the entries are sorted. The largest index is
    /// built first, so that the list is freed before the other indexes are built.
    fn of(holders: Vec<Holder>) -> Self {
        let by_token: BTreeMap<FencingToken, Box<Holder>> =
            holders.into_iter().map(|holder| (holder.token, Box::new(holder))).collect();
        let by_deadline = by_token.values().map(|holder| (holder.deadline, holder.token)).collect();
        let mut indexed = Self { by_deadline, ..Self::default() };
        indexed.by_owner.reserve(by_token.len());
        for holder in by_token.values() {
            indexed.add_mode(holder.mode);
            indexed.by_owner.insert(indexed.by_owner.hash(&holder.owner), holder.token);
        }
        indexed.by_token = by_token;
        indexed
    }

    /// How many holders each index has.
    pub fn lengths(&self) -> [usize; 4] {
        [self.by_token.len(), self.by_owner.len(), self.by_deadline.len(), self.limits.values().sum()]
    }

    /// The tokens of the tenures whose leases are over.
    pub fn expired(&self, now: Instant) -> impl DoubleEndedIterator<Item = FencingToken> + Clone {
        self.by_deadline.range(..=(now, FencingToken::MAX)).map(|(_, token)| *token)
    }

    /// The holders whose leases are not over, and the first `most` of them. To count the holders, this function visits
    /// those whose leases are over or those whose leases are not, whichever are fewer.
    pub fn present(&self, now: Instant, most: usize) -> Present {
        let over = self.expired(now);
        let after = (Bound::Excluded((now, FencingToken::MAX)), Bound::Unbounded);
        let present = self.by_deadline.range(after).map(|(_, token)| *token);
        let fewer = over.clone().zip(present.clone()).count();
        let mode = |token| self.by_token.get(&token).map(|holder| holder.mode);
        if over.clone().nth(fewer).is_none() {
            let first = self.by_token.values().filter(|holder| !holder.is_over(now)).take(most);
            Present {
                first: first.map(|holder| Holder::clone(holder)).collect(),
                count: self.by_token.len().saturating_sub(fewer),
                load: self.load_without(over.filter_map(mode)),
            }
        } else {
            let tokens: BTreeSet<FencingToken> = present.collect();
            let first = tokens.iter().take(most).filter_map(|token| self.by_token.get(token));
            Present {
                first: first.map(|holder| Holder::clone(holder)).collect(),
                count: fewer,
                load: tokens.iter().copied().filter_map(mode).collect(),
            }
        }
    }

    fn add_mode(&mut self, mode: Mode) {
        let count = self.limits.entry(mode.slots).or_default();
        *count = count.saturating_add(1);
        self.weight = self.weight.saturating_add(u64::from(mode.weight.number()));
    }

    fn remove_mode(&mut self, mode: Mode) {
        if let Some(count) = self.limits.get_mut(&mode.slots) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.limits.remove(&mode.slots);
            }
        }
        self.weight = self.weight.saturating_sub(u64::from(mode.weight.number()));
    }

    /// The load of the holders that are left when, for each of these modes, one holder of this mode is taken away.
    pub fn load_without(&self, modes: impl IntoIterator<Item = Mode>) -> Load {
        let (mut weight, mut limits) = (self.weight, BTreeMap::<Slots, usize>::new());
        for mode in modes {
            weight = weight.saturating_sub(mode.weight.number().into());
            let count = limits.entry(mode.slots).or_default();
            *count = count.saturating_add(1);
        }
        let is_left = |(slots, count): &(&Slots, &usize)| limits.get(*slots) < Some(*count);
        Load { weight, slots: self.limits.iter().find(is_left).map_or(Slots::SHARED, |(slots, _)| *slots) }
    }

    fn of_owner(&self, owner: &Owner) -> Option<&Holder> {
        self.by_owner.find(self.by_owner.hash(owner), owner, &self.by_token)
    }

    fn put(&mut self, holder: Holder) {
        let token = holder.token;
        // A renewal keeps the token and the owner, so the indexes by token and by owner do not change.
        if let Some(known) = self.by_token.get_mut(&token).filter(|known| known.owner == holder.owner) {
            let (mode, deadline) = (holder.mode, holder.deadline);
            let before = mem::replace(&mut **known, holder);
            if before.deadline != deadline {
                self.by_deadline.remove(&(before.deadline, token));
                self.by_deadline.insert((deadline, token));
            }
            if before.mode != mode {
                self.remove_mode(before.mode);
                self.add_mode(mode);
            }
            return;
        }
        let hash = self.by_owner.hash(&holder.owner);
        if let Some(known) = self.by_owner.find(hash, &holder.owner, &self.by_token).map(|known| known.token)
        {
            self.remove(known);
        }
        self.by_owner.insert(hash, token);
        self.by_deadline.insert((holder.deadline, token));
        self.add_mode(holder.mode);
        self.by_token.insert(token, Box::new(holder));
    }

    fn remove(&mut self, token: FencingToken) -> Option<Holder> {
        let holder = *self.by_token.remove(&token)?;
        self.by_owner.remove(self.by_owner.hash(&holder.owner), token);
        self.by_deadline.remove(&(holder.deadline, token));
        self.remove_mode(holder.mode);
        Some(holder)
    }
}

impl ByOwner {
    fn table(&self, hash: u64) -> Option<&HashMap<u64, FencingToken, ById>> {
        self.tables.get(Self::number(hash))
    }

    fn table_mut(&mut self, hash: u64) -> Option<&mut HashMap<u64, FencingToken, ById>> {
        self.tables.get_mut(Self::number(hash))
    }

    fn number(hash: u64) -> usize {
        usize::try_from(hash >> 32).unwrap_or(0) % TABLES
    }

    fn hash(&self, owner: &Owner) -> u64 {
        self.hasher.hash_one(owner)
    }

    fn find<'a>(
        &self,
        hash: u64,
        owner: &Owner,
        holders: &'a BTreeMap<FencingToken, Box<Holder>>,
    ) -> Option<&'a Holder> {
        let first = self.table(hash)?.get(&hash);
        let known = first.into_iter().chain(&self.collisions).filter_map(|token| holders.get(token));
        known.map(Box::as_ref).find(|holder| holder.owner == *owner)
    }

    /// Inserts the tenure of an owner that has no tenure.
    fn insert(&mut self, hash: u64, new: FencingToken) {
        if let Some(table) = self.table_mut(hash) {
            match table.entry(hash) {
                hash_map::Entry::Vacant(vacant) => _ = vacant.insert(new),
                hash_map::Entry::Occupied(_) => self.collisions.push(new),
            }
        }
    }

    fn remove(&mut self, hash: u64, token: FencingToken) {
        match self.table_mut(hash) {
            Some(table) if table.get(&hash) == Some(&token) => {
                table.remove(&hash);
                shrink_if_sparse(table);
            }
            Some(_) | None => self.collisions.retain(|other| *other != token),
        }
    }

    fn len(&self) -> usize {
        self.tables.iter().map(HashMap::len).fold(self.collisions.len(), usize::saturating_add)
    }

    fn reserve(&mut self, count: usize) {
        self.tables.iter_mut().for_each(|table| table.reserve(count / TABLES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::Weight;

    fn holder(owner: u64, token: u64, (slots, weight): (u32, u32), deadline: i64) -> Holder {
        Holder {
            owner: Owner::new(format!("owner {owner}").as_bytes()).unwrap(),
            holds: 1,
            mode: Mode { slots: Slots::new(slots).unwrap(), weight: Weight::new(weight).unwrap() },
            token: FencingToken::new(token).unwrap(),
            deadline: Instant::from_micros(deadline),
            since: Instant::from_micros(0),
        }
    }

    #[test]
    fn a_long_list_becomes_trees_and_a_short_one_a_list_again() {
        let is_list = |list: &HolderList| matches!(list, HolderList::Few(_));
        let mut list = HolderList::Few(Vec::new());
        let few = u64::try_from(FEW).unwrap();
        for number in 1..=few + 1 {
            assert!(is_list(&list));
            list.put(holder(number, number, (0, 1), 5));
        }
        let trees_take = list.heap_size();
        assert!(!is_list(&list));
        for number in 1..=few + 1 - u64::try_from(FEW_AGAIN).unwrap() {
            assert!(!is_list(&list));
            assert_eq!(
                list.end(FencingToken::new(number).unwrap()).map(|ended| ended.token.get()),
                Some(number)
            );
        }
        assert!(is_list(&list) && list.iter().len() == FEW_AGAIN && list.heap_size() < trees_take);
        assert_eq!(list.pop_only(), None);
        let from = |count: u64| {
            HolderList::from((1..=count).rev().map(|n| holder(n, n, (0, 1), 5)).collect::<Vec<_>>())
        };
        assert!(is_list(&from(few)) && !is_list(&from(few + 1)));
        assert!(from(few).iter().zip(from(few + 1).iter()).all(|(one, other)| one == other));
        assert_eq!(from(1).pop_only().map(|only| only.token.get()), Some(1));
    }

    #[test]
    fn owners_with_the_same_hash_are_told_apart() {
        let (one, other) = (holder(1, 1, (0, 1), 5), holder(2, 2, (0, 1), 5));
        let by_token: BTreeMap<_, _> =
            [&one, &other].map(|holder| (holder.token, Box::new(holder.clone()))).into();
        let mut by_owner = ByOwner::default();
        let hash = by_owner.hash(&one.owner);
        let found = |by_owner: &ByOwner| {
            let token = |holder: &Holder| Some(by_owner.find(hash, &holder.owner, &by_token)?.token);
            [&one, &other].map(token)
        };
        by_owner.insert(hash, one.token);
        by_owner.insert(hash, other.token);
        assert_eq!(by_owner.collisions, [other.token]);
        assert_eq!(found(&by_owner), [Some(one.token), Some(other.token)]);
        by_owner.remove(hash, one.token);
        assert_eq!(found(&by_owner), [None, Some(other.token)], "the first has left");
        by_owner.remove(hash, other.token);
        assert_eq!((found(&by_owner), by_owner.collisions.len()), ([None, None], 0));
    }
}
