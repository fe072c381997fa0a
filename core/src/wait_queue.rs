//! The wait queue of one lock: who waits, in which order, and whose places are kept. When a kept place does not hold
//! back the waiters behind it any more, the place is *passed over*.

use crate::cluster_slot::{SlotKey, slot_key};
use crate::id_hash::{ById, shrink_if_sparse};
use crate::name::LockName;
use crate::owner::Owner;
use crate::queue::{Position, Queue};
use crate::units::Instant;
use crate::waiter::Waiter;
use std::cell::Cell;
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeMap, BTreeSet};

/// One place in a queue: the place of a waiter, or a place that is kept after its client has left the queue.
#[derive(Debug)]
pub struct Queued<H> {
    /// The waiter. If its client is absent, its handle is not used.
    pub waiter: Waiter<H>,
    /// What is known of a kept place; `None` while the client waits.
    pub absent: Option<Absent>,
    /// The keyed hash of the owner.
    pub owner_hash: u64,
}

/// What is known of a kept place.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    /// The instant at which the wait ended.
    pub since: Instant,
    /// The instant until which this place holds back the places behind it; `None` when this place is passed
    /// over.
    pub holds_back_until: Option<Instant>,
}

impl<H> Queued<H> {
    /// The waiter, if a client waits.
    pub fn waiter(&self) -> Option<&Waiter<H>> {
        self.absent.is_none().then_some(&self.waiter)
    }

    /// Like [`Queued::waiter`], for a place that was removed.
    pub fn into_waiter(self) -> Option<Waiter<H>> {
        self.absent.is_none().then_some(self.waiter)
    }

    /// The owner.
    pub const fn owner(&self) -> &Owner {
        &self.waiter.wait_request.request.owner
    }

    /// The instant at which a kept place ends.
    pub fn ends(&self) -> Option<Instant> {
        self.absent.map(|absent| absent.since.after(self.waiter.wait_request.keep.unwrap_or_default()))
    }

    /// The instant at which the wait limit is reached, or at which a kept place is passed over or ends.
    pub fn limit(&self) -> Option<Instant> {
        match self.absent {
            None => self.waiter.wait_request.wait_limit,
            Some(absent) => absent.holds_back_until.or_else(|| self.ends()),
        }
    }
}

/// The positions of an owner's places. Most owners have one position, which is stored without an allocation.
#[derive(Debug)]
enum Positions {
    One(Position),
    More(BTreeSet<Position>),
}

impl Positions {
    fn iter(&self) -> impl Iterator<Item = Position> {
        let (one, more) = match self {
            Self::One(position) => (Some(*position), None),
            Self::More(positions) => (None, Some(positions)),
        };
        one.into_iter().chain(more.into_iter().flatten().copied())
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

/// The queue of one lock.
#[derive(Debug)]
pub struct WaitQueue<H> {
    /// The name of the lock.
    pub name: LockName,
    /// The waiters, and the kept places that hold back the waiters behind them.
    pub places: Queue<Queued<H>>,
    /// The kept places that hold back no waiter.
    passed_over: BTreeMap<Position, Queued<H>>,
    /// The kept places of both kinds, the oldest first.
    pub kept: BTreeSet<(Instant, Position)>,
    /// The positions of all places, by the keyed hashes of their owners.
    by_owner: HashMap<u64, Positions, ById>,
    slot_key: Cell<Option<SlotKey>>,
    /// When the lock needs its next decision.
    pub due: Option<Instant>,
    /// Whether the lock may have changed without a decision.
    pub changed: bool,
}

impl<H> WaitQueue<H> {
    /// An empty queue.
    pub fn new(name: LockName) -> Self {
        Self {
            name,
            places: Queue::new(),
            passed_over: BTreeMap::new(),
            kept: BTreeSet::new(),
            by_owner: HashMap::default(),
            slot_key: Cell::new(None),
            due: None,
            changed: false,
        }
    }

    /// How many places there are: waiters and kept places.
    pub fn len(&self) -> usize {
        self.places.len().saturating_add(self.passed_over.len())
    }

    /// How many clients wait.
    pub fn waiters(&self) -> usize {
        self.len().saturating_sub(self.kept.len())
    }

    /// How many places the index by owner has. Only tests use this function.
    pub fn owners(&self) -> usize {
        self.by_owner.values().map(|positions| positions.iter().count()).sum()
    }

    /// The place at a position, if there is one.
    pub fn at(&self, position: Position) -> Option<&Queued<H>> {
        self.places.get(position).or_else(|| self.passed_over.get(&position))
    }

    /// The waiters, in the order of the queue.
    pub fn in_order(&self) -> impl Iterator<Item = &Waiter<H>> {
        self.places.in_order().filter_map(Queued::waiter)
    }

    /// The owners of the kept places in the order of the queue, and whether each place holds back the waiters behind
    /// it.
    pub fn kept_in_order(&self) -> impl Iterator<Item = (&Owner, bool)> {
        let positions: BTreeSet<Position> = self.kept.iter().map(|(_, position)| *position).collect();
        positions.into_iter().filter_map(|position| {
            let queued = self.at(position)?;
            Some((queued.owner(), queued.absent?.holds_back_until.is_some()))
        })
    }

    /// The owner's places, in the order of the queue.
    pub fn places_of(&self, owner: &Owner, hash: u64) -> impl Iterator<Item = (Position, &Queued<H>)> {
        let positions = self.by_owner.get(&hash).into_iter().flat_map(Positions::iter);
        let places = positions.filter_map(|position| Some((position, self.at(position)?)));
        places.filter(move |(_, queued)| queued.owner() == owner)
    }

    /// A short key in the same cluster slot as the lock. The short key is computed once.
    pub fn slot_key(&self) -> SlotKey {
        let key = self.slot_key.get().unwrap_or_else(|| slot_key(&self.name.1));
        self.slot_key.set(Some(key));
        key
    }

    /// Adds a place at a free position.
    pub fn insert(&mut self, queued: Queued<H>) {
        let position = queued.waiter.position;
        self.by_owner
            .entry(queued.owner_hash)
            .and_modify(|positions| positions.insert(position))
            .or_insert(Positions::One(position));
        if let Some(absent) = queued.absent {
            self.kept.insert((absent.since, position));
            if absent.holds_back_until.is_none() {
                self.passed_over.insert(position, queued);
                return;
            }
        }
        self.places.insert(position, queued);
    }

    /// Removes the place at a position, if there is one. Returns the place, and whether its owner, or another owner
    /// with the same hash, has other places.
    pub fn remove(&mut self, position: Position) -> Option<(Queued<H>, bool)> {
        let queued = self.places.remove(position).or_else(|| self.passed_over.remove(&position))?;
        if let Some(absent) = queued.absent {
            self.kept.remove(&(absent.since, position));
        }
        let mut has_other_places = false;
        if let Entry::Occupied(mut positions) = self.by_owner.entry(queued.owner_hash) {
            has_other_places = positions.get_mut().remove(position);
            if !has_other_places {
                positions.remove();
            }
        }
        shrink_if_sparse(&mut self.by_owner);
        Some((queued, has_other_places))
    }
}
