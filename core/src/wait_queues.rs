//! The wait queues: first come, first served, one line a lock.
//!
//! A line exists while somebody waits for a lock. Lines live in memory on the primary alone; they are not stored and not
//! sent to replicas.
//!
//! Every operation costs O(log n) in the waiters of the line, or in all waiters where a wait limit or a due time is
//! indexed; none looks at all waiters. A waiter is found by its place (to serve it), by its handle (when its client
//! leaves), by its owner (to grant it together with the owner's first wait) and by its limit.
//!
//! Invariants: a waiter stands in exactly one line, under its place, under its owner and under its handle, and in
//! `limits` when it has a limit; a line without waiters does not exist. A line that is due stands in `due`, at that time
//! or before: a lease that is renewed or handed over makes a line due later, and to move it there each time would cost more
//! than to find, once, that its time has not come.

use crate::id_hash::ById;
use crate::name::{Db, LockName};
use crate::outcome::Outcome;
use crate::owner::Owner;
use crate::queue::{Position, Queue};
use crate::request::AcquireRequest;
use crate::slot::{SlotKey, slot_key};
use crate::units::Instant;
use crate::waiter::{Completion, WaitRequest, Waiter};
use std::cell::Cell;
use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash};
use std::ops::Bound;
use std::rc::Rc;

/// The longest key, in bytes, that the sweeps open. The server hashes a key each time, so a few huge keys would keep it busy. Of
/// longer keys they ask only whether this node still serves the slot.
pub const LONGEST_SWEPT_KEY: usize = 256;

/// The name of a line within this process. Names are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(u64);

/// How many may wait.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For one lock.
    pub per_lock: usize,
    /// For all locks.
    pub total: usize,
}

/// A line that nobody more may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The line of this lock.
    Lock,
    /// The lines of all locks together.
    Total,
}

/// The hash of an owner, told apart from all others by nobody outside. Owners of one hash stand under it together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OwnerHash(u64);

/// Where the waits of an owner stand: nearly always there is one, which takes no memory of its own.
#[derive(Debug)]
enum Places {
    One(Position),
    More(BTreeSet<Position>),
}

