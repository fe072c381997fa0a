//! The wait queues: one for each lock that clients wait for, first come, first served.
//!
//! A queue exists while clients wait for its lock. Queues exist in memory on the primary alone. They are not stored and not
//! replicated.
//!
//! Every operation costs O(log n), with n the waiters of the queue, or all waiters where a wait limit or a due time is indexed. A
//! waiter is found by its position (to serve it), by its handle (when its client leaves), by its owner (to grant it together
//! with the owner's first wait) and by its limit.
//!
//! Invariants:
//!
//! - A waiter is in one queue. It is indexed by its position, by its owner and by its handle, and in `limits` if it has a limit.
//! - A queue without waiters does not exist.
//! - A queue that is due is in `due`, at its due time or earlier. A renewal or a hand-off makes a queue due later. To move the entry
//!   each time would cost more than to find, once, that the queue is not due yet.

use crate::cluster_slot::{SlotKey, slot_key};
use crate::id_hash::ById;
use crate::name::{Db, LockName};
use crate::outcome::Outcome;
use crate::owner::Owner;
use crate::queue::{Position, Queue};
use crate::request::AcquireRequest;
use crate::units::Instant;
use crate::waiter::{Completion, WaitRequest, Waiter};
use std::cell::Cell;
use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash};
use std::ops::Bound;
use std::rc::Rc;

/// The longest key, in bytes, that a sweep opens. The server hashes a key each time, so a few huge keys would keep it busy. Of a
/// longer key a sweep asks only whether this node still serves its cluster slot.
pub const LONGEST_SWEPT_KEY: usize = 256;

/// Identifies a wait queue within this process. Ids are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(u64);

/// How many clients may wait.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For one lock.
    pub per_lock: usize,
    /// For all locks.
    pub total: usize,
}

/// Why no further client may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The queue of this lock is full.
    Lock,
    /// All queues together are full.
    Total,
}

/// The keyed hash of an owner. Owners with the same hash are indexed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OwnerHash(u64);

/// The positions of an owner's waits. Nearly always there is one, which takes no memory of its own.
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

    /// Removes a position. Returns whether others are left.
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

#[derive(Debug)]
struct QueuedWaiter<H> {
    waiter: Waiter<H>,
    owner: OwnerHash,
}

#[derive(Debug)]
struct WaitQueue<H> {
    db: Db,
    key: Rc<[u8]>,
    waiters: Queue<QueuedWaiter<H>>,
    by_owner: HashMap<OwnerHash, Positions, ById>,
    due: Option<Instant>,
    /// The time under which the queue is in the index of due queues: `due` or earlier.
    indexed_due: Option<Instant>,
    slot_key: Cell<Option<SlotKey>>,
}

impl<H> WaitQueue<H> {
    /// The position of the earliest wait of an owner.
    fn first_of(&self, owner: &Owner, hash: OwnerHash) -> Option<Position> {
        let is_of_owner = |position: &&Position| {
            self.waiters
                .get(**position)
                .is_some_and(|queued| queued.waiter.wait_request.request.owner == *owner)
        };
        self.by_owner.get(&hash)?.iter().find(is_of_owner).copied()
    }
}

/// All wait queues.
#[derive(Debug)]
pub struct WaitQueues<H> {
    by_name: BTreeMap<Db, HashMap<Rc<[u8]>, QueueId>>,
    queues: HashMap<QueueId, WaitQueue<H>, ById>,
    by_handle: HashMap<H, (QueueId, Position), ById>,
    limits: BTreeSet<(Instant, QueueId, Position)>,
    due: BTreeSet<(Instant, QueueId)>,
    /// All queues in the order of a sweep. With their names, so that a sweep need not find each queue.
    sweep_order: BTreeMap<QueueId, LockName>,
    hasher: RandomState,
    /// The queue that was last found by its name. One command looks for it several times.
    last_found: Cell<QueueId>,
    last_id: u64,
    last_position: u64,
}

impl<H: Copy + Eq + Hash> Default for WaitQueues<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Copy + Eq + Hash> WaitQueues<H> {
    /// No queues.
    #[must_use]
    pub fn new() -> Self {
        Self {
            by_name: BTreeMap::new(),
            queues: HashMap::default(),
            by_handle: HashMap::default(),
            limits: BTreeSet::new(),
            due: BTreeSet::new(),
            sweep_order: BTreeMap::new(),
            hasher: RandomState::new(),
            last_found: Cell::new(QueueId(0)),
            last_id: 0,
            last_position: 0,
        }
    }

