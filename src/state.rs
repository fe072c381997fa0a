//! What the module remembers beside the keyspace. Only what the server calls under its lock uses it.
//!
//! The state is borrowed only while no function of the server runs that could call back into the module: decide under
//! the borrow, give it back, then act.

use crate::effects_buffer::EffectsBuffer;
use crate::pending_replies::PendingReplies;
use crate::replication_audience::ReplicationAudience;
use crate::server::{BlockedClient, Flags, KeyName, Shared, Socket, lock_allocation};
use crate::statistics::Statistics;
use crate::wakeup_timer::WakeupTimer;
use lazy_static::lazy_static;
use lockward_core::{
    Db, DroppedLocks, FencingToken, Instant, Lock, LockName, Quarantine, QuarantineMemory, QueueId, Span,
    SweepPosition, TokenSource, WaitQueues,
};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

/// For how many locks it is told apart in quarantine which of their tenures have ended: 20 MB at most.
const TOLD_APART: usize = 200_000;

/// Everything but the settings.
pub struct State {
    /// Who waits for what.
    pub queues: WaitQueues<BlockedClient>,
    /// The tenures that the server has dropped from the keyspace early.
    pub dropped_locks: DroppedLocks,
    /// Those of them that go back into the keyspace at once: their memory was not needed.
    pub to_put_back: VecDeque<LockName>,
    /// What INFO counts.
    pub statistics: Statistics,
    /// The shadows of a data set that is loaded beside the old one.
    pub loaded_beside: Option<DroppedLocks>,
    /// The keys that carry shadows through a snapshot now.
    pub carriers: Vec<LockName>,
    /// Where tokens come from.
    pub tokens: TokenSource,
    /// The time after a start or promotion.
    pub quarantine: Quarantine,
    /// What turns leave to be carried out, one after the other.
    pub decided: Option<Box<EffectsBuffer>>,
    /// The one timer of the module.
    pub wakeup_timer: WakeupTimer,
    /// Replies to clients whose wait has ended, and grants to those that have left meanwhile.
    pub pending: PendingReplies,
    /// The last lock that the server took out of the keyspace before its lease was over.
    pub unlinked: Option<Unlinked>,
    /// What has been seen of each lock in this quarantine, by the hash of its key: what is remembered of a lock that is
    /// gone must not grow with its name. Two locks of one hash share what has been seen, which is safe: no token is
    /// given twice, so less is restored, and less is certain.
    pub seen: HashMap<(Db, u64), QuarantineMemory>,
    hasher: RandomState,
    /// For each database, or all, the largest token given before it was flushed in this quarantine. For all also the
    /// largest that has ended when too many have to be told apart.
    pub flushed: HashMap<Option<Db>, FencingToken>,
    /// The last waited-for lock that the patrol has looked at in this round.
    pub swept: Option<QueueId>,
    /// Where the patrol's round through the shadows is.
    pub patrolled_shadow: Option<SweepPosition>,
    /// The sockets of clients that have waited.
    pub sockets: HashMap<u64, Socket>,
    /// Whether anybody may hear what changes.
    pub replication_audience: ReplicationAudience,
    /// Whether this server is a replica.
    pub replica: bool,
    /// Whether this server is loading its data, and from where.
    pub loading: Loading,
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

/// A lock that the server took out of the keyspace. Why, it says only afterwards, if at all.
pub struct Unlinked {
    /// The name of the lock.
    pub name: KeyName<'static>,
    /// The lock as it was.
    pub lock: Lock,
    /// How many locks the server had freed by then.
    pub freed: u64,
    /// Whether the server evicts keys at all.
    pub may_be_evicted: bool,
}

impl State {
    fn new() -> Self {
        Self {
            queues: WaitQueues::new(),
            dropped_locks: DroppedLocks::new(),
            to_put_back: VecDeque::new(),
            statistics: Statistics::default(),
            loaded_beside: None,
            carriers: Vec::new(),
            tokens: TokenSource::new(),
            quarantine: Quarantine::new(Instant::from_micros(0), Span::default()),
            decided: None,
            wakeup_timer: WakeupTimer::new(),
            pending: PendingReplies::default(),
            unlinked: None,
            seen: HashMap::new(),
            hasher: RandomState::new(),
            flushed: HashMap::new(),
            swept: None,
            patrolled_shadow: None,
            sockets: HashMap::new(),
            replication_audience: ReplicationAudience::new(false),
            replica: false,
            loading: Loading::No,
        }
    }

