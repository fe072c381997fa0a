//! The wait queues: one for each lock that clients wait for, first come, first served.
//!
//! A queue exists while clients wait for its lock, or while places in the queue are kept. Queues are in the memory of
//! the primary only. Queues are neither stored nor replicated. A queue is *due* when the lock of the queue needs a
//! decision.
//!
//! An operation on one waiter or place costs O(log n). For an index of one queue, n is the number of its waiters. For
//! an index of all queues, such as the wait limits, n is the number of all waiters. A waiter is found by its position
//! (to serve it), by its handle (when its client leaves), by its owner (when the owner's first wait is granted) and by
//! its limit.
//!
//! A place can be kept for an owner whose client has left the queue:
//!
//! ```text
//!            the wait limit is reached             100 ms later
//! waiter  ---------------------------->  absent  ----------------->  passed over  ---------->  gone
//!    |                                 (holds back                        ^         KEEP ms
//!    |                                 those behind)                      |         after the wait ended
//!    `--------------------------------------------------------------------'
//!            the connection is closed
//! ```
//!
//! While a place is absent or passed over, the owner's next request with HOLDS takes the place over. Some clients wait
//! in slices: they repeat the request again and again, each time with a short wait limit. Without the 100 ms, readers
//! could overtake a writer between its slices, and the writer could starve.
//!
//! Invariants:
//!
//! - A waiter is in one queue, and is indexed by its position, by its owner and by its handle. A waiter with
//!   a limit is also in `limits`.
//! - A kept place is indexed by its position, by its owner, by its age, and in `limits`. The position of the place is
//!   in `places` while the place holds back the waiters behind it, and in `passed_over` afterwards.
//! - The places of an owner that name a count of holds come before its other places, because a request that names a
//!   count takes over the first place. (A place that is kept after RENAME may come later. Such a place ends when its
//!   KEEP time is over.)
//! - A queue without waiters and kept places does not exist.

use crate::cluster_slot::SlotKey;
use crate::id_hash::{ById, shrink_if_sparse};
use crate::name::{Db, LockName};
use crate::outcome::Outcome;
use crate::owner::Owner;
use crate::queue::Position;
use crate::request::AcquireRequest;
use crate::units::{Instant, Span};
use crate::wait_queue::{Absent, Queued, WaitQueue};
use crate::waiter::{Completion, WaitRequest, Waiter};
use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash};
use std::mem;
use std::ops::Bound;
use std::rc::Rc;

/// The longest key, in bytes, that a sweep opens. The server hashes a key each time the key is opened, so a few huge
/// keys would keep the server busy. For a longer key, a sweep asks only whether this node still serves the cluster slot
/// of the key.
pub const LONGEST_SWEPT_KEY: usize = 256;

/// How long a kept place holds back the places behind it, from the instant at which the wait limit is
/// reached.
const HOLDS_BACK: Span = Span::millis(100);

/// Identifies a wait queue within this process. An id is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(u64);

/// The position of a sweep: the database, the hash of the key and the queue that it visited last.
pub type QueueSweepPosition = (Db, u64, QueueId);

/// Limits on the number of waiting clients. Kept places also count, but the oldest kept place is removed when a client
/// needs room.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// How many clients may wait for one lock.
    pub per_lock: usize,
    /// How many clients may wait for all locks together.
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

/// Why a client leaves its wait queue. The reason decides whether the kept place of the client holds back the waiters
/// behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The wait limit was reached, or CLIENT UNBLOCK ended the wait. The client receives null, and may send its next
    /// request at once.
    LimitReached,
    /// The client's connection is closed.
    Disconnected,
}

/// What [`WaitQueues::pop_limit_reached`] has found.
#[derive(Debug)]
pub enum LimitReached<H> {
    /// A waiter has reached its wait limit.
    Wait(Waiter<H>),
    /// A kept place has ended, or does not hold back the waits behind it any more.
    Place,
}

