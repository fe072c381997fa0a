//! All data about locks that a server has outside the keyspace, and the rules by which this data changes.
//!
//! The keyspace holds the locks. The store holds the rest: the wait queues, the source of tokens, the
//! quarantine with this server's observations in it, the locks that the server has dropped from the keyspace
//! early, and the last lock that left the keyspace. The module and the model check run the same store.
//!
//! When something other than the module removes a lock from the keyspace, the lock goes through these states:
//!
//! ```text
//!                  unlinked
//!                     |  held: remembered until the reason is known          not held: its leases have ended
//!                     v
//!     evicted   -->  dropped: the tenure is kept; the key comes back with the next change of the lock
//!     expired   -->  dropped; put back at once if the wall clock has jumped
//!     no event  -->  settled: deleted or overwritten, so the tenures have ended; or renamed or moved
//! ```
//!
//! The store reads no clock and calls no server. The caller passes the times, and the number of locks that the server
//! has freed. A deletion raises this number. RENAME and MOVE do not, because they unlink a lock but free nothing.

use crate::change::{Change, End};
use crate::counters::Counters;
use crate::decision::Decision;
use crate::dropped_locks::{DroppedLocks, FlushedLocks};
use crate::effects::Effects;
use crate::lock::Lock;
use crate::name::{Db, LockName, NameRef};
use crate::quarantine::{Quarantine, QuarantineMemories, QuarantineMemory};
use crate::token::TokenSource;
use crate::units::{Instant, Now, Span, WallTime};
use crate::wait_queues::{LONGEST_SWEPT_KEY, QueueId, WaitQueues};
use std::collections::VecDeque;
use std::hash::Hash;
use std::mem;

/// If at least this much of a lease is left when its key expires, the wall clock has jumped. A wall clock that only
/// runs a little fast is a few milliseconds ahead when a lease ends.
const CLOCK_JUMP: Span = Span::millis(1_000);

/// Whether the server is loading its data, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// The server is not loading.
    No,
    /// The server loads its own file.
    File,
    /// The server loads the data of its primary, in a full resync.
    Primary,
}

/// The wait queue of a lock on which a decision was made.
#[derive(Clone, Debug)]
pub struct Waits {
    /// The queue.
    pub queue: QueueId,
    /// The lock.
    pub lock: LockName,
    /// When the caller must check the lock again for the clients that still wait.
    pub due: Option<Instant>,
}

/// What the caller must carry out after a decision. The caller may empty this value and use it again for the
/// next decision.
#[derive(Debug)]
pub struct Decided<W> {
    /// What has changed, and which clients must be unblocked.
    pub effects: Effects<W>,
    /// The wait queue that the lock had before the decision.
    pub waits: Option<Waits>,
}

impl<W> Default for Decided<W> {
    fn default() -> Self {
        Self { effects: Effects::default(), waits: None }
    }
}

/// What is known of a lock that has just left the keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlinked {
    /// Whether a lease of the lock was still running.
    pub held: bool,
    /// Whether the server may have evicted the lock.
    pub may_be_evicted: bool,
    /// Whether the server may have evicted the lock, or may have expired its key although a lease is still running.
    pub may_be_dropped: bool,
    /// Whether the caller must mark the wait queue of the lock (if there is one) for a check, and set the
    /// timer.
    pub recheck: bool,
}

/// What happens to the last unlinked lock when a key has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// Nothing is kept: either the unlinked lock has ended, or the key that has expired did not hold this lock.
    Over,
    /// The tenure is kept, because its lease still runs by the monotonic clock. The key is not put back, because less
    /// than a second of the lease is left.
    Kept,
    /// The tenure is kept and the key must be put back, because the wall clock has jumped.
    KeptFromClockJump,
}

/// The last held lock that something other than the module removed from the keyspace. The store keeps this lock until
/// it knows why the lock was removed.
#[derive(Debug)]
pub struct UnlinkedLock {
    name: LockName,
    lock: Lock,
    freed: u64,
    may_be_evicted: bool,
}