impl Places {
    fn iter(&self) -> impl Iterator<Item = &Position> {
        let (one, more) = match self {
            Self::One(place) => (Some(place), None),
            Self::More(places) => (None, Some(places)),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    fn add(&mut self, place: Position) {
        match self {
            Self::One(first) => *self = Self::More(BTreeSet::from([*first, place])),
            Self::More(places) => {
                places.insert(place);
            }
        }
    }

    /// Takes a place out. Whether there are others.
    fn take(&mut self, place: Position) -> bool {
        match self {
            Self::One(_) => false,
            Self::More(places) => {
                places.remove(&place);
                !places.is_empty()
            }
        }
    }
}

#[derive(Debug)]
struct Standing<H> {
    waiter: Waiter<H>,
    owner: OwnerHash,
}

#[derive(Debug)]
struct WaitQueue<H> {
    db: Db,
    key: Rc<[u8]>,
    waiters: Queue<Standing<H>>,
    by_owner: HashMap<OwnerHash, Places, ById>,
    due: Option<Instant>,
    /// When it stands in the index of due lines.
    looked_up: Option<Instant>,
    slot_key: Cell<Option<SlotKey>>,
}

impl<H> WaitQueue<H> {
    /// The place of the earliest wait of an owner.
    fn first_of(&self, owner: &Owner, hash: OwnerHash) -> Option<Position> {
        let its_own = |place: &&Position| {
            self.waiters
                .get(**place)
                .is_some_and(|standing| standing.waiter.wait_request.request.owner == *owner)
        };
        self.by_owner.get(&hash)?.iter().find(its_own).copied()
    }
}

/// All lines.
#[derive(Debug)]
pub struct WaitQueues<H> {
    names: BTreeMap<Db, HashMap<Rc<[u8]>, QueueId>>,
    queues: HashMap<QueueId, WaitQueue<H>, ById>,
    by_handle: HashMap<H, (QueueId, Position), ById>,
    limits: BTreeSet<(Instant, QueueId, Position)>,
    due: BTreeSet<(Instant, QueueId)>,
    /// With their names, so that a round need not look for each line.
    in_turn: BTreeMap<QueueId, LockName>,
    owners: RandomState,
    /// The line that was last asked for by its name: one command asks several times.
    asked_last: Cell<QueueId>,
    next_line: u64,
    next_place: u64,
}

impl<H: Copy + Eq + Hash> Default for WaitQueues<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Copy + Eq + Hash> WaitQueues<H> {
    /// A room in which nobody waits.
    #[must_use]
    pub fn new() -> Self {
        Self {
            names: BTreeMap::new(),
            queues: HashMap::default(),
            by_handle: HashMap::default(),
            limits: BTreeSet::new(),
            due: BTreeSet::new(),
            in_turn: BTreeMap::new(),
            owners: RandomState::new(),
            asked_last: Cell::new(QueueId(0)),
            next_line: 0,
            next_place: 0,
        }
    }

    /// How many wait in all lines.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.by_handle.len()
    }

    /// Whether there is any line.
    #[must_use]
    #[inline]
    pub fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    /// The line of a lock.
    #[must_use]
    pub fn queue(&self, db: Db, key: &[u8]) -> Option<QueueId> {
        let asked_last = self.asked_last.get();
        let is_this = |queue: &WaitQueue<H>| queue.db == db && *queue.key == *key;
        if self.queues.get(&asked_last).is_some_and(is_this) {
            return Some(asked_last);
        }
        let queue = self.names.get(&db)?.get(key).copied()?;
        self.asked_last.set(queue);
        Some(queue)
    }

    /// The database and key of a line.
    #[must_use]
    pub fn name(&self, queue: QueueId) -> Option<LockName> {
        self.queues.get(&queue).map(|queue| (queue.db, Rc::clone(&queue.key)))
    }

    /// All lines.
    pub fn queues(&self) -> impl Iterator<Item = QueueId> {
        self.queues.keys().copied()
    }

    /// The lines of one database.
    pub fn queues_of(&self, db: Db) -> impl Iterator<Item = QueueId> {
        self.names.get(&db).into_iter().flat_map(HashMap::values).copied()
    }

    /// The locks of one database that are waited for: the key, how many wait, and since when the first of them does.
    pub fn contended(&self, db: Db) -> impl Iterator<Item = (&Rc<[u8]>, usize, Instant)> {
        self.names.get(&db).into_iter().flatten().filter_map(|(key, queue)| {
            let waiters = &self.queues.get(queue)?.waiters;
            Some((key, waiters.len(), waiters.first()?.waiter.since))
        })
    }

    /// Who waits in a line, next to be served first.
    pub fn waiters_in(&self, queue: QueueId) -> impl Iterator<Item = &Waiter<H>> {
        self.queues
            .get(&queue)
            .into_iter()
            .flat_map(|queue| queue.waiters.in_order())
            .map(|standing| &standing.waiter)
    }

    /// How many wait in a line.
    #[must_use]
    pub fn len(&self, queue: QueueId) -> usize {
        self.queues.get(&queue).map_or(0, |queue| queue.waiters.len())
    }

    /// Whether nobody waits in a line.
    #[must_use]
    pub fn is_empty(&self, queue: QueueId) -> bool {
        self.len(queue) == 0
    }

    /// Whether `request` may join the line of a lock. Taking over a place is always allowed.
    ///
    /// # Errors
    /// [`Full`] when no more may wait.
    pub fn may_join(&self, db: Db, key: &[u8], request: &AcquireRequest, caps: Limits) -> Result<(), Full> {
        if self.earlier_wait(db, key, request).is_some() {
            Ok(())
        } else if self.waiters() >= caps.total {
            Err(Full::Total)
        } else if self.queue(db, key).map_or(0, |queue| self.len(queue)) >= caps.per_lock {
            Err(Full::Lock)
        } else {
            Ok(())
        }
    }

    /// Joins the line of a lock at its end; or, for a request that names the count it should lead to, takes over the
    /// place of the owner's earlier wait, which is then told so.
    pub fn join(
        &mut self,
        db: Db,
        key: &[u8],
        wait_request: WaitRequest<H>,
        now: Instant,
    ) -> Option<Completion<H>> {
        let earlier = self.earlier_wait(db, key, &wait_request.request);
        let superseded =
            earlier.and_then(|(queue, place)| self.remove(queue, place)).map(|(waiter, _)| waiter);
        let place = earlier.map_or_else(|| self.new_place(), |(_, place)| place);
        let since = superseded.as_ref().map_or(now, |waiter| waiter.since);
        let queue = self.open(db, key);
        self.insert(queue, place, Waiter { wait_request, since });
        superseded.map(|waiter| Completion { waiter, outcome: Outcome::Superseded })
    }

    fn earlier_wait(&self, db: Db, key: &[u8], request: &AcquireRequest) -> Option<(QueueId, Position)> {
        request.holds?;
        let queue = self.queue(db, key)?;
        let place = self.queues.get(&queue)?.first_of(&request.owner, self.hash(&request.owner))?;
        Some((queue, place))
    }

    fn hash(&self, owner: &Owner) -> OwnerHash {
        OwnerHash(self.owners.hash_one(owner))
    }

    fn new_place(&mut self) -> Position {
        self.next_place = self.next_place.saturating_add(1);
        Position(self.next_place)
    }

    /// The next to be served.
    #[must_use]
    pub fn front(&self, queue: QueueId) -> Option<&Waiter<H>> {
        self.queues.get(&queue)?.waiters.first().map(|standing| &standing.waiter)
    }

    /// Takes the next to be served out of its line. False beside it when its owner has no other wait there.
    pub fn pop_front(&mut self, queue: QueueId) -> Option<(Waiter<H>, bool)> {
        let (place, standing) = self.queues.get_mut(&queue)?.waiters.pop_first()?;
        Some(self.removed(queue, place, standing))
    }

    /// The earliest wait of `owner` in a line.
    #[must_use]
    pub fn first_of(&self, queue: QueueId, owner: &Owner) -> Option<&Waiter<H>> {
        let hash = self.hash(owner);
        let queue = self.queues.get(&queue)?;
        queue.waiters.get(queue.first_of(owner, hash)?).map(|standing| &standing.waiter)
    }

    /// Takes the earliest wait of `owner` out of a line.
    pub fn pop_owner(&mut self, queue: QueueId, owner: &Owner) -> Option<Waiter<H>> {
        let place = self.queues.get(&queue)?.first_of(owner, self.hash(owner))?;
        self.remove(queue, place).map(|(waiter, _)| waiter)
    }

    /// Takes out the waiter with this handle: its client has left.
    pub fn leave(&mut self, handle: H) -> Option<Waiter<H>> {
        let (queue, place) = *self.by_handle.get(&handle)?;
        self.remove(queue, place).map(|(waiter, _)| waiter)
    }

    /// Takes out one waiter whose limit has been reached.
    pub fn pop_limit_reached(&mut self, now: Instant) -> Option<Waiter<H>> {
        let (_, queue, place) = *self.limits.first().filter(|(limit, ..)| *limit <= now)?;
        self.remove(queue, place).map(|(waiter, _)| waiter)
    }

    /// Sets when the lock of a line must be looked at again: when its first lease ends.
    pub fn set_due(&mut self, queue: QueueId, due: Option<Instant>) {
        let Some(entry) = self.queues.get_mut(&queue) else { return };
        if entry.due == due {
            return;
        }
        entry.due = due;
        if due.is_some() && entry.looked_up.is_some() && entry.looked_up <= due {
            return;
        }
        if let Some(before) = entry.looked_up.take() {
            self.due.remove(&(before, queue));
        }
        entry.looked_up = due;
        if let Some(due) = due {
            self.due.insert((due, queue));
        }
    }

    /// Takes one line whose time has come; it is not due any more.
    pub fn pop_due(&mut self, now: Instant) -> Option<QueueId> {
        loop {
            let (_, queue) = *self.due.first().filter(|(due, _)| *due <= now)?;
            self.due.pop_first();
            let Some(entry) = self.queues.get_mut(&queue) else { continue };
            entry.looked_up = entry.due.filter(|due| *due > now);
            let Some(due) = entry.looked_up else {
                entry.due = None;
                return Some(queue);
            };
            self.due.insert((due, queue));
        }
    }

    /// The first instant at which a line may be due or a limit is reached.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let due = self.due.first().map(|(due, _)| *due);
        let limit = self.limits.first().map(|(limit, ..)| *limit);
        due.into_iter().chain(limit).min()
    }