/// All wait queues.
#[derive(Debug)]
pub struct WaitQueues<H> {
    queues: HashMap<QueueId, WaitQueue<H>, ById>,
    /// The queues by the keyed hashes of their keys.
    by_name: BTreeSet<QueueSweepPosition>,
    by_handle: HashMap<H, (QueueId, Position), ById>,
    /// The instants at which waits reach their limits or kept places change.
    limits: BTreeSet<(Instant, QueueId, Position)>,
    /// All kept places, the oldest first.
    kept: BTreeSet<(Instant, QueueId, Position)>,
    due: BTreeSet<(Instant, QueueId)>,
    hasher: RandomState,
    /// The queue that was last found by its name. One command looks up the same queue several times, and this
    /// field saves the later lookups.
    last_found: Cell<QueueId>,
    last_id: u64,
    last_position: u64,
}

impl<H> Default for WaitQueues<H> {
    fn default() -> Self {
        Self {
            queues: HashMap::default(),
            by_name: BTreeSet::new(),
            by_handle: HashMap::default(),
            limits: BTreeSet::new(),
            kept: BTreeSet::new(),
            due: BTreeSet::new(),
            hasher: RandomState::new(),
            last_found: Cell::new(QueueId(0)),
            last_id: 0,
            last_position: 0,
        }
    }
}