impl UnlinkedLock {
    /// The name that the lock had.
    #[must_use]
    pub const fn name(&self) -> &LockName {
        &self.name
    }
}

/// A lock whose tenures have all ended.
#[derive(Debug)]
struct Discarded {
    lock: Lock,
    /// When a command or event ended the tenures; `None` if their leases were over.
    ended: Option<Instant>,
}

/// All data about locks that a server has outside the keyspace. `W` is the handle by which the caller finds a
/// blocked client.
#[derive(Debug)]
pub struct Store<W> {
    /// The wait queues.
    pub queues: WaitQueues<W>,
    /// The locks that the server has dropped from the keyspace early.
    pub dropped_locks: DroppedLocks,
    /// Where tokens come from.
    pub tokens: TokenSource,
    /// The time after a start or promotion in which no new tenure is granted.
    pub quarantine: Quarantine,
    /// The results of decisions.
    pub counters: Counters,
    memories: QuarantineMemories,
    /// Whether a decision was made in a quarantine whose end the store has not noticed yet.
    decided_in_quarantine: bool,
    unlinked: Option<UnlinkedLock>,
    /// Ended locks that had many holders. These locks are freed in parts.
    discarded: VecDeque<Discarded>,
    /// Dropped locks that a flush has ended. These locks are freed in parts too.
    flushed: FlushedLocks,
    /// Dropped locks that go back into the keyspace at once: the server dropped them because of a jump of the wall
    /// clock, not to free memory.
    to_put_back: VecDeque<LockName>,
    /// The dropped locks of a new data set, while the server loads the new data set beside the old data set.
    async_loaded: Option<DroppedLocks>,
    replica: bool,
    loading: Loading,
}

impl<W> Default for Store<W> {
    /// The store of a primary without a quarantine.
    fn default() -> Self {
        Self {
            queues: WaitQueues::default(),
            dropped_locks: DroppedLocks::default(),
            tokens: TokenSource::default(),
            quarantine: Quarantine::new(Instant::from_micros(0), Span::default()),
            counters: Counters::default(),
            memories: QuarantineMemories::default(),
            decided_in_quarantine: false,
            unlinked: None,
            discarded: VecDeque::new(),
            flushed: FlushedLocks::default(),
            to_put_back: VecDeque::new(),
            async_loaded: None,
            replica: false,
            loading: Loading::No,
        }
    }
}

impl<W: Copy + Eq + Hash> Store<W> {
    /// Sets the server's role and quarantine when the module is loaded.
    pub const fn start(&mut self, replica: bool, quarantine: Quarantine) {
        self.replica = replica;
        self.quarantine = quarantine;
    }

    /// Whether this server is a replica.
    #[must_use]
    pub const fn is_replica(&self) -> bool {
        self.replica
    }

    /// How long the quarantine still lasts. `None` on a replica, which is never in quarantine.
    #[must_use]
    pub fn quarantine_left(&self, now: Instant) -> Option<Span> {
        Some(now.until(self.quarantine.ends(now).filter(|_| !self.replica)?))
    }

    /// Whether the server is loading its data, and from where.
    #[must_use]
    pub const fn loading(&self) -> Loading {
        self.loading
    }

    /// Whether this server only applies changes that its primary or a file contains, and decides nothing itself.
    #[must_use]
    #[inline]
    pub fn follows(&self) -> bool {
        self.replica || self.loading != Loading::No
    }

    /// The wait queue of a lock.
    #[must_use]
    #[inline]
    pub fn queue(&self, name: &impl NameRef) -> Option<QueueId> {
        if self.queues.has_queues() { self.queues.queue(name.db(), name.key()) } else { None }
    }