    /// Whether locks change here only as a primary or a file says.
    pub fn follows(&self) -> bool {
        self.replica || self.loading != Loading::No
    }

    /// Takes over what the server says of itself when the module is loaded.
    pub const fn start(
        &mut self,
        flags: Flags,
        quarantine: Quarantine,
        replication_audience: ReplicationAudience,
    ) {
        self.replication_audience = replication_audience;
        self.replica = flags.replica();
        self.quarantine = quarantine;
    }

    /// Takes note of what was seen of a lock, for as long as there is a quarantine.
    ///
    /// What is remembered of a lock that goes on has its bound in the number of locks. What has ended has none: a client
    /// may restore a made-up tenure and give it back, again and again. So that is told apart for so many locks and no
    /// more; what ends then counts as the end of all older tenures, of whatever lock, as after a flush.
    #[inline]
    pub fn note(&mut self, name: &KeyName<'_>, seen: QuarantineMemory, now: Instant) {
        if self.quarantine.ends(now).is_some() && !seen.is_empty() {
            self.note_in_quarantine(name.db(), name.bytes(), seen);
        }
    }

    fn note_in_quarantine(&mut self, db: Db, key: &[u8], seen: QuarantineMemory) {
        let lock = (db, self.hasher.hash_one(key));
        let mut known = self.seen.remove(&lock).unwrap_or_default().merge(seen);
        if self.seen.len() >= TOLD_APART
            && let Some(ended) = known.ended.take()
        {
            let floor = self.flushed.entry(None).or_insert(ended);
            *floor = ended.max(*floor);
            known = known.after(ended);
        }
        if !known.is_empty() {
            self.seen.insert(lock, known);
        }
    }

    /// The last unlinked lock was not evicted or expired: the server would have sent the event by now.
    pub fn note_unlinked(&mut self, now: Instant) {
        if self.unlinked.is_some() {
            self.note_gone(now);
        }
    }

    /// The same, where that is the lock in `name`.
    #[inline]
    pub fn note_unlinked_as(&mut self, name: &KeyName<'_>, now: Instant) {
        if self.unlinked.as_ref().is_some_and(|gone| gone.name.is(name)) {
            self.note_gone(now);
        }
    }

    fn note_gone(&mut self, now: Instant) {
        if let Some(gone) = self.unlinked.take() {
            // RENAME and MOVE take a lock from its name and free nothing: the tenure goes on under another.
            if lock_allocation::freed() != gone.freed {
                self.statistics.broken(&gone.lock, now);
            }
            let name = gone.name;
            self.note_broken(name.db(), name.bytes(), &gone.lock, now);
        }
    }

    fn note_broken(&mut self, db: Db, key: &[u8], lock: &Lock, now: Instant) {
        let ended = lock.holders().map(|holder| holder.token).max();
        if self.quarantine.ends(now).is_some() && ended.is_some() {
            self.note_in_quarantine(db, key, QuarantineMemory { ended, ..QuarantineMemory::default() });
        }
    }

    /// Something else stands under the name of a shadow, or this node does not serve it any more: it is broken.
    #[inline]
    pub fn break_shadow(&mut self, name: &KeyName<'_>, now: Instant) {
        if !self.dropped_locks.is_empty() {
            self.break_its_shadow(name.db(), name.bytes(), now);
        }
    }

    fn break_its_shadow(&mut self, db: Db, key: &[u8], now: Instant) {
        if let Some(lock) = self.dropped_locks.forget(db, key) {
            self.statistics.broken(&lock, now);
            self.note_broken(db, key, &lock, now);
            self.look_at(&[], now);
        }
    }

