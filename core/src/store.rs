//! All that a server remembers of locks beside the keyspace, and what it concludes from it.
//!
//! The keyspace holds the locks. The store holds the rest: who waits, where tokens come from, the quarantine and what this
//! server has seen in it, the locks that the server has dropped from the keyspace early, and the last lock that left the
//! keyspace. The module and the model check run the same store.
//!
//! A lock that leaves the keyspace without the module's doing has one of these ends:
//!
//! ```text
//!                  unlinked
//!                     |  held: remembered until the server tells why     not held: its leases ended
//!                     v
//!     evicted   -->  dropped: the tenure is kept; the key comes back with the next change of the lock
//!     expired   -->  dropped; put back at once if the wall clock has jumped
//!     no event  -->  settled: deleted or overwritten, so the tenures have ended; or renamed or moved
//! ```
//!
//! The store has no clock and knows no server. Times are arguments, and so is the count of locks that the server has freed:
//! RENAME and MOVE take a lock from its name but free nothing.

use crate::change::{Change, End};
use crate::counters::Counters;
use crate::decision::Decision;
use crate::dropped_locks::DroppedLocks;
use crate::effects::Effects;
use crate::lock::Lock;
use crate::name::{Db, LockName};
use crate::quarantine::{Quarantine, QuarantineMemory};
use crate::token::{FencingToken, TokenSource};
use crate::units::{Instant, Now, Span, WallTime};
use crate::wait_queues::{LONGEST_SWEPT_KEY, QueueId, WaitQueues};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;

/// For how many locks and ended tenures the store remembers separately what has ended in quarantine: 20 MB at most.
const MEMORIES: usize = 200_000;

/// How much must be left of a lease for the wall clock to have jumped. A clock that runs a little fast is a few milliseconds
/// ahead when a lease ends.
const CLOCK_JUMP: Span = match Span::from_millis(1_000) {
    Some(span) => span,
    None => Span::MAX,
};

/// The name of a lock, borrowed. The key is read only where something is looked up by it.
pub trait NameRef {
    /// The database.
    fn db(&self) -> Db;
    /// The key.
    fn key(&self) -> &[u8];
}

impl NameRef for LockName {
    fn db(&self) -> Db {
        self.0
    }

    fn key(&self) -> &[u8] {
        &self.1
    }
}

/// Whether the server is loading its data, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// It is not.
    No,
    /// From its own file.
    File,
    /// From its primary, in a full resync.
    Primary,
}

/// The wait queue of a lock on which a decision was made.
#[derive(Clone, Debug)]
pub struct Waits {
    /// The queue.
    pub queue: QueueId,
    /// The lock.
    pub lock: LockName,
    /// When the lock must be checked again for those who still wait.
    pub due: Option<Instant>,
}

/// What a decision leaves to be carried out. May be used again for the next decision, when it is empty.
#[derive(Debug)]
pub struct Decided<W> {
    /// What has changed, and who is to be unblocked.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlinked {
    /// Whether a lease in it was still running.
    pub held: bool,
    /// Whether the server may have evicted it.
    pub may_be_evicted: bool,
    /// Whether the server may have evicted it, or may have found that its TTL has passed though a lease is still running.
    pub may_be_dropped: bool,
    /// Whether its waiters, or what is remembered of it, need a check soon.
    pub recheck: bool,
}

/// What becomes of a lock whose key the server has found to be expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// The lock is over, or another one.
    Over,
    /// The tenure is kept: its lease ends very soon.
    Kept,
    /// The tenure is kept and the key is to be put back: the wall clock has jumped.
    KeptFromClockJump,
}

/// The last held lock that left the keyspace without the module's doing, until it is known why.
#[derive(Debug)]
pub struct UnlinkedLock {
    name: LockName,
    lock: Lock,
    freed: u64,
    may_be_evicted: bool,
}

impl UnlinkedLock {
    /// The name that it had.
    #[must_use]
    pub const fn name(&self) -> &LockName {
        &self.name
    }
}

/// What this server has observed of each lock in this quarantine.
#[derive(Debug, Default)]
struct Memories {
    /// By the hash of the key: what is remembered of a lock that is gone must not grow with its name. Two locks of one hash share
    /// a memory. That is safe: no token is given twice, so less is restored, and less is confirmed.
    by_lock: HashMap<(Db, u64), QuarantineMemory>,
    /// How many ended tenures have an entry of their own, of all locks.
    ended_entries: usize,
    /// For each database, or all, the largest token given before it was flushed. For all also the largest that has ended
    /// when there are too many locks to remember.
    flushed: HashMap<Option<Db>, FencingToken>,
    hasher: RandomState,
}

impl Memories {
    /// The largest token of which all up to it have ended in a database.
    fn floor(&self, db: Db) -> Option<FencingToken> {
        [None, Some(db)].into_iter().filter_map(|db| self.flushed.get(&db)).copied().max()
    }

    /// What is remembered of a lock.
    fn get(&self, db: Db, key: &[u8]) -> QuarantineMemory {
        let mut known = self.by_lock.get(&(db, self.hasher.hash_one(key))).cloned().unwrap_or_default();
        known.end_up_to(self.floor(db));
        known
    }

    /// Takes it out.
    fn take(&mut self, db: Db, key: &[u8]) -> QuarantineMemory {
        let mut known = self.by_lock.remove(&(db, self.hasher.hash_one(key))).unwrap_or_default();
        self.ended_entries = self.ended_entries.saturating_sub(known.ended_entries());
        known.end_up_to(self.floor(db));
        known
    }

    /// Puts it back.
    fn put(&mut self, db: Db, key: &[u8], mut known: QuarantineMemory) {
        let remembered = self.by_lock.len().saturating_add(self.ended_entries);
        if remembered.saturating_add(known.ended_entries()) >= MEMORIES
            && let Some(ended) = known.last_ended()
        {
            let floor = self.flushed.entry(None).or_insert(ended);
            *floor = ended.max(*floor);
            known.end_up_to(Some(ended));
        }
        known.forget_up_to(self.floor(db));
        if !known.is_empty() {
            self.ended_entries = self.ended_entries.saturating_add(known.ended_entries());
            self.by_lock.insert((db, self.hasher.hash_one(key)), known);
        }
    }