    /// Decides on one lock. If its key exists, `lock` is the value of the key, and the caller has called
    /// [`Self::break_dropped`] before. If the key is missing, `lock` is free, and becomes the value that the key must
    /// get. After the call, the caller carries out what is in `decided`.
    ///
    /// If the key is missing because the server has dropped the lock, the decision is on the dropped lock. If the
    /// decision changes the dropped lock, the whole lock is replicated, because the server sent a DEL of the key to the
    /// replicas and the AOF when it dropped the lock.
    #[inline(always)]
    pub fn decide<R>(
        &mut self,
        name: &impl NameRef,
        lock: &mut Lock,
        decided: &mut Decided<W>,
        now: Now,
        freed: u64,
        decide: impl FnOnce(&mut Decision<'_, W>) -> R,
    ) -> R {
        let dropped = if lock.is_free() { self.take_dropped(name) } else { None };
        let was_dropped = dropped.map(|dropped| *lock = dropped).is_some();
        if self.unlinked.is_some() {
            self.settle_before_decision(name, lock, now.mono, freed);
        }
        let queue = self.queue(name);
        let in_quarantine = self.quarantine.ends(now.mono).is_some();
        let mut memory = in_quarantine.then(|| self.memories.take(name.db(), name.key()));
        let Decided { effects, waits } = decided;
        if let Some(queue) = queue {
            *waits = self.queues.name(queue).map(|name| Waits { queue, lock: name, due: None });
            // If the first lease is over, the lock may be unchanged: one decision does not end all leases that are
            // over.
            let ends = lock.first_deadline().filter(|ends| *ends > now.mono);
            if ends.is_some_and(|ends| self.queues.has_missed_change(queue, ends)) {
                self.queues.set_changed(queue, now.mono);
            }
        }
        let mut decision = Decision {
            lock,
            queue,
            quarantine_memory: memory.as_mut(),
            queues: &mut self.queues,
            tokens: &mut self.tokens,
            quarantine: self.quarantine,
            effects,
            counters: &mut self.counters,
            now,
        };
        let answer = decide(&mut decision);
        if let Some(waits) = waits {
            waits.due = decision.due();
        }
        if let Some(memory) = memory {
            self.memories.put(name.db(), name.key(), memory);
            self.decided_in_quarantine = true;
        }
        if let Some(lock) = effects.discarded.take() {
            self.discarded.push_back(Discarded { lock, ended: None });
        }
        if was_dropped {
            self.decided_on_dropped(name, lock, effects, now);
        }
        answer
    }

    /// A lock that was renamed shares its memory with the unlinked lock, so a change would copy that memory. To prevent
    /// the copy, this function settles the unlinked lock first.
    #[inline(never)]
    fn settle_before_decision(&mut self, name: &impl NameRef, lock: &Lock, now: Instant, freed: u64) {
        if self.unlinked_is(name) || lock.has_many_holders() {
            self.settle_unlinked(now, freed);
        }
    }

    #[inline(never)]
    fn decided_on_dropped(
        &mut self,
        name: &impl NameRef,
        lock: &mut Lock,
        effects: &mut Effects<W>,
        now: Now,
    ) {
        if effects.changed() {
            self.dropped_locks.mark_replicated(name.db(), name.key());
            effects.replicate_whole_lock(lock, now);
            lock.recompute_expiry(now);
        } else {
            self.dropped_locks.put(name.db(), name.key(), mem::take(lock));
        }
    }

    /// What this server has observed of a lock in this quarantine.
    #[must_use]
    pub fn memory(&self, name: &impl NameRef) -> QuarantineMemory {
        self.memories.get(name.db(), name.key())
    }

    /// Remembers what was observed of a lock. Does nothing when there is no quarantine.
    ///
    /// For a lock that is still held, the number of its holders bounds the memory. Nothing bounds the number of ended
    /// tenures: a client may restore a made-up tenure and release it, again and again. So the store remembers a limited
    /// number of locks and ended tenures. Beyond this number, the end of a tenure counts as the end of all older
    /// tenures of every lock, as after FLUSHALL.
    pub fn remember(
        &mut self,
        name: &impl NameRef,
        now: Instant,
        observe: impl FnOnce(&mut QuarantineMemory),
    ) {
        if self.quarantine.ends(now).is_some() {
            let mut memory = self.memories.take(name.db(), name.key());
            observe(&mut memory);
            self.memories.put(name.db(), name.key(), memory);
            self.decided_in_quarantine = true;
        }
    }

    /// Forgets all observations when the quarantine is over. During the quarantine, a waiter with HOLDS 1 waits while
    /// its owner has an unconfirmed tenure. After the quarantine, the waiter re-enters this tenure. So this function
    /// makes all queues due.
    pub fn notice_end_of_quarantine(&mut self, now: Instant) {
        if self.quarantine.ends(now).is_none() && mem::take(&mut self.decided_in_quarantine) {
            self.memories = QuarantineMemories::default();
            let queues: Vec<QueueId> = self.queues.queues().collect();
            queues.into_iter().for_each(|queue| self.queues.set_changed(queue, now));
        }
    }

    fn remember_ended(&mut self, name: &impl NameRef, lock: &Lock, now: Instant) {
        self.remember(name, now, |memory| memory.see_all_ended(lock.last_token()));
    }

    /// A command or event has ended the tenures of a lock without a decision. Many tenures are counted and freed in
    /// parts. If the server still shares the memory of the lock, the server frees this memory, and the tenures are not
    /// counted.
    fn end_tenures(&mut self, name: &impl NameRef, lock: Lock, now: Instant) {
        self.remember_ended(name, &lock, now);
        if lock.has_many_holders() {
            self.discarded.extend(lock.unshared().map(|lock| Discarded { lock, ended: Some(now) }));
        } else {
            lock.holders().for_each(|holder| self.counters.end(holder.since, now));
        }
    }

    /// Something other than the module removes a lock from the keyspace: the key is deleted, overwritten,
    /// renamed, moved, expired or evicted. `latest_wall` is the latest wall time with which the server may have
    /// compared an expiry time. `evicts` returns whether the server evicts keys. The store calls `evicts` only if it
    /// does not know the answer.
    ///
    /// A lock with many holders is remembered only if the server may have dropped the lock, because the store would
    /// have to free all these holders later. If the lock is not remembered, the ends of its tenures are not counted,
    /// because the tenures may continue under another name.
    pub fn unlinked(
        &mut self,
        name: &impl NameRef,
        lock: &Lock,
        Now { mono: now, wall: latest_wall }: Now,
        freed: u64,
        evicts: impl FnOnce() -> bool,
    ) -> Unlinked {
        // One DEL may unlink many locks. As long as the previous lock is not settled, no new command has
        // begun. So the earlier answer of `evicts` is still correct.
        let known_to_evict = self.unlinked.as_ref().is_some_and(|unlinked| unlinked.may_be_evicted);
        self.settle_unlinked(now, freed);
        let held = lock.last_deadline() > Some(now);
        let may_be_evicted = held && (known_to_evict || evicts());
        let may_be_expired = latest_wall >= lock.expires_at();
        if held && lock.has_many_holders() && !may_be_evicted && !may_be_expired {
            self.remember_ended(name, lock, now);
        } else if held {
            let name = (name.db(), name.key().into());
            self.unlinked = Some(UnlinkedLock { name, lock: lock.clone(), freed, may_be_evicted });
        } else {
            lock.holders().for_each(|holder| self.counters.lease_ended(holder.since, holder.deadline));
            self.remember(name, now, |memory| {
                lock.holders().for_each(|holder| memory.see_ended(holder.token, holder.mode, End::LeaseOver));
            });
        }
        let recheck = held || self.queue(name).is_some() || !self.memories.is_empty();
        Unlinked { held, may_be_dropped: may_be_evicted || (held && may_be_expired), may_be_evicted, recheck }
    }

    /// Whether the last unlinked lock had this name and is not settled.
    #[must_use]
    #[inline]
    pub fn unlinked_is(&self, name: &impl NameRef) -> bool {
        self.unlinked
            .as_ref()
            .is_some_and(|unlinked| unlinked.name.0 == name.db() && *unlinked.name.1 == *name.key())
    }

    /// Whether there is an unlinked lock that is not settled.
    #[must_use]
    pub const fn has_unlinked(&self) -> bool {
        self.unlinked.is_some()
    }

    /// Settles the last unlinked lock: it was not evicted or expired, because the server would have sent the event by
    /// now.
    pub fn settle_unlinked(&mut self, now: Instant, freed: u64) {
        if let Some(UnlinkedLock { name, lock, freed: before, .. }) = self.unlinked.take() {
            // RENAME and MOVE unlink a lock and free nothing: the tenure continues under another name. For a lock with
            // many holders the count of freed locks proves nothing, because the server may free such a lock later, on
            // another thread.
            if freed == before && !lock.has_many_holders() {
                self.remember_ended(&name, &lock, now);
            } else {
                self.end_tenures(&name, lock, now);
            }
        }
    }

    /// Takes the unlinked lock out while the caller opens its key, because opening the key may unlink another lock.
    pub const fn take_unlinked(&mut self) -> Option<UnlinkedLock> {
        self.unlinked.take()
    }

    /// Puts the unlinked lock back. The lock is settled if its key holds another value, or if another lock was unlinked
    /// meanwhile.
    pub fn return_unlinked(&mut self, unlinked: UnlinkedLock, is_replaced: bool, now: Instant, freed: u64) {
        let newer = self.unlinked.replace(unlinked);
        if is_replaced || newer.is_some() {
            self.settle_unlinked(now, freed);
        }
        self.unlinked = newer.or(self.unlinked.take());
    }

    /// The server has evicted a key. Returns whether that key held the last unlinked lock. If the result is
    /// true, the tenure of this lock is kept, and the caller replicates the dropped lock at once, before the
    /// server's own DEL.
    pub fn evicted(&mut self, name: &impl NameRef) -> bool {
        if !self.unlinked_is(name) {
            return false;
        }
        let Some(unlinked) = self.unlinked.take_if(|unlinked| unlinked.may_be_evicted) else { return false };
        self.dropped_locks.put(name.db(), name.key(), unlinked.lock);
        self.dropped_locks.mark_replicated(name.db(), name.key());
        true
    }

    /// The server has found that the expiry time of a key has passed, at `latest_wall` by the server's clock. If a
    /// client had set an earlier expiry time, the lock ends. If the module had set the expiry time, and the lease is
    /// still running by the monotonic clock, the tenure is kept.
    pub fn expired(&mut self, name: &impl NameRef, latest_wall: WallTime, now: Instant) -> Expired {
        if !self.unlinked_is(name) {
            return Expired::Over;
        }
        let passed = |unlinked: &mut UnlinkedLock| latest_wall >= unlinked.lock.expires_at();
        let Some(unlinked) = self.unlinked.take_if(passed) else { return Expired::Over };
        let left = unlinked.lock.last_deadline().map_or(Span::default(), |deadline| now.until(deadline));
        self.dropped_locks.keep(name.db(), name.key(), unlinked.lock);
        if left < CLOCK_JUMP {
            return Expired::Kept;
        }
        self.to_put_back.push_back(unlinked.name);
        Expired::KeptFromClockJump
    }

    /// Whether the caller must report a new key of this name by [`Self::new_key`].
    #[must_use]
    pub fn concerns_new_key(&self, name: &impl NameRef) -> bool {
        // The sweeps do not open long keys, so the waiters for long keys depend on the event of a new key.
        self.unlinked_is(name)
            || (!self.follows() && self.dropped_locks.get(name.db(), name.key()).is_some())
            || (name.key().len() > LONGEST_SWEPT_KEY && self.queue(name).is_some())
    }

    /// A key was created by a command or event, not by the module. Returns whether the waiters for that name need a
    /// check.
    pub fn new_key(&mut self, name: &impl NameRef, now: Instant, freed: u64) -> bool {
        if self.unlinked_is(name) {
            self.settle_unlinked(now, freed);
        }
        let broken = !self.follows() && self.break_dropped(name, now);
        broken || name.key().len() > LONGEST_SWEPT_KEY
    }

    /// Ends the tenures of a dropped lock, because its key holds another value or this node does not serve the key any
    /// more. Returns whether there was a dropped lock.
    #[inline]
    pub fn break_dropped(&mut self, name: &impl NameRef, now: Instant) -> bool {
        !self.dropped_locks.is_empty() && self.break_one_dropped(name, now)
    }

    fn break_one_dropped(&mut self, name: &impl NameRef, now: Instant) -> bool {
        let Some(lock) = self.dropped_locks.forget(name.db(), name.key()) else { return false };
        self.end_tenures(name, lock, now);
        true
    }

    #[inline]
    fn take_dropped(&mut self, name: &impl NameRef) -> Option<Lock> {
        if self.dropped_locks.is_empty() { None } else { self.dropped_locks.take(name.db(), name.key()) }
    }

    /// Takes the name of one dropped lock that is to be put back into the keyspace.
    pub fn pop_to_put_back(&mut self) -> Option<LockName> {
        let name = self.to_put_back.pop_front();
        if name.is_none() {
            self.to_put_back.shrink_to_fit();
        }
        name
    }

    /// Queues the name again, because the lock cannot be put back now.
    pub fn put_back_later(&mut self, name: LockName) {
        self.to_put_back.push_back(name);
    }

    /// Takes a dropped lock that goes back into the keyspace. The caller must replicate this lock.
    pub fn take_to_put_back(&mut self, name: &impl NameRef, now: Now) -> Option<Lock> {
        self.dropped_locks.mark_replicated(name.db(), name.key());
        let mut lock = self.take_dropped(name)?;
        lock.recompute_expiry(now);
        Some(lock)
    }

    /// Frees a part of the discarded and of the flushed locks. Returns whether some are left.
    pub fn drop_discarded(&mut self) -> bool {
        const PART: usize = 256;
        if let Some(Discarded { lock, ended }) = self.discarded.front_mut() {
            for (since, deadline) in lock.discard(PART) {
                match ended {
                    Some(ended) => self.counters.end(since, *ended),
                    None => self.counters.lease_ended(since, deadline),
                }
            }
            if lock.is_free() {
                self.discarded.pop_front();
            }
        }
        self.flushed.free(PART);
        self.has_locks_to_free()
    }

    fn has_locks_to_free(&self) -> bool {
        !self.discarded.is_empty() || !self.flushed.is_empty()
    }

    /// The primary has dropped a lock, or has no dropped lock of this name any more.
    pub fn follow_dropped(&mut self, name: &impl NameRef, dropped: Option<Lock>) {
        match dropped {
            Some(lock) => {
                self.observe(&lock);
                self.dropped_locks.put(name.db(), name.key(), lock);
            }
            None => {
                self.dropped_locks.take(name.db(), name.key());
            }
        }
    }

    /// The primary has changed a lock, so the lock is not dropped any more. Forgetting the dropped lock loses no
    /// tenure, because the primary has sent the whole lock with the change.
    pub fn end_dropped(&mut self, name: &impl NameRef) {
        self.take_dropped(name);
    }

    /// Records the token in a change from the primary or a file, so that new tokens are larger.
    pub fn observe_change(&mut self, change: &Change) {
        if let Change::Put(holder) = change {
            self.tokens.observe(holder.token);
        }
    }

    /// Records the tokens of a lock that another server granted, or that this server granted before a
    /// restart.
    pub fn observe(&mut self, lock: &Lock) {
        lock.holders().for_each(|holder| self.tokens.observe(holder.token));
    }

    /// Whether a token of a lock lies too far ahead of the clock to come from a correct server.
    #[must_use]
    pub fn is_far_ahead(&self, lock: &Lock, wall: WallTime) -> bool {
        lock.holders().any(|holder| self.tokens.is_far_ahead(holder.token, wall))
    }

    /// A dropped lock has been read from a snapshot. The caller has already passed the lock to
    /// [`Self::observe`].
    pub fn load_dropped(&mut self, db: Db, key: &[u8], lock: Lock) {
        self.async_loaded.as_mut().unwrap_or(&mut self.dropped_locks).put(db, key, lock);
    }

    /// One database has been flushed, or all databases if `db` is `None`. The locks of these databases have ended,
    /// including the dropped locks.
    pub fn flush(&mut self, db: Option<Db>, now: Instant) {
        let matters = !self.follows() && self.quarantine.ends(now).is_some();
        if let Some(last) = self.tokens.last().filter(|_| matters) {
            self.memories.flush(db, last);
        }
        self.flushed.append(self.dropped_locks.flush(db));
    }

    /// A client has changed the length of the quarantine. The quarantine may begin again after it was over. The store
    /// has not remembered the tenures that ended meanwhile. So no tenure of that time can be restored.
    pub fn set_quarantine_length(&mut self, length: Span, now: Instant) {
        let was_over = self.quarantine.ends(now).is_none();
        self.quarantine.set_length(length);
        if let Some(last) = self.tokens.last()
            && was_over
            && self.quarantine_left(now).is_some()
        {
            self.memories.flush(None, last);
            self.decided_in_quarantine = true;
        }
    }

    /// Two databases have been swapped. Each client still waits for the same key of the same database.
    pub fn swap(&mut self, one: Db, other: Db) {
        self.memories.swap(one, other);
        self.dropped_locks.swap(one, other);
        if let Some(UnlinkedLock { name: (db, _), .. }) = &mut self.unlinked {
            *db = db.swapped(one, other);
        }
        for (db, _) in &mut self.to_put_back {
            *db = db.swapped(one, other);
        }
    }

    /// The server has become a replica: it follows another server and drops its own pending work.
    pub fn become_replica(&mut self) {
        self.replica = true;
        self.queues.forget_all_places();
        self.dropped_locks.drop_unreplicated();
        self.to_put_back.clear();
        self.unlinked = None;
        self.memories = QuarantineMemories::default();
        self.decided_in_quarantine = false;
    }

    /// The server has become a primary. A quarantine begins, because the server may have missed grants.
    pub fn become_primary(&mut self, now: Instant) {
        self.replica = false;
        self.memories = QuarantineMemories::default();
        self.decided_in_quarantine = false;
        self.quarantine.restart(now);
    }

    /// The server begins to load its data.
    pub const fn begin_loading(&mut self, from: Loading) {
        self.loading = from;
    }

    /// The server has loaded its data, or has failed to load it.
    pub const fn end_loading(&mut self, now: Instant) {
        self.loading = Loading::No;
        self.quarantine.loaded(now);
    }

    /// A replica begins to load a new data set, and serves its old data set meanwhile.
    pub fn begin_async_loading(&mut self) {
        self.async_loaded = Some(DroppedLocks::default());
    }

    /// The server uses the new data set if `loaded` is true, and has discarded the new data set otherwise.
    pub fn end_async_loading(&mut self, loaded: bool) {
        if let Some(dropped_locks) = self.async_loaded.take().filter(|_| loaded) {
            self.dropped_locks = dropped_locks;
        }
    }

    /// The instant of the next work that is not a sweep.
    #[must_use]
    pub fn next_work(&self, now: Instant) -> Option<Instant> {
        let dropped =
            !self.follows() && (self.dropped_locks.has_unreplicated() || !self.to_put_back.is_empty());
        let other = if dropped || self.unlinked.is_some() || self.has_locks_to_free() {
            Some(now)
        } else {
            self.decided_in_quarantine.then(|| self.quarantine.ends(now).unwrap_or(now))
        };
        self.queues.next_due().into_iter().chain(other).min()
    }

    /// Whether there are dropped locks that this server must sweep.
    #[must_use]
    pub fn sweeps_dropped_locks(&self) -> bool {
        !self.dropped_locks.is_empty() && !self.follows()
    }
}

#[cfg(test)]
mod tests;