    /// The lock that the server has dropped early, which is no shadow from here on.
    #[inline]
    pub fn take_shadow(&mut self, name: &KeyName<'_>) -> Option<Lock> {
        if self.dropped_locks.is_empty() { None } else { self.dropped_locks.take(name.db(), name.bytes()) }
    }

    /// The line of those who wait for a lock.
    #[inline]
    pub fn queue(&self, name: &KeyName<'_>) -> Option<QueueId> {
        if self.queues.has_queues() { self.queues.queue(name.db(), name.bytes()) } else { None }
    }

    /// What has been seen of a lock in this quarantine.
    #[inline]
    pub fn seen(&self, name: &KeyName<'_>) -> QuarantineMemory {
        if self.seen.is_empty() && self.flushed.is_empty() {
            QuarantineMemory::default()
        } else {
            self.seen_before(name.db(), name.bytes())
        }
    }

    fn seen_before(&self, db: Db, key: &[u8]) -> QuarantineMemory {
        let seen = self.seen.get(&(db, self.hasher.hash_one(key))).copied().unwrap_or_default();
        let ended = [None, Some(db)].into_iter().filter_map(|db| self.flushed.get(&db)).copied().max();
        seen.merge(QuarantineMemory { ended, ..QuarantineMemory::default() })
    }

    /// Forgets what has been seen: the quarantine is over, or the server follows another.
    pub fn forget_seen(&mut self) {
        self.seen = HashMap::new();
        self.flushed = HashMap::new();
    }

    /// Forgets the sockets of clients while nobody waits, if there are many.
    pub fn forget_sockets(&mut self) {
        const KEPT: usize = 1_024;
        if self.sockets.len() > KEPT && self.queues.waiters() == 0 {
            self.sockets = HashMap::new();
        }
    }

    /// Sets when the lock of a line must be looked at again for those who wait, if any still do.
    pub fn set_due(&mut self, queue: QueueId, due: Option<Instant>, now: Instant) {
        if !self.queues.is_empty(queue) {
            self.queues.set_due(queue, due);
            self.look_at(&[], now);
        }
    }

    /// Makes the line of a lock due at set_once, if there is one, and sets the alarm.
    pub fn look_at_lock(&mut self, name: &KeyName<'_>, now: Instant) {
        let queue = self.queue(name);
        self.look_at(queue.as_slice(), now);
    }

    /// Makes lines due at once: their keys may have changed behind our back.
    pub fn look_at(&mut self, queues: &[QueueId], now: Instant) {
        for queue in queues {
            self.queues.set_due(*queue, Some(now));
        }
        let of_shadows =
            !self.follows() && (self.dropped_locks.has_unreplicated() || !self.to_put_back.is_empty());
        let at_once = of_shadows || self.pending.has_undelivered() || self.unlinked.is_some();
        let later = (!self.seen.is_empty()).then(|| self.quarantine.ends(now)).flatten();
        let has_queues = self.queues.waiters() > 0;
        let has_shadows = !(self.dropped_locks.is_empty() || self.follows());
        let next = self.queues.next_due().into_iter().chain(if at_once { Some(now) } else { later }).min();
        self.wakeup_timer.rearm(next, has_queues, has_shadows, now);
    }
}

lazy_static! {
    /// Used in calls of the server under its lock. The call that frees a value does not use it.
    static ref STATE: Shared<State> = Shared::new(State::new());
}

/// Set and read under the server's lock, as the state is.
static ACTING: AtomicBool = AtomicBool::new(false);

/// Uses the state. Not to be called within itself.
pub fn with<R>(use_it: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(use_it)
}

/// Whether the module itself is changing the keyspace just now, so that what the server reports of it is no news.
pub fn own_write() -> bool {
    ACTING.load(Ordering::Relaxed)
}

/// Marks the time in which the module changes the keyspace.
pub struct OwnWrite(());

impl OwnWrite {
    /// From now until this is dropped.
    pub fn begin() -> Self {
        ACTING.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for OwnWrite {
    fn drop(&mut self) {
        ACTING.store(false, Ordering::Relaxed);
    }
}