    fn swap(&mut self, one: Db, other: Db) {
        let swapped = |db: Db| db.swapped(one, other);
        self.by_lock = mem::take(&mut self.by_lock)
            .into_iter()
            .map(|((db, key), known)| ((swapped(db), key), known))
            .collect();
        self.flushed =
            mem::take(&mut self.flushed).into_iter().map(|(db, token)| (db.map(swapped), token)).collect();
    }
}

/// A lock whose tenures have all ended.
#[derive(Debug)]
struct Discarded {
    lock: Lock,
    /// When a command or event ended them; `None`: their leases were over.
    ended: Option<Instant>,
}

/// All that a server remembers of locks beside the keyspace. `W` is how the caller finds a blocked client.
#[derive(Debug)]
pub struct Store<W> {
    /// Who waits for what.
    pub queues: WaitQueues<W>,
    /// The locks that the server has dropped from the keyspace early.
    pub dropped_locks: DroppedLocks,
    /// Where tokens come from.
    pub tokens: TokenSource,
    /// The time after a start or promotion in which nothing new is granted.
    pub quarantine: Quarantine,
    /// What decisions have come to.
    pub counters: Counters,
    memories: Memories,
    /// Whether a decision was made in a quarantine whose end was not noticed yet.
    decided_in_quarantine: bool,
    unlinked: Option<UnlinkedLock>,
    /// Locks with many holders that have ended. They are dropped in parts.
    discarded: VecDeque<Discarded>,
    /// Dropped locks that go back into the keyspace at once: their memory was not needed.
    to_put_back: VecDeque<LockName>,
    /// The dropped locks of a data set that is loaded beside the old one.
    async_loaded: Option<DroppedLocks>,
    replica: bool,
    loading: Loading,
}

impl<W: Copy + Eq + Hash> Default for Store<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: Copy + Eq + Hash> Store<W> {
    /// A store that remembers nothing, of a primary without a quarantine.
    #[must_use]
    pub fn new() -> Self {
        Self {
            queues: WaitQueues::new(),
            dropped_locks: DroppedLocks::new(),
            tokens: TokenSource::new(),
            quarantine: Quarantine::new(Instant::from_micros(0), Span::default()),
            counters: Counters::default(),
            memories: Memories::default(),
            decided_in_quarantine: false,
            unlinked: None,
            discarded: VecDeque::new(),
            to_put_back: VecDeque::new(),
            async_loaded: None,
            replica: false,
            loading: Loading::No,
        }
    }

    /// The server's role and quarantine when the module is loaded.
    pub const fn start(&mut self, replica: bool, quarantine: Quarantine) {
        self.replica = replica;
        self.quarantine = quarantine;
    }

    /// Whether this server is a replica.
    #[must_use]
    pub const fn is_replica(&self) -> bool {
        self.replica
    }

    /// Whether the server is loading its data, and from where.
    #[must_use]
    pub const fn loading(&self) -> Loading {
        self.loading
    }

    /// Whether locks change here only as a primary or a file says.
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