    /// When the lock of a line is to be looked at again.
    #[must_use]
    pub fn due(&self, queue: QueueId) -> Option<Instant> {
        self.queues.get(&queue)?.due
    }

    /// A short key of the same cluster slot as the key of a queue. Found once for each queue.
    #[must_use]
    pub fn slot_key(&self, queue: QueueId) -> Option<SlotKey> {
        let queue = self.queues.get(&queue)?;
        let key = queue.slot_key.get().unwrap_or_else(|| slot_key(&queue.key));
        queue.slot_key.set(Some(key));
        Some(key)
    }

    /// The queues behind `last` in a round through all, in the order in which they were opened: each with its database and key.
    pub fn after(&self, last: Option<QueueId>) -> impl Iterator<Item = (QueueId, LockName)> {
        let begin = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.in_turn.range((begin, Bound::Unbounded)).map(|(queue, name)| (*queue, name.clone()))
    }

    fn open(&mut self, db: Db, key: &[u8]) -> QueueId {
        if let Some(id) = self.queue(db, key) {
            return id;
        }
        self.next_line = self.next_line.saturating_add(1);
        let id = QueueId(self.next_line);
        let key: Rc<[u8]> = key.into();
        self.names.entry(db).or_default().insert(Rc::clone(&key), id);
        let (waiters, by_owner) = (Queue::new(), HashMap::default());
        self.in_turn.insert(id, (db, Rc::clone(&key)));
        let (due, looked_up, slot_key) = (None, None, Cell::new(None));
        self.queues.insert(id, WaitQueue { db, key, waiters, by_owner, due, looked_up, slot_key });
        id
    }