    /// How many clients wait in all queues.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.by_handle.len()
    }

    /// Whether there is any queue.
    #[must_use]
    #[inline]
    pub fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    /// The queue of a lock.
    #[must_use]
    pub fn queue(&self, db: Db, key: &[u8]) -> Option<QueueId> {
        let last_found = self.last_found.get();
        let is_this = |queue: &WaitQueue<H>| queue.db == db && *queue.key == *key;
        if self.queues.get(&last_found).is_some_and(is_this) {
            return Some(last_found);
        }
        let queue = self.by_name.get(&db)?.get(key).copied()?;
        self.last_found.set(queue);
        Some(queue)
    }

    /// The name of the lock of a queue.
    #[must_use]
    pub fn name(&self, queue: QueueId) -> Option<LockName> {
        self.queues.get(&queue).map(|queue| (queue.db, Rc::clone(&queue.key)))
    }

    /// All queues.
    pub fn queues(&self) -> impl Iterator<Item = QueueId> {
        self.queues.keys().copied()
    }

    /// The queues of one database.
    pub fn queues_of(&self, db: Db) -> impl Iterator<Item = QueueId> {
        self.by_name.get(&db).into_iter().flat_map(HashMap::values).copied()
    }

    /// The locks of one database that clients wait for: the key, the number of waiters, and since when the first of them has
    /// waited.
    pub fn contended(&self, db: Db) -> impl Iterator<Item = (&Rc<[u8]>, usize, Instant)> {
        self.by_name.get(&db).into_iter().flatten().filter_map(|(key, queue)| {
            let waiters = &self.queues.get(queue)?.waiters;
            Some((key, waiters.len(), waiters.first()?.waiter.since))
        })
    }

    /// The waiters in a queue, the next to be served first.
    pub fn waiters_in(&self, queue: QueueId) -> impl Iterator<Item = &Waiter<H>> {
        self.queues
            .get(&queue)
            .into_iter()
            .flat_map(|queue| queue.waiters.in_order())
            .map(|queued| &queued.waiter)
    }

    /// How many clients wait in a queue.
    #[must_use]
    pub fn len(&self, queue: QueueId) -> usize {
        self.queues.get(&queue).map_or(0, |queue| queue.waiters.len())
    }

    /// Whether nobody waits in a queue.
    #[must_use]
    pub fn is_empty(&self, queue: QueueId) -> bool {
        self.len(queue) == 0
    }

    /// Whether `request` may join the queue of a lock. A request that takes over a position always may.
    ///
    /// # Errors
    /// [`Full`] when no further client may wait.
    pub fn may_join(&self, db: Db, key: &[u8], request: &AcquireRequest, limits: Limits) -> Result<(), Full> {
        if self.earlier_wait(db, key, request).is_some() {
            Ok(())
        } else if self.waiters() >= limits.total {
            Err(Full::Total)
        } else if self.queue(db, key).map_or(0, |queue| self.len(queue)) >= limits.per_lock {
            Err(Full::Lock)
        } else {
            Ok(())
        }
    }

    /// Adds a waiter at the end of the queue of a lock. A request that names its count of holds takes over the position of the
    /// owner's earlier wait instead, and that wait is returned as superseded.
    pub fn join(
        &mut self,
        db: Db,
        key: &[u8],
        wait_request: WaitRequest<H>,
        now: Instant,
    ) -> Option<Completion<H>> {
        let earlier = self.earlier_wait(db, key, &wait_request.request);
        let superseded =
            earlier.and_then(|(queue, position)| self.remove(queue, position)).map(|(waiter, _)| waiter);
        let position = earlier.map_or_else(|| self.new_position(), |(_, position)| position);
        let since = superseded.as_ref().map_or(now, |waiter| waiter.since);
        let queue = self.open(db, key);
        self.insert(queue, position, Waiter { wait_request, since });
        superseded.map(|waiter| Completion { waiter, outcome: Outcome::Superseded })
    }

    fn earlier_wait(&self, db: Db, key: &[u8], request: &AcquireRequest) -> Option<(QueueId, Position)> {
        request.holds?;
        let queue = self.queue(db, key)?;
        let position = self.queues.get(&queue)?.first_of(&request.owner, self.hash(&request.owner))?;
        Some((queue, position))
    }

    fn hash(&self, owner: &Owner) -> OwnerHash {
        OwnerHash(self.hasher.hash_one(owner))
    }

    fn new_position(&mut self) -> Position {
        self.last_position = self.last_position.saturating_add(1);
        Position(self.last_position)
    }

    /// The first waiter of a queue: the next to be served.
    #[must_use]
    pub fn front(&self, queue: QueueId) -> Option<&Waiter<H>> {
        self.queues.get(&queue)?.waiters.first().map(|queued| &queued.waiter)
    }

    /// Removes the first waiter of a queue. Returns with it whether its owner may have other waits in the queue; false is certain.
    pub fn pop_front(&mut self, queue: QueueId) -> Option<(Waiter<H>, bool)> {
        let (position, queued) = self.queues.get_mut(&queue)?.waiters.pop_first()?;
        Some(self.unindex(queue, position, queued))
    }

    /// The earliest wait of `owner` in a queue.
    #[must_use]
    pub fn first_of(&self, queue: QueueId, owner: &Owner) -> Option<&Waiter<H>> {
        let hash = self.hash(owner);
        let queue = self.queues.get(&queue)?;
        queue.waiters.get(queue.first_of(owner, hash)?).map(|queued| &queued.waiter)
    }

    /// Removes the earliest wait of `owner` from a queue.
    pub fn pop_owner(&mut self, queue: QueueId, owner: &Owner) -> Option<Waiter<H>> {
        let position = self.queues.get(&queue)?.first_of(owner, self.hash(owner))?;
        self.remove(queue, position).map(|(waiter, _)| waiter)
    }

    /// Removes the waiter with this handle, as its client has left.
    pub fn leave(&mut self, handle: H) -> Option<Waiter<H>> {
        let (queue, position) = *self.by_handle.get(&handle)?;
        self.remove(queue, position).map(|(waiter, _)| waiter)
    }

    /// Removes one waiter that has reached its wait limit.
    pub fn pop_limit_reached(&mut self, now: Instant) -> Option<Waiter<H>> {
        let (_, queue, position) = *self.limits.first().filter(|(limit, ..)| *limit <= now)?;
        self.remove(queue, position).map(|(waiter, _)| waiter)
    }

    /// Sets when the lock of a queue needs its next decision: when its first lease ends.
    pub fn set_due(&mut self, queue: QueueId, due: Option<Instant>) {
        let Some(entry) = self.queues.get_mut(&queue) else { return };
        if entry.due == due {
            return;
        }
        entry.due = due;
        if due.is_some() && entry.indexed_due.is_some() && entry.indexed_due <= due {
            return;
        }
        if let Some(before) = entry.indexed_due.take() {
            self.due.remove(&(before, queue));
        }
        entry.indexed_due = due;
        if let Some(due) = due {
            self.due.insert((due, queue));
        }
    }

    /// Returns one queue that is due now. It is not due any more then.
    pub fn pop_due(&mut self, now: Instant) -> Option<QueueId> {
        loop {
            let (_, queue) = *self.due.first().filter(|(due, _)| *due <= now)?;
            self.due.pop_first();
            let Some(entry) = self.queues.get_mut(&queue) else { continue };
            entry.indexed_due = entry.due.filter(|due| *due > now);
            let Some(due) = entry.indexed_due else {
                entry.due = None;
                return Some(queue);
            };
            self.due.insert((due, queue));
        }
    }

    /// The first instant at which a queue may be due or a wait limit is reached.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let due = self.due.first().map(|(due, _)| *due);
        let limit = self.limits.first().map(|(limit, ..)| *limit);
        due.into_iter().chain(limit).min()
    }

    /// When the lock of a queue needs its next decision.
    #[must_use]
    pub fn due(&self, queue: QueueId) -> Option<Instant> {
        self.queues.get(&queue)?.due
    }

    /// A short key in the same cluster slot as the key of a queue. It is computed once for each queue.
    #[must_use]
    pub fn slot_key(&self, queue: QueueId) -> Option<SlotKey> {
        let queue = self.queues.get(&queue)?;
        let key = queue.slot_key.get().unwrap_or_else(|| slot_key(&queue.key));
        queue.slot_key.set(Some(key));
        Some(key)
    }

    /// The queues that a sweep visits after `last`, with the names of their locks. A sweep goes in the order in which the queues
    /// were opened.
    pub fn after(&self, last: Option<QueueId>) -> impl Iterator<Item = (QueueId, LockName)> {
        let begin = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.sweep_order.range((begin, Bound::Unbounded)).map(|(queue, name)| (*queue, name.clone()))
    }

    fn open(&mut self, db: Db, key: &[u8]) -> QueueId {
        if let Some(id) = self.queue(db, key) {
            return id;
        }
        self.last_id = self.last_id.saturating_add(1);
        let id = QueueId(self.last_id);
        let key: Rc<[u8]> = key.into();
        self.by_name.entry(db).or_default().insert(Rc::clone(&key), id);
        let (waiters, by_owner) = (Queue::new(), HashMap::default());
        self.sweep_order.insert(id, (db, Rc::clone(&key)));
        let (due, indexed_due, slot_key) = (None, None, Cell::new(None));
        self.queues.insert(id, WaitQueue { db, key, waiters, by_owner, due, indexed_due, slot_key });
        id
    }

    fn insert(&mut self, id: QueueId, position: Position, waiter: Waiter<H>) {
        let owner = self.hash(&waiter.wait_request.request.owner);
        let Some(queue) = self.queues.get_mut(&id) else { return };
        self.by_handle.insert(waiter.wait_request.handle, (id, position));
        if let Some(limit) = waiter.wait_request.limit {
            self.limits.insert((limit, id, position));
        }
        queue
            .by_owner
            .entry(owner)
            .and_modify(|positions| positions.insert(position))
            .or_insert(Positions::One(position));
        queue.waiters.insert(position, QueuedWaiter { waiter, owner });
    }

    fn remove(&mut self, id: QueueId, position: Position) -> Option<(Waiter<H>, bool)> {
        let queued = self.queues.get_mut(&id)?.waiters.remove(position)?;
        Some(self.unindex(id, position, queued))
    }

    /// Removes a waiter from all indexes, after it was removed from its queue. Returns with it whether its owner may have other
    /// waits in the queue.
    fn unindex(&mut self, id: QueueId, position: Position, queued: QueuedWaiter<H>) -> (Waiter<H>, bool) {
        let QueuedWaiter { waiter, owner } = queued;
        self.by_handle.remove(&waiter.wait_request.handle);
        shrink_if_sparse(&mut self.by_handle);
        if let Some(limit) = waiter.wait_request.limit {
            self.limits.remove(&(limit, id, position));
        }
        let mut has_other_waits = false;
        if let Some(queue) = self.queues.get_mut(&id) {
            if let Entry::Occupied(mut positions) = queue.by_owner.entry(owner) {
                has_other_waits = positions.get_mut().remove(position);
                if !has_other_waits {
                    positions.remove();
                }
            }
            shrink_if_sparse(&mut queue.by_owner);
            if queue.waiters.len() == 0 {
                self.close(id);
            }
        }
        (waiter, has_other_waits)
    }

    fn close(&mut self, id: QueueId) {
        let Some(queue) = self.queues.remove(&id) else { return };
        shrink_if_sparse(&mut self.queues);
        if let Some(at) = queue.indexed_due {
            self.due.remove(&(at, id));
        }
        if let Some(names) = self.by_name.get_mut(&queue.db) {
            names.remove(&queue.key);
            shrink_if_sparse(names);
            if names.is_empty() {
                self.by_name.remove(&queue.db);
            }
        }
        self.sweep_order.remove(&id);
    }
}

/// Shrinks a table that is nearly empty. It shrinks by a factor, so that the mean cost of a removal stays constant. A table would
/// otherwise keep the memory for the most entries it ever had.
fn shrink_if_sparse<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    const KEPT: usize = 256;
    if table.capacity() > KEPT.saturating_mul(2) && table.len() < table.capacity() / 8 {
        table.shrink_to(KEPT.max(table.len().saturating_mul(2)));
    }
}