    /// Decides on one lock. `lock` is what its key holds; the caller has called [`Self::break_dropped`] before. The caller
    /// carries out what is left in `decided`.
    #[inline]
    pub fn decide<R>(
        &mut self,
        name: &impl NameRef,
        lock: &mut Lock,
        decided: &mut Decided<W>,
        now: Now,
        freed: u64,
        decide: impl FnOnce(&mut Decision<'_, W>) -> R,
    ) -> R {
        // A lock that was renamed shares its memory with the unlinked one, and a change would copy it.
        if self.unlinked.is_some() && (self.unlinked_is(name) || lock.has_many_holders()) {
            self.settle_unlinked(now.mono, freed);
        }
        let queue = self.queue(name);
        let in_quarantine = self.quarantine.ends(now.mono).is_some();
        let mut memory = in_quarantine.then(|| self.memories.take(name.db(), name.key()));
        let Decided { effects, waits } = decided;
        if let Some(queue) = queue {
            *waits = self.queues.name(queue).map(|lock| Waits { queue, lock, due: None });
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
        answer
    }

    /// Decides on a lock that has no key. If the server has dropped it, that is the lock; when the decision changes it, it is
    /// replicated whole, as the server's own DEL has gone out before. `lock` is free, and afterwards what the key must hold.
    #[inline]
    pub fn decide_without_key<R>(
        &mut self,
        name: &impl NameRef,
        lock: &mut Lock,
        decided: &mut Decided<W>,
        now: Now,
        freed: u64,
        decide: impl FnOnce(&mut Decision<'_, W>) -> R,
    ) -> R {
        let dropped = self.take_dropped(name);
        let was_dropped = dropped.is_some();
        if let Some(dropped) = dropped {
            *lock = dropped;
        }
        let answer = self.decide(name, lock, decided, now, freed, decide);
        if was_dropped {
            if decided.effects.changed() {
                self.dropped_locks.mark_replicated(name.db(), name.key());
                decided.effects.replicate_whole_lock(lock, now);
                lock.recompute_expiry(now);
            } else {
                self.dropped_locks.put(name.db(), name.key(), mem::take(lock));
            }
        }
        answer
    }

    /// What this server has observed of a lock in this quarantine.
    #[must_use]
    pub fn memory(&self, name: &impl NameRef) -> QuarantineMemory {
        self.memories.get(name.db(), name.key())
    }

    /// Remembers what was observed of a lock. Does nothing when there is no quarantine.
    ///
    /// For a lock that goes on, memory is bounded by the number of its holders. For tenures that have ended it is not: a client may
    /// restore a made-up tenure and give it back, again and again. So they are remembered for so many tenures of a lock, and so many
    /// locks, and no more; what ends then counts as the end of all older tenures of the lock, or of every lock, as after a flush.
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

    /// Forgets all observations when the quarantine is over. A holder that waits for its first hold of an unconfirmed tenure can
    /// re-enter then, so all queues are due.
    pub fn notice_end_of_quarantine(&mut self, now: Instant) {
        if self.quarantine.ends(now).is_none() && mem::take(&mut self.decided_in_quarantine) {
            self.memories = Memories::default();
            let queues: Vec<QueueId> = self.queues.queues().collect();
            queues.into_iter().for_each(|queue| self.queues.set_changed(queue, now));
        }
    }

    fn remember_ended(&mut self, name: &impl NameRef, lock: &Lock, now: Instant) {
        self.remember(name, now, |memory| memory.end_up_to(lock.last_token()));
    }

    /// Another command or event has ended the tenures of a lock. Many tenures are counted, and their memory is freed, in parts; or by
    /// the server, which has the same memory until then, and not counted.
    fn end_tenures(&mut self, name: &impl NameRef, lock: Lock, now: Instant) {
        self.remember_ended(name, &lock, now);
        if lock.has_many_holders() {
            self.discarded.extend(lock.unshared().map(|lock| Discarded { lock, ended: Some(now) }));
        } else {
            lock.holders().for_each(|holder| self.counters.end(holder.since, now));
        }
    }

    /// A lock leaves the keyspace, and the module did not take it: deleted, overwritten, renamed, moved, expired or evicted.
    /// `latest_wall` is the server's clock. `evicts` tells whether the server evicts keys; it is asked only when that is not known.
    ///
    /// A lock with many holders is remembered only if it may be dropped, as its memory must be freed then. If not, its tenures are not
    /// counted: they may go on under another name.
    pub fn unlinked(
        &mut self,
        name: &impl NameRef,
        lock: &Lock,
        Now { mono: now, wall: latest_wall }: Now,
        freed: u64,
        evicts: impl FnOnce() -> bool,
    ) -> Unlinked {
        // One DEL may unlink many locks. No command has begun since the lock before this one.
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
        let recheck = held || self.queue(name).is_some() || !self.memories.by_lock.is_empty();
        Unlinked { held, may_be_dropped: may_be_evicted || (held && may_be_expired), may_be_evicted, recheck }
    }

    /// Whether the last unlinked lock, which is not settled, had this name.
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

    /// The last unlinked lock was not evicted or expired: the server would have sent the event by now.
    pub fn settle_unlinked(&mut self, now: Instant, freed: u64) {
        if let Some(UnlinkedLock { name, lock, freed: before, .. }) = self.unlinked.take() {
            // RENAME and MOVE take a lock from its name and free nothing: the tenure goes on under another. A thread of the server frees
            // a lock with many holders, perhaps later.
            if freed == before && !lock.has_many_holders() {
                self.remember_ended(&name, &lock, now);
            } else {
                self.end_tenures(&name, lock, now);
            }
        }
    }

    /// Takes the unlinked lock out while the caller looks at its key, which may unlink another one.
    pub const fn take_unlinked(&mut self) -> Option<UnlinkedLock> {
        self.unlinked.take()
    }

    /// Puts the unlinked lock back. It is settled if something stands in its place, or if another was unlinked meanwhile.
    pub fn return_unlinked(&mut self, unlinked: UnlinkedLock, is_replaced: bool, now: Instant, freed: u64) {
        let newer = self.unlinked.replace(unlinked);
        if is_replaced || newer.is_some() {
            self.settle_unlinked(now, freed);
        }
        self.unlinked = newer.or(self.unlinked.take());
    }

    /// The server has evicted a key. Whether that was the last unlinked lock, whose tenure is kept. The caller replicates the
    /// dropped lock at once, before the server's own DEL.
    pub fn evicted(&mut self, name: &impl NameRef) -> bool {
        if !self.unlinked_is(name) {
            return false;
        }
        let Some(unlinked) = self.unlinked.take_if(|unlinked| unlinked.may_be_evicted) else { return false };
        self.dropped_locks.put(name.db(), name.key(), unlinked.lock);
        self.dropped_locks.mark_replicated(name.db(), name.key());
        true
    }

    /// The server has found that a key's TTL has passed, at `latest_wall` by its clock. An earlier TTL than the module's was set by
    /// hand, and ends the lock. If the TTL was the module's and the lease is still running by the monotonic clock, the tenure is
    /// kept.
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

    /// Whether a new key of this name says something about a lock.
    #[must_use]
    pub fn concerns_new_key(&self, name: &impl NameRef) -> bool {
        // The sweeps do not open long keys.
        self.unlinked_is(name)
            || (!self.follows() && self.dropped_locks.get(name.db(), name.key()).is_some())
            || (name.key().len() > LONGEST_SWEPT_KEY && self.queue(name).is_some())
    }

    /// A key was created by a command or event, not by the module. Whether the waiters of that name need a check.
    pub fn new_key(&mut self, name: &impl NameRef, now: Instant, freed: u64) -> bool {
        if self.unlinked_is(name) {
            self.settle_unlinked(now, freed);
        }
        let broken = !self.follows() && self.break_dropped(name, now);
        broken || name.key().len() > LONGEST_SWEPT_KEY
    }

    /// Something else stands under the name of a dropped lock, or this node does not serve it any more: its tenures have ended.
    /// Whether there was one.
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

    /// That lock cannot be put back now.
    pub fn put_back_later(&mut self, name: LockName) {
        self.to_put_back.push_back(name);
    }

    /// Takes a dropped lock that goes back into the keyspace. It must be replicated.
    pub fn take_to_put_back(&mut self, name: &impl NameRef, now: Now) -> Option<Lock> {
        self.dropped_locks.mark_replicated(name.db(), name.key());
        let mut lock = self.take_dropped(name)?;
        lock.recompute_expiry(now);
        Some(lock)
    }

    /// Drops a part of the locks with many holders that have ended. Whether some are left.
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
        !self.discarded.is_empty()
    }

    /// The primary has dropped a lock, or its dropped lock is gone.
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

    /// The primary changes a lock: it is not dropped any more. A change of a dropped lock is the whole of it.
    pub fn end_dropped(&mut self, name: &impl NameRef) {
        self.take_dropped(name);
    }

    /// Takes note of the token in a change that the primary or a file tells of.
    pub fn observe_change(&mut self, change: &Change) {
        if let Change::Put(holder) = change {
            self.tokens.observe(holder.token);
        }
    }

    /// Takes note of the tokens of a lock that another server, or this one in an earlier life, has granted.
    pub fn observe(&mut self, lock: &Lock) {
        lock.holders().for_each(|holder| self.tokens.observe(holder.token));
    }

    /// Whether a token of a lock lies further ahead than an honest server's can.
    #[must_use]
    pub fn is_far_ahead(&self, lock: &Lock, wall: WallTime) -> bool {
        lock.holders().any(|holder| self.tokens.is_far_ahead(holder.token, wall))
    }

    /// A dropped lock has been read from a snapshot, whose tokens are observed already.
    pub fn load_dropped(&mut self, db: Db, key: &[u8], lock: Lock) {
        self.async_loaded.as_mut().unwrap_or(&mut self.dropped_locks).put(db, key, lock);
    }

    /// A database, or all of them, has been flushed: its locks have ended, the dropped ones too.
    pub fn flush(&mut self, db: Option<Db>, now: Instant) {
        let matters = !self.follows() && self.quarantine.ends(now).is_some();
        if let Some(last) = self.tokens.last().filter(|_| matters) {
            self.memories.flushed.insert(db, last);
        }
        self.dropped_locks.flush(db);
    }

    /// Two databases have been swapped. Clients go on waiting for the same key of the same database.
    pub fn swap(&mut self, one: Db, other: Db) {
        self.memories.swap(one, other);
        self.dropped_locks.swap(one, other);
        for (db, _) in &mut self.to_put_back {
            *db = db.swapped(one, other);
        }
    }

    /// The server has become a replica: it follows another, and keeps no work of its own.
    pub fn become_replica(&mut self) {
        self.replica = true;
        self.queues.forget_all_places();
        self.dropped_locks.drop_unreplicated();
        self.to_put_back.clear();
        self.unlinked = None;
        self.memories = Memories::default();
        self.decided_in_quarantine = false;
    }

    /// The server has become a primary. It may have missed grants, so a quarantine begins.
    pub fn become_primary(&mut self, now: Instant) {
        self.replica = false;
        self.memories = Memories::default();
        self.decided_in_quarantine = false;
        self.quarantine.restart(now);
    }

    /// The server begins to load its data.
    pub const fn begin_loading(&mut self, from: Loading) {
        self.loading = from;
    }

    /// The server has loaded its data, or failed to.
    pub const fn end_loading(&mut self, now: Instant) {
        self.loading = Loading::No;
        self.quarantine.loaded(now);
    }

    /// A replica begins to load a data set beside the one it has, and to serve that one meanwhile.
    pub fn begin_async_loading(&mut self) {
        self.async_loaded = Some(DroppedLocks::new());
    }

    /// The new data set takes the place of the old one, or was given up.
    pub fn end_async_loading(&mut self, loaded: bool) {
        if let Some(dropped_locks) = self.async_loaded.take().filter(|_| loaded) {
            self.dropped_locks = dropped_locks;
        }
    }

    /// When there is something to do, but for sweeps.
    #[must_use]
    pub fn next_work(&self, now: Instant) -> Option<Instant> {
        let dropped =
            !self.follows() && (self.dropped_locks.has_unreplicated() || !self.to_put_back.is_empty());
        let other = if dropped || self.unlinked.is_some() || !self.discarded.is_empty() {
            Some(now)
        } else {
            self.decided_in_quarantine.then(|| self.quarantine.ends(now).unwrap_or(now))
        };
        self.queues.next_due().into_iter().chain(other).min()
    }

    /// Whether there are dropped locks that this server looks after.
    #[must_use]
    pub fn sweeps_dropped_locks(&self) -> bool {
        !self.dropped_locks.is_empty() && !self.follows()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::Propagation;
    use crate::holder::{Holder, Mode, Slots, Weight};
    use crate::owner::Owner;
    use crate::request::{AcquireRequest, HoldsLeft, ReleaseRequest};
    use crate::wait_queues::{Absence, Limits};
    use crate::waiter::WaitRequest;

    const FREED: u64 = 5;

    fn name(key: &str) -> LockName {
        (Db(0), key.as_bytes().into())
    }

    fn at(millis: i64) -> Instant {
        Instant::from_micros(millis * 1_000)
    }

    fn now(millis: i64) -> Now {
        Now { mono: at(millis), wall: WallTime::from_millis(millis) }
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    /// Held by A since 0 with this token, until a deadline that both clocks reach at once.
    fn lock(number: u64, deadline: i64) -> Lock {
        let holder = Holder {
            owner: Owner::new(b"A").unwrap(),
            holds: 1,
            mode: Mode::EXCLUSIVE,
            token: token(number),
            deadline: at(deadline),
            since: at(0),
        };
        Lock::held_by(vec![holder], WallTime::from_millis(deadline)).unwrap()
    }

    fn store() -> Store<u32> {
        Store::new()
    }

    fn in_quarantine() -> Store<u32> {
        let mut store = store();
        store.start(false, Quarantine::new(at(0), Span::from_millis(1_000_000).unwrap()));
        store
    }

    fn unlink(store: &mut Store<u32>, key: &str, lock: &Lock, millis: i64, evicts: bool) -> Unlinked {
        store.unlinked(&name(key), lock, now(millis), FREED, || evicts)
    }

    fn ended(store: &Store<u32>, key: &str) -> Option<u64> {
        store.memory(&name(key)).last_ended().map(FencingToken::get)
    }

    #[test]
    fn a_large_lock_whose_leases_are_all_over_is_dropped_in_parts() {
        let mut store = store();
        let reader = |number: u64| Holder {
            owner: Owner::new(&number.to_be_bytes()).unwrap(),
            mode: Mode { slots: Slots::SHARED, ..Mode::EXCLUSIVE },
            token: token(number),
            ..lock(1, 100).holders().next().unwrap().cloned()
        };
        let mut lock = Lock::held_by((1..=5_000).map(reader).collect(), WallTime::EPOCH).unwrap();
        assert!(!store.drop_discarded());
        let mut decided = Decided::default();
        store.decide(&name("k"), &mut lock, &mut decided, now(150), FREED, |decision| {
            decision.expire_and_serve();
        });
        assert!(lock.is_free() && decided.effects.changed());
        for dropped in (256..5_000).step_by(256) {
            assert_eq!(store.next_work(at(150)), Some(at(150)));
            assert!(store.drop_discarded());
            assert_eq!(store.counters.leases_ended, dropped);
        }
        assert!(!store.drop_discarded());
        assert_eq!((store.next_work(at(150)), store.counters.leases_ended), (None, 5_000));
        assert_eq!(store.counters.tenure_durations.len(), 5_000);
    }

    #[test]
    fn what_becomes_of_an_unlinked_lock() {
        // Lease left at 100: what the server reports, dropped?, to be put back?, tenures ended.
        type Report = fn(&mut Store<u32>) -> bool;
        let cases: [(&str, i64, bool, Report, bool, bool, u64); 10] = [
            ("evicted", 50, true, |store| store.evicted(&name("k")), true, false, 0),
            ("evicted where nothing can be", 50, false, |store| !store.evicted(&name("k")), false, false, 0),
            ("another is evicted", 50, true, |store| !store.evicted(&name("l")), false, false, 0),
            (
                "expired, the wall clock a little ahead",
                50,
                false,
                |store| store.expired(&name("k"), WallTime::from_millis(150), at(100)) == Expired::Kept,
                true,
                false,
                0,
            ),
            (
                "expired, the wall clock far ahead",
                2_000,
                false,
                |store| {
                    let wall = WallTime::from_millis(9_000);
                    store.expired(&name("k"), wall, at(100)) == Expired::KeptFromClockJump
                },
                true,
                true,
                0,
            ),
            (
                "expired by a TTL that was set by hand",
                50,
                false,
                |store| store.expired(&name("k"), WallTime::from_millis(120), at(100)) == Expired::Over,
                false,
                false,
                0,
            ),
            (
                "another has expired",
                50,
                false,
                |store| store.expired(&name("l"), WallTime::from_millis(150), at(100)) == Expired::Over,
                false,
                false,
                0,
            ),
            (
                "deleted",
                50,
                true,
                |store| {
                    store.settle_unlinked(at(100), FREED + 1);
                    !store.evicted(&name("k"))
                },
                false,
                false,
                1,
            ),
            (
                "renamed",
                50,
                true,
                |store| {
                    store.settle_unlinked(at(100), FREED);
                    !store.evicted(&name("k"))
                },
                false,
                false,
                0,
            ),
            (
                "overwritten",
                50,
                true,
                |store| !store.new_key(&name("k"), at(100), FREED + 1),
                false,
                false,
                1,
            ),
        ];
        for (what, left, evicts, report, dropped, put_back, tenures_ended) in cases {
            let mut store = store();
            let gone = unlink(&mut store, "k", &lock(7, 100 + left), 100, evicts);
            assert!(gone.held && gone.recheck && gone.may_be_evicted == evicts, "{what}");
            assert!(report(&mut store), "{what}");
            assert_eq!(store.dropped_locks.get(Db(0), b"k").is_some(), dropped, "{what}");
            assert_eq!(store.pop_to_put_back(), put_back.then(|| name("k")), "{what}");
            assert_eq!(store.counters.tenure_durations.max() > 0, tenures_ended > 0, "{what}");
        }
    }

    #[test]
    fn an_evicted_lock_is_replicated_by_the_caller_and_an_expired_one_later() {
        let mut store = store();
        unlink(&mut store, "k", &lock(1, 200), 100, true);
        assert!(store.evicted(&name("k")) && !store.dropped_locks.has_unreplicated());
        unlink(&mut store, "l", &lock(2, 200), 100, false);
        assert_eq!(store.expired(&name("l"), WallTime::from_millis(200), at(100)), Expired::Kept);
        assert_eq!(store.dropped_locks.pop_unreplicated(), Some(name("l")));
    }

    #[test]
    fn a_lock_whose_lease_is_over_leaves_nothing_behind() {
        let mut store = in_quarantine();
        let gone = unlink(&mut store, "k", &lock(7, 100), 100, true);
        let (may_be_evicted, may_be_dropped) = (false, false);
        assert_eq!(gone, Unlinked { held: false, may_be_evicted, may_be_dropped, recheck: true });
        assert!(!store.has_unlinked() && !store.evicted(&name("k")));
        assert_eq!(store.counters.leases_ended, 1);
        assert_eq!(ended(&store, "k"), Some(6), "this tenure may come back, older ones not");
        assert!(store.memory(&name("k")).may_restore(token(7), Mode::EXCLUSIVE));
        let mut store = self::store();
        assert!(
            !unlink(&mut store, "k", &lock(7, 100), 100, true).recheck,
            "nobody waits, nothing is remembered"
        );
    }

    /// Held by 5,000 readers until 200.
    fn held_by_many() -> Lock {
        let holders = (1..=5_000).map(|number: u64| Holder {
            owner: Owner::new(&number.to_be_bytes()).unwrap(),
            mode: Mode { slots: Slots::SHARED, weight: Weight::ONE },
            token: token(number),
            ..lock(1, 200).holders().next().unwrap().cloned()
        });
        Lock::held_by(holders.collect(), WallTime::from_millis(200)).unwrap()
    }

    #[test]
    fn a_lock_with_many_holders_is_copied_only_if_it_may_be_dropped() {
        let many = held_by_many();
        for (evicts, wall, copied) in [(false, 199, false), (true, 199, true), (false, 200, true)] {
            let mut store = in_quarantine();
            let now = Now { wall: WallTime::from_millis(wall), ..now(100) };
            let gone = store.unlinked(&name("k"), &many, now, FREED, || evicts);
            assert_eq!((gone.held, gone.may_be_dropped, store.has_unlinked()), (true, copied, copied));
            store.settle_unlinked(at(100), FREED);
            assert_eq!(ended(&store, "k"), Some(5_000));
        }
    }

    #[test]
    fn a_deleted_lock_with_many_holders_is_counted_and_dropped_in_parts() {
        for (rest, counted) in [("none", 5_000), ("in the keyspace", 0)] {
            let (mut store, in_key) = (store(), held_by_many());
            unlink(&mut store, "k", &in_key, 100, true);
            let renamed = (rest != "none").then_some(in_key);
            store.settle_unlinked(at(100), FREED + u64::from(renamed.is_none()));
            assert_eq!(store.next_work(at(100)), (counted > 0).then_some(at(100)), "{rest}");
            store.drop_discarded();
            assert!(store.counters.tenure_durations.len() < 5_000, "{rest}");
            while store.drop_discarded() {}
            assert_eq!(
                (store.counters.tenure_durations.len(), store.next_work(at(100))),
                (counted, None),
                "{rest}"
            );
        }
    }

    #[test]
    fn a_change_of_a_renamed_lock_with_many_holders_copies_nothing() {
        let (mut store, mut in_key) = (store(), held_by_many());
        unlink(&mut store, "k", &in_key, 100, true);
        let mut decided = Decided::default();
        store.decide(&name("renamed"), &mut in_key, &mut decided, now(100), FREED, |_| ());
        assert!(!store.has_unlinked() && in_key.unshared().is_some());
    }

    #[test]
    fn the_next_unlinked_lock_settles_the_one_before_and_knows_whether_the_server_evicts() {
        let mut store = in_quarantine();
        unlink(&mut store, "k", &lock(7, 200), 100, true);
        let gone = store.unlinked(&name("l"), &lock(8, 200), now(100), FREED, || panic!("is known"));
        assert!(gone.may_be_evicted);
        assert_eq!((ended(&store, "k"), ended(&store, "l")), (Some(7), None));
        assert!(!store.evicted(&name("k")) && store.evicted(&name("l")));
    }

    #[test]
    fn an_unlinked_lock_that_was_taken_out_is_settled_if_it_is_replaced_or_another_follows() {
        for (is_replaced, another, settled, left) in [
            (false, false, false, Some("k")),
            (true, false, true, None),
            (false, true, true, Some("l")),
            (true, true, true, Some("l")),
        ] {
            let mut store = in_quarantine();
            unlink(&mut store, "k", &lock(7, 200), 100, true);
            let taken = store.take_unlinked().unwrap();
            assert_eq!(taken.name(), &name("k"));
            if another {
                unlink(&mut store, "l", &lock(8, 200), 100, true);
            }
            store.return_unlinked(taken, is_replaced, at(100), FREED);
            assert_eq!(ended(&store, "k").is_some(), settled);
            let of = |key: &str| store.unlinked_is(&name(key)).then(|| key.to_owned());
            assert_eq!(of("k").or(of("l")).as_deref(), left);
            assert_eq!(store.has_unlinked(), left.is_some());
        }
    }

    fn acquire(store: &mut Store<u32>, key: &str, millis: i64, in_key: &mut Lock) -> Decided<u32> {
        let request = AcquireRequest {
            owner: Owner::new(b"B").unwrap(),
            lease: Span::from_millis(100).unwrap(),
            holds: None,
            slots: Slots::EXCLUSIVE,
            weight: None,
        };
        let mut decided = Decided::default();
        let granted =
            store.decide_without_key(&name(key), in_key, &mut decided, now(millis), FREED, |decision| {
                decision.acquire(&request)
            });
        granted.unwrap();
        decided
    }

    #[test]
    fn a_dropped_lock_is_decided_on_as_if_it_had_its_key() {
        let mut store = store();
        store.dropped_locks.keep(Db(0), b"k", lock(7, 200));
        let mut in_key = Lock::new();
        let decided = acquire(&mut store, "k", 100, &mut in_key);
        assert!(matches!(decided.effects.propagation(), Propagation::Nothing));
        assert!(in_key.is_free(), "busy: the lock stays dropped");
        assert_eq!(store.dropped_locks.get(Db(0), b"k"), Some(&lock(7, 200)));
        let decided = acquire(&mut store, "k", 200, &mut in_key);
        assert!(matches!(decided.effects.propagation(), Propagation::Changes(_)));
        assert_eq!(
            in_key.holders().map(|holder| holder.owner.to_bytes().to_vec()).collect::<Vec<_>>(),
            [b"B"]
        );
        assert!(store.dropped_locks.is_empty() && !store.dropped_locks.has_unreplicated());
    }

    #[test]
    fn a_dropped_lock_goes_back_into_its_key_once() {
        let mut store = store();
        store.dropped_locks.keep(Db(0), b"k", lock(7, 2_000));
        store.put_back_later(name("k"));
        assert_eq!(store.next_work(at(100)), Some(at(100)));
        assert_eq!(store.pop_to_put_back(), Some(name("k")));
        let back = store.take_to_put_back(&name("k"), now(100)).unwrap();
        assert_eq!(back.holders().map(|holder| holder.token).collect::<Vec<_>>(), [token(7)]);
        assert_eq!(store.take_to_put_back(&name("k"), now(100)), None);
        assert_eq!((store.pop_to_put_back(), store.next_work(at(100))), (None, None));
    }

    #[test]
    fn a_new_key_ends_the_dropped_lock_of_its_name_on_a_primary() {
        for (follows, key, broken) in [(false, "k", true), (false, "l", false), (true, "k", false)] {
            let mut store = in_quarantine();
            store.dropped_locks.put(Db(0), b"k", lock(7, 200));
            if follows {
                store.begin_loading(Loading::File);
            }
            assert_eq!(store.concerns_new_key(&name(key)), broken);
            assert_eq!(store.new_key(&name(key), at(100), FREED), broken);
            assert_eq!(store.dropped_locks.is_empty(), broken);
            assert_eq!(ended(&store, "k"), broken.then_some(7));
            assert_eq!(store.dropped_locks.has_unreplicated(), broken);
        }
    }

    fn end(store: &mut Store<u32>, key: &str, number: u64) {
        let see = |memory: &mut QuarantineMemory| {
            memory.see_ended(token(number), Mode::EXCLUSIVE, End::Released);
        };
        store.remember(&name(key), at(0), see);
    }

    #[test]
    fn memories_last_as_long_as_the_quarantine() {
        let mut store = store();
        end(&mut store, "k", 7);
        assert!(store.memory(&name("k")).is_empty(), "there is no quarantine");
        let mut store = in_quarantine();
        end(&mut store, "k", 7);
        end(&mut store, "k", 5);
        assert_eq!((ended(&store, "k"), ended(&store, "l")), (Some(7), None));
        assert_eq!(store.next_work(at(0)), Some(at(1_000_000)));
        store.notice_end_of_quarantine(at(999_999));
        assert_eq!(ended(&store, "k"), Some(7));
        let request = AcquireRequest {
            owner: Owner::new(b"B").unwrap(),
            lease: Span::from_millis(100).unwrap(),
            holds: None,
            slots: Slots::EXCLUSIVE,
            weight: None,
        };
        let wait_request = WaitRequest { request, limit: None, keep: None, handle: 1 };
        store.queues.join(Db(0), b"k", wait_request, Limits { per_lock: 9, total: 9 }, at(100));
        store.notice_end_of_quarantine(at(1_000_000));
        let queue = store.queues.queue(Db(0), b"k").unwrap();
        assert_eq!(store.queues.pop_due(at(1_000_000)), Some((queue, true)), "its lock is checked");
        assert_eq!((ended(&store, "k"), store.next_work(at(0))), (None, None));
    }

    #[test]
    fn a_flush_ends_all_older_tenures_of_its_database() {
        for (flushed, zero, one) in [(Some(Db(0)), Some(9), None), (None, Some(9), Some(9))] {
            let mut store = in_quarantine();
            store.tokens.observe(token(9));
            store.dropped_locks.put(Db(0), b"k", lock(7, 200));
            store.flush(flushed, at(100));
            assert!(store.dropped_locks.is_empty());
            let ended =
                |store: &Store<u32>, db| store.memory(&(Db(db), b"any".as_slice().into())).last_ended();
            let of = |store: &Store<u32>| (ended(store, 0), ended(store, 1));
            assert_eq!(of(&store), (zero.map(token), one.map(token)));
            store.swap(Db(0), Db(1));
            assert_eq!(of(&store), (one.map(token), zero.map(token)));
        }
        let mut store = store();
        store.tokens.observe(token(9));
        store.flush(None, at(100));
        assert_eq!(ended(&store, "k"), None, "there is no quarantine");
    }

    #[test]
    fn the_memory_of_ended_tenures_is_bounded() {
        let mut store = in_quarantine();
        for number in 1..=u64::try_from(MEMORIES).unwrap() {
            end(&mut store, &number.to_string(), number);
        }
        assert_eq!((ended(&store, "1"), ended(&store, "never seen")), (Some(1), None));
        end(&mut store, "one more", 700_000);
        store.remember(&name("and another"), at(0), |memory| memory.see_renewed(token(800_000)));
        end(&mut store, "and another", 600_000);
        assert_eq!(store.memories.by_lock.len(), MEMORIES + 1, "what goes on is remembered still");
        assert_eq!((ended(&store, "1"), ended(&store, "never seen")), (Some(700_000), Some(700_000)));
        assert!(store.memory(&name("and another")).has_renewed(token(800_000)));
    }

    #[test]
    fn the_memory_of_ended_readers_is_bounded_over_all_locks() {
        let mut store = in_quarantine();
        let reader = Mode { slots: Slots::SHARED, weight: Weight::ONE };
        let mut number = 0;
        let mut end_readers = |store: &mut Store<u32>, key: &str, count: u64| {
            for _ in 0..count {
                number += 1;
                let see =
                    |memory: &mut QuarantineMemory| memory.see_ended(token(number), reader, End::Released);
                store.remember(&name(key), at(0), see);
            }
        };
        for lock in 0..199 {
            end_readers(&mut store, &lock.to_string(), 999);
        }
        assert!(!store.memory(&name("0")).may_restore(token(1), reader));
        assert!(store.memory(&name("1")).may_restore(token(1), reader));
        assert_eq!((store.memories.ended_entries, ended(&store, "never seen")), (199_000, None));
        end_readers(&mut store, "one more", 999);
        assert!(store.memories.ended_entries < MEMORIES && ended(&store, "never seen") > Some(198_801));
    }

    #[test]
    fn a_replica_drops_its_own_work_and_a_primary_begins_a_quarantine() {
        let mut store = in_quarantine();
        end(&mut store, "k", 7);
        store.dropped_locks.keep(Db(0), b"new", lock(7, 200));
        store.dropped_locks.put(Db(0), b"replicated", lock(8, 200));
        store.put_back_later(name("new"));
        unlink(&mut store, "unlinked", &lock(9, 200), 100, true);
        for (key, handle) in [("k", 1), ("l", 2)] {
            join(&mut store, key, handle, Some(1));
            store.queues.leave(handle, Absence::Disconnected, at(100));
        }
        join(&mut store, "l", 3, Some(1));
        assert_eq!((store.queues.kept_places(), store.queues.waiters()), (1, 1));
        store.become_replica();
        assert_eq!((store.queues.kept_places(), store.queues.waiters()), (0, 1));
        assert!(store.is_replica() && store.follows() && !store.has_unlinked());
        assert_eq!((ended(&store, "k"), store.dropped_locks.len()), (None, 1));
        assert_eq!((store.pop_to_put_back(), store.next_work(at(100))), (None, None));
        assert!(!store.sweeps_dropped_locks());
        store.become_primary(at(500));
        assert!(!store.is_replica() && !store.follows() && store.sweeps_dropped_locks());
        assert_eq!(store.quarantine.ends(at(500)), Some(at(1_000_500)));
    }

    #[test]
    fn a_server_that_loads_follows() {
        let mut store = store();
        for from in [Loading::File, Loading::Primary] {
            store.begin_loading(from);
            assert!(store.follows() && store.loading() == from);
            store.end_loading(at(5));
            assert!(!store.follows() && store.quarantine.is_unconfirmed(at(5)));
        }
    }

    #[test]
    fn data_that_is_loaded_beside_the_old_takes_its_place_when_it_is_complete() {
        for (loaded, token) in [(true, 8), (false, 7)] {
            let mut store = store();
            store.load_dropped(Db(0), b"k", lock(7, 200));
            store.begin_async_loading();
            store.load_dropped(Db(0), b"k", lock(8, 200));
            assert_eq!(store.dropped_locks.get(Db(0), b"k"), Some(&lock(7, 200)));
            store.end_async_loading(loaded);
            assert_eq!(store.dropped_locks.get(Db(0), b"k"), Some(&lock(token, 200)));
        }
    }

    #[test]
    fn a_replica_keeps_the_dropped_locks_of_its_primary() {
        let mut store = store();
        store.follow_dropped(&name("k"), Some(lock(7, 200)));
        assert_eq!(store.tokens.last(), Some(token(7)));
        assert_eq!(store.dropped_locks.get(Db(0), b"k"), Some(&lock(7, 200)));
        assert!(!store.dropped_locks.has_unreplicated());
        store.follow_dropped(&name("k"), None);
        assert!(store.dropped_locks.is_empty());
        store.follow_dropped(&name("k"), Some(lock(8, 200)));
        store.end_dropped(&name("k"));
        assert!(store.dropped_locks.is_empty());
    }

    #[test]
    fn the_tokens_of_others_are_observed_and_those_far_ahead_are_known() {
        let mut store = store();
        store.observe_change(&Change::Count(token(9), 1));
        assert_eq!(store.tokens.last(), None);
        store.observe_change(&Change::Put(lock(7, 100).holders().next().unwrap().cloned()));
        assert_eq!(store.tokens.last(), Some(token(7)));
        let day = 24 * 3_600 * 1_000_000;
        assert!(!store.is_far_ahead(&lock(day, 100), WallTime::EPOCH));
        assert!(store.is_far_ahead(&lock(day + 1, 100), WallTime::EPOCH));
    }

    #[test]
    fn a_dropped_lock_to_be_replicated_or_put_back_is_work() {
        let dropped: [fn(&mut Store<u32>); 2] = [
            |store| store.dropped_locks.keep(Db(0), b"k", lock(7, 200)),
            |store| store.put_back_later(name("k")),
        ];
        for dropped in dropped {
            let mut store = store();
            assert_eq!(store.next_work(at(100)), None);
            dropped(&mut store);
            assert_eq!(store.next_work(at(100)), Some(at(100)));
        }
    }

    /// B waits for a lock. If it names its count of holds, its place is kept.
    fn join(store: &mut Store<u32>, key: &str, handle: u32, holds: Option<u32>) {
        let request = AcquireRequest {
            owner: Owner::new(b"B").unwrap(),
            lease: Span::from_millis(100).unwrap(),
            holds,
            slots: Slots::EXCLUSIVE,
            weight: None,
        };
        let limits = Limits { per_lock: 9, total: 9 };
        let keep = Span::from_millis(5_000);
        let wait_request = WaitRequest { request, limit: None, keep, handle };
        store.queues.join(Db(0), key.as_bytes(), wait_request, limits, at(100));
    }

    #[test]
    fn a_new_key_concerns_those_who_wait_for_a_name_that_the_sweeps_do_not_open() {
        let mut store = store();
        let (short, long) = ("k".repeat(LONGEST_SWEPT_KEY), "k".repeat(LONGEST_SWEPT_KEY + 1));
        assert!(!store.concerns_new_key(&name(&short)) && !store.concerns_new_key(&name(&long)));
        join(&mut store, &short, 1, None);
        join(&mut store, &long, 2, None);
        assert!(!store.concerns_new_key(&name(&short)) && store.concerns_new_key(&name(&long)));
        assert!(!store.new_key(&name(&short), at(100), FREED) && store.new_key(&name(&long), at(100), FREED));
    }

    #[test]
    fn a_decision_names_the_wait_queue_and_settles_the_unlinked_lock_of_its_name() {
        let mut store = in_quarantine();
        unlink(&mut store, "k", &lock(7, 200), 100, true);
        join(&mut store, "k", 1, None);
        let mut in_key = lock(8, 200);
        let mut decided = Decided::default();
        let release =
            ReleaseRequest { owner: Owner::new(b"A").unwrap(), left: HoldsLeft::OneLess, token: None };
        let left = store
            .decide(&name("k"), &mut in_key, &mut decided, now(100), FREED, |step| step.release(&release));
        assert_eq!(left.unwrap(), 0);
        assert_eq!(decided.waits.map(|waits| waits.lock), Some(name("k")));
        assert!(!store.has_unlinked());
        assert_eq!(ended(&store, "k"), Some(8));
    }
}