    fn insert(&mut self, id: QueueId, place: Position, waiter: Waiter<H>) {
        let owner = self.hash(&waiter.wait_request.request.owner);
        let Some(queue) = self.queues.get_mut(&id) else { return };
        self.by_handle.insert(waiter.wait_request.handle, (id, place));
        if let Some(limit) = waiter.wait_request.limit {
            self.limits.insert((limit, id, place));
        }
        queue.by_owner.entry(owner).and_modify(|places| places.add(place)).or_insert(Places::One(place));
        queue.waiters.insert(place, Standing { waiter, owner });
    }

    fn remove(&mut self, id: QueueId, place: Position) -> Option<(Waiter<H>, bool)> {
        let standing = self.queues.get_mut(&id)?.waiters.remove(place)?;
        Some(self.removed(id, place, standing))
    }

    /// Takes out of all indexes who has been taken out of the line. Whether others of that owner may wait there.
    fn removed(&mut self, id: QueueId, place: Position, standing: Standing<H>) -> (Waiter<H>, bool) {
        let Standing { waiter, owner } = standing;
        self.by_handle.remove(&waiter.wait_request.handle);
        give_room_back(&mut self.by_handle);
        if let Some(limit) = waiter.wait_request.limit {
            self.limits.remove(&(limit, id, place));
        }
        let mut waits_again = false;
        if let Some(queue) = self.queues.get_mut(&id) {
            if let Entry::Occupied(mut places) = queue.by_owner.entry(owner) {
                waits_again = places.get_mut().take(place);
                if !waits_again {
                    places.remove();
                }
            }
            give_room_back(&mut queue.by_owner);
            if queue.waiters.len() == 0 {
                self.close(id);
            }
        }
        (waiter, waits_again)
    }

    fn close(&mut self, id: QueueId) {
        let Some(queue) = self.queues.remove(&id) else { return };
        give_room_back(&mut self.queues);
        if let Some(at) = queue.looked_up {
            self.due.remove(&(at, id));
        }
        if let Some(names) = self.names.get_mut(&queue.db) {
            names.remove(&queue.key);
            give_room_back(names);
            if names.is_empty() {
                self.names.remove(&queue.db);
            }
        }
        self.in_turn.remove(&id);
    }
}

/// Makes a table smaller that is nearly empty, in steps of a factor, so that it costs a removal next to nothing. By itself it
/// would keep the room for the most there ever were.
fn give_room_back<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    const KEPT: usize = 256;
    if table.capacity() > KEPT.saturating_mul(2) && table.len() < table.capacity() / 8 {
        table.shrink_to(KEPT.max(table.len().saturating_mul(2)));
    }
}
