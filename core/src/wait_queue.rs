//! The wait queue of one lock: who waits, in which order, and whose places are kept. When a kept place does not hold
//! back the waiters behind it any more, the place is *passed over*.

use crate::cluster_slot::{SlotKey, slot_key};
use crate::id_hash::{ById, shrink_if_sparse};
use crate::name::{Db, LockName};
use crate::owner::Owner;
use crate::queue::{Position, Queue};
use crate::units::Instant;
use crate::waiter::{Place, Waiter};
use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// The keyed hash of an owner. Owners with the same hash share an index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerHash(pub u64);

/// The positions of an owner's places. Most owners have one position, which is stored without an allocation.
#[derive(Debug)]
enum Positions {
    One(Position),
    More(BTreeSet<Position>),
}

impl Positions {
    fn iter(&self) -> impl Iterator<Item = &Position> {
        let (one, more) = match self {
            Self::One(position) => (Some(position), None),
            Self::More(positions) => (None, Some(positions)),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    fn insert(&mut self, position: Position) {
        match self {
            Self::One(first) => *self = Self::More(BTreeSet::from([*first, position])),
            Self::More(positions) => {
                positions.insert(position);
            }
        }
    }

    /// Removes a position. Returns whether other positions are left.
    fn remove(&mut self, position: Position) -> bool {
        match self {
            Self::One(_) => false,
            Self::More(positions) => {
                positions.remove(&position);
                !positions.is_empty()
            }
        }
    }
}

/// One place in a queue.
#[derive(Debug)]
pub struct Queued<H> {
    /// The waiter, or the owner for whom the place is kept.
    pub who: Who<H>,
    owner: OwnerHash,
}

/// Who has a place in the queue.
#[derive(Debug)]
pub enum Who<H> {
    /// A client waits.
    Present(Waiter<H>),
    /// The owner's client has left the queue, and the place is kept.
    Absent(KeptPlace),
}

/// A place that is kept for an absent owner.
#[derive(Debug)]
pub struct KeptPlace {
    /// The owner, and the data of its wait.
    pub place: Place,
    /// The instant at which the wait ended.
    pub kept_since: Instant,
    /// The instant until which this place holds back the places behind it; `None` when this place is passed
    /// over.
    pub holds_back_until: Option<Instant>,
}

impl KeptPlace {
    /// The instant at which the place ends.
    pub const fn ends(&self) -> Instant {
        self.kept_since.after(self.place.keep)
    }
}

impl<H> Queued<H> {
    /// A place. `hash` is the hash of its owner.
    pub const fn new(who: Who<H>, hash: OwnerHash) -> Self {
        Self { who, owner: hash }
    }

    /// The waiter, if a client waits.
    pub const fn waiter(&self) -> Option<&Waiter<H>> {
        match &self.who {
            Who::Present(waiter) => Some(waiter),
            Who::Absent(_) => None,
        }
    }

    const fn owner(&self) -> &Owner {
        self.who.owner()
    }

    /// The count of holds that the request named.
    pub const fn holds(&self) -> Option<u32> {
        match &self.who {
            Who::Present(waiter) => waiter.wait_request.request.holds,
            Who::Absent(kept) => Some(kept.place.holds),
        }
    }

    /// The instant at which the wait limit is reached, or at which a kept place is passed over or ends.
    pub fn limit(&self) -> Option<Instant> {
        match &self.who {
            Who::Present(waiter) => waiter.wait_request.wait_limit,
            Who::Absent(kept) => Some(kept.holds_back_until.unwrap_or_else(|| kept.ends())),
        }
    }

    /// The instant since which the owner has waited.
    pub const fn since(&self) -> Instant {
        match &self.who {
            Who::Present(waiter) => waiter.since,
            Who::Absent(kept) => kept.place.since,
        }
    }
}

impl<H> Who<H> {
    /// The owner.
    pub const fn owner(&self) -> &Owner {
        match self {
            Self::Present(waiter) => &waiter.wait_request.request.owner,
            Self::Absent(kept) => &kept.place.owner,
        }
    }
}

/// The queue of one lock.
#[derive(Debug)]
pub struct WaitQueue<H> {
    name: LockName,
    /// The waiters, and the kept places that hold back the waiters behind them.
    places: Queue<Queued<H>>,
    /// The kept places that hold back no waiter.
    passed_over: BTreeMap<Position, Queued<H>>,
    /// The kept places of both kinds, the oldest first.
    kept: BTreeSet<(Instant, Position)>,
    /// How many clients wait.
    waiters: usize,
    by_owner: HashMap<OwnerHash, Positions, ById>,
    slot_key: Cell<Option<SlotKey>>,
    /// When the lock needs its next decision.
    pub due: Option<Instant>,
    /// The time under which the queue is in the index of due queues: `due` or earlier.
    pub indexed_due: Option<Instant>,
    /// Whether the lock may have changed without a decision.
    pub changed: bool,
}

impl<H> WaitQueue<H> {
    /// An empty queue.
    pub fn new(db: Db, key: Rc<[u8]>) -> Self {
        Self {
            name: (db, key),
            places: Queue::new(),
            passed_over: BTreeMap::new(),
            kept: BTreeSet::new(),
            waiters: 0,
            by_owner: HashMap::default(),
            slot_key: Cell::new(None),
            due: None,
            indexed_due: None,
            changed: false,
        }
    }

    /// The name of the lock.
    pub const fn name(&self) -> &LockName {
        &self.name
    }

    /// How many clients wait.
    pub const fn waiters(&self) -> usize {
        self.waiters
    }

    /// How many places are kept.
    pub fn kept_places(&self) -> usize {
        self.kept.len()
    }

    /// The place that has been kept for the longest time.
    pub fn oldest_kept(&self) -> Option<Position> {
        self.kept.first().map(|(_, position)| *position)
    }

    /// Whether nobody waits and no places are kept.
    pub fn is_empty(&self) -> bool {
        self.places.len() == 0 && self.passed_over.is_empty()
    }

    /// The place at a position, if there is one.
    pub fn at(&self, position: Position) -> Option<&Queued<H>> {
        self.places.get(position).or_else(|| self.passed_over.get(&position))
    }

    /// The first position. Places that are passed over do not count.
    pub fn first_position(&self) -> Option<Position> {
        self.places.first_position()
    }

    /// The waiter at the first position; `None` while a kept place holds back all waiters.
    pub fn front(&self) -> Option<&Waiter<H>> {
        self.places.first()?.waiter()
    }

    /// The waiters, in the order of the queue.
    pub fn in_order(&self) -> impl Iterator<Item = &Waiter<H>> {
        self.places.in_order().filter_map(Queued::waiter)
    }

    /// The kept places in the order of the queue.
    pub fn kept_in_order(&self) -> impl Iterator<Item = &KeptPlace> {
        let positions: BTreeSet<Position> = self.kept.iter().map(|(_, position)| *position).collect();
        positions.into_iter().filter_map(|position| match &self.at(position)?.who {
            Who::Present(_) => None,
            Who::Absent(kept) => Some(kept),
        })
    }

    /// The owner's places, in the order of the queue.
    pub fn places_of(&self, owner: &Owner, hash: OwnerHash) -> impl Iterator<Item = (Position, &Queued<H>)> {
        let positions = self.by_owner.get(&hash).into_iter().flat_map(Positions::iter);
        let places = positions.filter_map(|position| Some((*position, self.at(*position)?)));
        places.filter(move |(_, queued)| queued.owner() == owner)
    }

    /// A short key in the same cluster slot as the lock. The short key is computed once.
    pub fn slot_key(&self) -> SlotKey {
        let key = self.slot_key.get().unwrap_or_else(|| slot_key(&self.name.1));
        self.slot_key.set(Some(key));
        key
    }

    /// How many entries the index by position and the index by owner have. Only tests use this function.
    pub fn index_lengths(&self) -> [usize; 2] {
        [
            self.places.len().saturating_add(self.passed_over.len()),
            self.by_owner.values().map(|positions| positions.iter().count()).sum(),
        ]
    }

    /// Adds a place at a free position.
    pub fn insert(&mut self, position: Position, queued: Queued<H>) {
        self.by_owner
            .entry(queued.owner)
            .and_modify(|positions| positions.insert(position))
            .or_insert(Positions::One(position));
        match &queued.who {
            Who::Present(_) => self.waiters = self.waiters.saturating_add(1),
            Who::Absent(kept) => {
                self.kept.insert((kept.kept_since, position));
                if kept.holds_back_until.is_none() {
                    self.passed_over.insert(position, queued);
                    return;
                }
            }
        }
        self.places.insert(position, queued);
    }

    /// Removes the place at a position, if there is one.
    pub fn remove(&mut self, position: Position) -> Option<Queued<H>> {
        let queued = self.places.remove(position).or_else(|| self.passed_over.remove(&position))?;
        self.unindex(position, &queued);
        Some(queued)
    }

    /// Removes the first place that is not passed over. Returns the place, and whether its owner may have other places
    /// in the queue. The second value is also true if another owner with the same hash has a place.
    pub fn pop_first(&mut self) -> Option<(Position, Queued<H>, bool)> {
        let (position, queued) = self.places.pop_first()?;
        let has_other_places = self.unindex(position, &queued);
        Some((position, queued, has_other_places))
    }

    /// Removes a place from the indexes, after it was removed from the queue. Returns whether its owner, or another
    /// owner with the same hash, has other places.
    fn unindex(&mut self, position: Position, queued: &Queued<H>) -> bool {
        match &queued.who {
            Who::Present(_) => self.waiters = self.waiters.saturating_sub(1),
            Who::Absent(kept) => {
                self.kept.remove(&(kept.kept_since, position));
            }
        }
        let mut has_other_places = false;
        if let Entry::Occupied(mut positions) = self.by_owner.entry(queued.owner) {
            has_other_places = positions.get_mut().remove(position);
            if !has_other_places {
                positions.remove();
            }
        }
        shrink_if_sparse(&mut self.by_owner);
        has_other_places
    }
}