impl<H: Copy + Eq + Hash> WaitQueues<H> {
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
        let is_this = |queue: &QueueId| {
            self.queues.get(queue).is_some_and(|queue| queue.name.0 == db && *queue.name.1 == *key)
        };
        let last_found = self.last_found.get();
        if is_this(&last_found) {
            return Some(last_found);
        }
        if !self.has_queues() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let same_hash = self.by_name.range((db, hash, QueueId(0))..=(db, hash, QueueId(u64::MAX)));
        let queue = same_hash.map(|(.., queue)| *queue).find(is_this)?;
        self.last_found.set(queue);
        Some(queue)
    }

    /// The name of the lock of a queue.
    #[must_use]
    pub fn name(&self, queue: QueueId) -> Option<LockName> {
        self.queues.get(&queue).map(|queue| queue.name.clone())
    }

    /// All queues.
    pub fn queues(&self) -> impl Iterator<Item = QueueId> {
        self.queues.keys().copied()
    }

    /// The queues of one database.
    pub fn queues_of(&self, db: Db) -> impl Iterator<Item = QueueId> {
        let of_db = (db, 0, QueueId(0))..=(db, u64::MAX, QueueId(u64::MAX));
        self.by_name.range(of_db).map(|(.., queue)| *queue)
    }

    /// The locks of one database that clients wait for: the key, the number of waiters, and the instant since which the
    /// first waiter has waited.
    pub fn contended(&self, db: Db) -> impl Iterator<Item = (&Rc<[u8]>, usize, Instant)> {
        self.queues_of(db).filter_map(|queue| {
            let queue = self.queues.get(&queue)?;
            let first = queue.in_order().next()?;
            Some((&queue.name.1, queue.waiters(), first.since))
        })
    }

    /// The waiters in a queue, the next to be served first.
    pub fn waiters_in(&self, queue: QueueId) -> impl Iterator<Item = &Waiter<H>> {
        self.queues.get(&queue).into_iter().flat_map(WaitQueue::in_order)
    }

    /// How many clients wait in a queue.
    #[must_use]
    pub fn len(&self, queue: QueueId) -> usize {
        self.queues.get(&queue).map_or(0, WaitQueue::waiters)
    }

    /// Whether nobody waits in a queue.
    #[must_use]
    pub fn is_empty(&self, queue: QueueId) -> bool {
        self.len(queue) == 0
    }

    /// How many places are kept, in all queues.
    #[must_use]
    pub fn kept_places(&self) -> usize {
        self.kept.len()
    }

    /// The owners of the kept places of a queue, in the order of the queue, and whether each place holds back the
    /// waiters behind it.
    pub fn places_in(&self, queue: QueueId) -> impl Iterator<Item = (&Owner, bool)> {
        self.queues.get(&queue).into_iter().flat_map(WaitQueue::kept_in_order)
    }

    /// The name and the length of each index. Only tests use this function.
    #[must_use]
    pub fn index_lengths(&self) -> [(&'static str, usize); 8] {
        let sum = |count: fn(&WaitQueue<H>) -> usize| self.queues.values().map(count).sum();
        let due_queues: usize = sum(|queue| usize::from(queue.due.is_some()));
        [
            ("waiters", sum(WaitQueue::waiters)),
            ("by position", sum(WaitQueue::len)),
            ("by owner", sum(WaitQueue::owners)),
            ("limits", self.limits.len()),
            ("kept of all queues", self.kept.len()),
            ("kept of each queue", sum(|queue| queue.kept.len())),
            ("names", self.by_name.len()),
            ("due without a queue", self.due.len().saturating_sub(due_queues)),
        ]
    }

    /// Whether a request has to wait behind other requests. This function ignores the kept
    /// places that hold back no waiter. So a request does not wait if it takes over the first of the other places, or
    /// an ignored place before it.
    #[must_use]
    pub fn is_behind(&self, queue: QueueId, request: &AcquireRequest) -> bool {
        let Some(first) = self.first_position(queue) else { return false };
        let own = || request.holds.and_then(|_| self.first_place_of(queue, &request.owner));
        own().is_none_or(|own| own > first)
    }

    /// Whether `request` may join the queue of a lock. A request that takes over a place may always join. Kept places
    /// do not make a queue full: one kept place is removed instead.
    ///
    /// # Errors
    /// [`Full`] when no further client may wait.
    pub fn may_join(
        &self,
        db: Db,
        key: &[u8],
        request: &AcquireRequest,
        limits: QueueLimits,
    ) -> Result<(), Full> {
        if self.earlier_place(db, key, request).is_some() {
            Ok(())
        } else if self.waiters() >= limits.total {
            Err(Full::Total)
        } else if self.queue(db, key).map_or(0, |queue| self.len(queue)) >= limits.per_lock {
            Err(Full::Lock)
        } else {
            Ok(())
        }
    }

    /// Adds a waiter at the end of the queue of a lock. If the request names its count of holds, the waiter takes over
    /// the owner's earlier place instead. If another client waits in that place, the function returns the wait of that
    /// client as superseded. When there are too many places, the oldest kept place is removed.
    pub fn join(
        &mut self,
        db: Db,
        key: &[u8],
        wait_request: WaitRequest<H>,
        limits: QueueLimits,
        now: Instant,
    ) -> Option<Completion<H>> {
        let earlier = self.earlier_place(db, key, &wait_request.request);
        let earlier = earlier.and_then(|(queue, position)| Some((position, self.take(queue, position)?)));
        let position = earlier.as_ref().map_or_else(|| self.new_position(), |(position, _)| *position);
        let since = earlier.as_ref().map_or(now, |(_, queued)| queued.waiter.since);
        let queue = self.open(db, key);
        self.insert(queue, Waiter { wait_request, since, position }, None);
        self.give_way(queue, limits, now);
        let waiter = earlier?.1.into_waiter()?;
        Some(Completion { waiter, outcome: Outcome::Superseded })
    }

    /// Keeps the place of a waiter that was granted the lock but whose client left before the reply was sent. The place
    /// is passed over.
    pub fn keep(&mut self, db: Db, key: &[u8], place: Waiter<H>, limits: QueueLimits, now: Instant) {
        let queue = self.open(db, key);
        self.insert(queue, place, Some(Absent { since: now, holds_back_until: None }));
        self.give_way(queue, limits, now);
    }

    /// Removes the oldest kept places while there are more places than the limits allow.
    fn give_way(&mut self, queue: QueueId, limits: QueueLimits, now: Instant) {
        while let Some(entry) = self.queues.get(&queue)
            && entry.len() > limits.per_lock
            && let Some((_, position)) = entry.kept.first().copied()
        {
            self.end_place(queue, position, now);
        }
        while self.waiters().saturating_add(self.kept.len()) > limits.total
            && let Some((_, queue, position)) = self.kept.first().copied()
        {
            self.end_place(queue, position, now);
        }
    }

    fn earlier_place(&self, db: Db, key: &[u8], request: &AcquireRequest) -> Option<(QueueId, Position)> {
        request.holds?;
        let queue = self.queue(db, key)?;
        Some((queue, self.first_place_of(queue, &request.owner)?))
    }

    fn first_place_of(&self, queue: QueueId, owner: &Owner) -> Option<Position> {
        self.places_of(queue, owner).next().map(|(position, _)| position)
    }

    /// The owner's places in a queue, in the order of the queue.
    fn places_of(&self, queue: QueueId, owner: &Owner) -> impl Iterator<Item = (Position, &Queued<H>)> {
        let queue = self.queues.get(&queue).into_iter();
        queue.flat_map(move |queue| queue.places_of(owner, self.hasher.hash_one(owner)))
    }

    /// The first position. This function ignores the kept places that hold back no waiter.
    fn first_position(&self, queue: QueueId) -> Option<Position> {
        self.queues.get(&queue)?.places.first_position()
    }

    fn new_position(&mut self) -> Position {
        self.last_position = self.last_position.saturating_add(1);
        Position(self.last_position)
    }

    /// The first waiter of a queue: the next to be served. `None` when nobody waits, or while a kept place holds back
    /// all waiters.
    #[must_use]
    pub fn front(&self, queue: QueueId) -> Option<&Waiter<H>> {
        self.queues.get(&queue)?.places.first()?.waiter()
    }

    /// Removes the first waiter of a queue. Returns the waiter, and whether its owner may have other places in the
    /// queue. The second value is also true if another owner with the same hash has a place. Also removes a kept place
    /// before the waiter, so call this only to serve the first waiter or to end all waits.
    pub fn pop_front(&mut self, queue: QueueId) -> Option<(Waiter<H>, bool)> {
        loop {
            let entry = self.queues.get_mut(&queue)?;
            let (queued, has_other_places) = entry.remove(entry.places.first_position()?)?;
            let is_empty = entry.len() == 0;
            self.unindex(queue, &queued);
            if is_empty {
                self.close(queue);
            }
            if let Some(waiter) = queued.into_waiter() {
                return Some((waiter, has_other_places));
            }
        }
    }

    /// Removes all kept places of a queue.
    pub fn forget_places(&mut self, queue: QueueId) {
        while let Some((_, position)) = self.queues.get(&queue).and_then(|queue| queue.kept.first().copied())
        {
            self.remove(queue, position);
        }
    }

    /// Removes the kept places of all queues.
    pub fn forget_all_places(&mut self) {
        while let Some((_, queue, position)) = self.kept.first().copied() {
            self.remove(queue, position);
        }
    }

    /// The earliest wait of `owner` in a queue.
    #[must_use]
    pub fn first_of(&self, queue: QueueId, owner: &Owner) -> Option<&Waiter<H>> {
        self.places_of(queue, owner).find_map(|(_, queued)| queued.waiter())
    }

    /// Removes the first place of `owner` in a queue. Returns the wait in that place; `None` for a kept place.
    pub fn pop_first_place(&mut self, queue: QueueId, owner: &Owner) -> Option<Waiter<H>> {
        let position = self.first_place_of(queue, owner)?;
        self.remove(queue, position)?.into_waiter()
    }

    /// Removes the earliest wait of `owner` from a queue. The owner's kept places that come before this
    /// wait are removed too.
    pub fn pop_owner(&mut self, queue: QueueId, owner: &Owner) -> Option<Waiter<H>> {
        self.pop_while(queue, owner, |_| true)
    }

    /// Removes the earliest wait of `owner` that names a count of holds above `holds`. Kept places of the owner that
    /// come before this wait are removed too. The search ends at the first place that names no such count.
    pub fn pop_naming_more(&mut self, queue: QueueId, owner: &Owner, holds: u32) -> Option<Waiter<H>> {
        self.pop_while(queue, owner, |place| place.wait_request.request.holds > Some(holds))
    }

    /// Removes the kept places of an owner that now holds the lock, and so needs no place. The owner must not have a
    /// wait in the queue.
    pub(crate) fn end_places_of(&mut self, queue: QueueId, owner: &Owner, now: Instant) {
        while let Some(position) = self.first_place_of(queue, owner) {
            self.end_place(queue, position, now);
        }
    }

    /// Removes the places of `owner` in the order of the queue while `is_meant` returns true. Stops after the first
    /// wait, and returns this wait.
    fn pop_while(
        &mut self,
        queue: QueueId,
        owner: &Owner,
        is_meant: impl Fn(&Waiter<H>) -> bool,
    ) -> Option<Waiter<H>> {
        loop {
            let (position, queued) = self.places_of(queue, owner).next()?;
            if !is_meant(&queued.waiter) {
                return None;
            }
            if let Some(waiter) = self.remove(queue, position)?.into_waiter() {
                return Some(waiter);
            }
        }
    }

    /// Removes the waiter with this handle, because its client has left or was unblocked. The place of the
    /// waiter may be kept. If the waiter was the first in its queue, the queue is due, because the next
    /// waiters may fit.
    pub fn leave(&mut self, handle: H, absence: Absence, now: Instant) -> Option<Waiter<H>> {
        let (queue, position) = *self.by_handle.get(&handle)?;
        self.end_wait(queue, position, absence, now)
    }

    /// Removes one waiter that has reached its wait limit, or changes one kept place, which then is passed over or
    /// ends. If the first place of a queue changes, the queue is due.
    pub fn pop_limit_reached(&mut self, now: Instant) -> Option<LimitReached<H>> {
        let (_, queue, position) = *self.limits.first().filter(|(limit, ..)| *limit <= now)?;
        if self.queues.get(&queue)?.at(position)?.absent.is_none() {
            return self.end_wait(queue, position, Absence::LimitReached, now).map(LimitReached::Wait);
        }
        let was_first = self.is_first(queue, position);
        let queued = self.take(queue, position)?;
        if queued.ends() > Some(now) {
            let absent = queued.absent.map(|absent| Absent { holds_back_until: None, ..absent });
            self.insert(queue, queued.waiter, absent);
        }
        self.removed(queue, was_first, now);
        Some(LimitReached::Place)
    }

    fn end_wait(
        &mut self,
        queue: QueueId,
        position: Position,
        absence: Absence,
        now: Instant,
    ) -> Option<Waiter<H>> {
        let was_first = self.is_first(queue, position);
        let waiter = self.take(queue, position)?.into_waiter()?;
        if let Some(place) = waiter.place() {
            let holds_back = |keep: Span| now.after(keep.min(HOLDS_BACK));
            let holds_back_until = match absence {
                Absence::LimitReached => place.wait_request.keep.map(holds_back),
                Absence::Disconnected => None,
            };
            self.insert(queue, place, Some(Absent { since: now, holds_back_until }));
        }
        self.removed(queue, was_first, now);
        Some(waiter)
    }

    fn end_place(&mut self, queue: QueueId, position: Position, now: Instant) {
        let was_first = self.is_first(queue, position);
        self.take(queue, position);
        self.removed(queue, was_first, now);
    }

    fn is_first(&self, queue: QueueId, position: Position) -> bool {
        self.first_position(queue) == Some(position)
    }

    /// Call this after removing a place. If the first place was removed and clients wait behind it, the queue is due,
    /// because these clients may fit now.
    fn removed(&mut self, queue: QueueId, was_first: bool, now: Instant) {
        if was_first && self.front(queue).is_some() {
            self.set_due(queue, Some(now));
        }
        self.close_if_empty(queue);
    }

    /// Sets when the lock of a queue needs its next decision, for example when the first lease of the lock ends. If the
    /// lock may have changed without a decision, this function does not delay the decision, because not every decision
    /// does what such a change needs.
    pub fn set_due(&mut self, queue: QueueId, due: Option<Instant>) {
        let Some(entry) = self.queues.get_mut(&queue) else { return };
        let due = if entry.changed { due.into_iter().chain(entry.due).min() } else { due };
        let before = mem::replace(&mut entry.due, due);
        if let Some(before) = before.filter(|before| Some(*before) != due) {
            self.due.remove(&(before, queue));
        }
        if let Some(due) = due {
            self.due.insert((due, queue));
        }
    }

    /// Records that the lock of a queue may have changed without a decision. The queue is due now.
    pub fn set_changed(&mut self, queue: QueueId, now: Instant) {
        if let Some(entry) = self.queues.get_mut(&queue) {
            entry.changed = true;
        }
        self.set_due(queue, Some(now));
    }

    /// Whether a lock whose first lease ends at `ends` has changed without a decision. Every decision makes the queue
    /// due at the end of the first lease, or earlier. So if the queue is due later than `ends`, the lock has changed
    /// since.
    #[must_use]
    pub fn has_missed_change(&self, queue: QueueId, ends: Instant) -> bool {
        self.due(queue).is_none_or(|due| due > ends)
    }

    /// Returns one queue that is due now, and whether its lock may have changed without a decision. The queue is not
    /// found again until the caller sets when it is due.
    pub fn pop_due(&mut self, now: Instant) -> Option<(QueueId, bool)> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        let (_, queue) = self.due.pop_first()?;
        Some((queue, mem::take(&mut self.queues.get_mut(&queue)?.changed)))
    }

    /// The first instant at which a queue is due or a wait limit is reached.
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

    /// A short key in the same cluster slot as the key of a queue. The short key is computed once for each queue.
    #[must_use]
    pub fn slot_key(&self, queue: QueueId) -> Option<SlotKey> {
        self.queues.get(&queue).map(WaitQueue::slot_key)
    }

    /// The queues that a sweep visits after `last`, with the names of their locks.
    pub fn after(
        &self,
        last: Option<QueueSweepPosition>,
    ) -> impl Iterator<Item = (QueueSweepPosition, LockName)> {
        let begin = last.map_or(Bound::Unbounded, Bound::Excluded);
        let positions = self.by_name.range((begin, Bound::Unbounded));
        positions.filter_map(|position| Some((*position, self.name(position.2)?)))
    }

    fn open(&mut self, db: Db, key: &[u8]) -> QueueId {
        if let Some(id) = self.queue(db, key) {
            return id;
        }
        self.last_id = self.last_id.saturating_add(1);
        let id = QueueId(self.last_id);
        self.by_name.insert((db, self.hasher.hash_one(key), id));
        self.queues.insert(id, WaitQueue::new((db, key.into())));
        id
    }

    fn insert(&mut self, id: QueueId, waiter: Waiter<H>, absent: Option<Absent>) {
        let owner_hash = self.hasher.hash_one(&waiter.wait_request.request.owner);
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let position = waiter.position;
        match absent {
            None => _ = self.by_handle.insert(waiter.wait_request.handle, (id, position)),
            Some(absent) => _ = self.kept.insert((absent.since, id, position)),
        }
        let queued = Queued { waiter, absent, owner_hash };
        if let Some(limit) = queued.limit() {
            self.limits.insert((limit, id, position));
        }
        queue.insert(queued);
    }

    fn remove(&mut self, id: QueueId, position: Position) -> Option<Queued<H>> {
        let removed = self.take(id, position);
        self.close_if_empty(id);
        removed
    }

    /// Removes the place at a position, if there is one. Does not close the queue if it becomes empty.
    fn take(&mut self, id: QueueId, position: Position) -> Option<Queued<H>> {
        let (queued, _) = self.queues.get_mut(&id)?.remove(position)?;
        self.unindex(id, &queued);
        Some(queued)
    }

    /// Removes a place from the indexes of all queues, after it was removed from its queue.
    fn unindex(&mut self, id: QueueId, queued: &Queued<H>) {
        let Waiter { position, wait_request, .. } = &queued.waiter;
        if let Some(limit) = queued.limit() {
            self.limits.remove(&(limit, id, *position));
        }
        match queued.absent {
            None => {
                self.by_handle.remove(&wait_request.handle);
                shrink_if_sparse(&mut self.by_handle);
            }
            Some(absent) => _ = self.kept.remove(&(absent.since, id, *position)),
        }
    }

    fn close_if_empty(&mut self, id: QueueId) {
        if self.queues.get(&id).is_some_and(|queue| queue.len() == 0) {
            self.close(id);
        }
    }

    fn close(&mut self, id: QueueId) {
        let Some(WaitQueue { name: (db, key), due, .. }) = self.queues.remove(&id) else { return };
        shrink_if_sparse(&mut self.queues);
        self.by_name.remove(&(db, self.hasher.hash_one(&*key), id));
        if let Some(due) = due {
            self.due.remove(&(due, id));
        }
    }
}
