//! What the module remembers from one call of the server to the next.
//!
//! The [`Store`] of core holds the memory about locks. The rest of the state is in this file, except the settings and
//! small values that one file alone uses, such as a cache. The state is used only in calls that the server makes while
//! it holds its global lock.
//!
//! While the state is borrowed, no function of the server may run that could call back into the module. So
//! code first decides with the borrowed state, then ends the borrow, and then acts.

use crate::pending_replies::PendingReplies;
use crate::server::{BlockedClient, KeyName, Shared, Socket};
use crate::statistics::Statistics;
use crate::wakeup_timer::WakeupTimer;
use lazy_static::lazy_static;
use lockward_core::{Decided, Instant, LockName, Now, QueueId, QueueSweepPosition, Store, SweepPosition};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything that the module remembers except the settings.
#[derive(Default)]
pub struct State {
    /// Wait queues, dropped locks, tokens and quarantine: what core needs for decisions.
    pub store: Store<BlockedClient>,
    /// Replies to clients whose wait has ended, and grants to clients that have left meanwhile.
    pub pending: PendingReplies,
    /// The counts of INFO that core does not count.
    pub statistics: Statistics,
    /// The module's one timer.
    pub wakeup_timer: WakeupTimer,
    /// The last waited-for lock that was checked in this round of the sweep; `None` at the beginning of a round.
    pub last_swept_queue: Option<QueueSweepPosition>,
    /// The last dropped lock that was checked in this round of the sweep; `None` at the beginning of a round.
    pub last_swept_dropped_lock: Option<SweepPosition>,
    /// Whether there is certainly no audience for replicated changes, see [`crate::replication_audience`].
    pub no_audience: bool,
    /// Whether the module can find out on this server that there is no audience.
    pub audience_can_be_known: bool,
    /// The snapshot keys that exist now.
    pub snapshot_keys: Vec<LockName>,
    /// The sockets of clients that have waited.
    pub sockets: HashMap<u64, Socket>,
    /// The time that the commands of the running transaction or script use as the current time for leases.
    pub transaction_time: Option<Now>,
    /// The buffer of one decision. The next decision uses the buffer again.
    pub effects_buffer: Option<Box<EffectsBuffer>>,
}

/// What must be carried out after one decision.
#[derive(Default)]
pub struct EffectsBuffer {
    /// What core has decided.
    pub decided: Decided<BlockedClient>,
    /// The clients whose wait has ended. Their replies are pending.
    pub to_unblock: Vec<BlockedClient>,
}

impl State {
    /// Forgets the sockets of clients if there are many and no client waits.
    pub fn forget_sockets(&mut self) {
        const KEPT: usize = 1_024;
        if self.sockets.len() > KEPT && self.store.queues.waiters() == 0 {
            self.sockets = HashMap::new();
        }
    }

    /// Sets when the lock of a wait queue must be checked again, if the queue still exists. If the check is overdue,
    /// its time is now: with an earlier time, a lock that needs many checks in a row would come before all other locks.
    pub fn set_due(&mut self, queue: QueueId, due: Option<Instant>, now: Instant) {
        self.store.queues.set_due(queue, due.map(|due| due.max(now)));
        self.rearm(now);
    }

    /// Makes the waiters of a lock due for a check at once, if there are any.
    pub fn recheck_lock(&mut self, name: &KeyName<'_>, now: Instant) {
        let queue = self.store.queue(name);
        self.recheck(queue.as_slice(), now);
    }

    /// Makes wait queues due for a check at once, because something other than the module may have changed their keys.
    pub fn recheck(&mut self, queues: &[QueueId], now: Instant) {
        for queue in queues {
            self.store.queues.set_changed(*queue, now);
        }
        self.rearm(now);
    }

    /// Ends the tenures of a dropped lock, because its key holds another value or this node does not serve the key any
    /// more.
    #[inline]
    pub fn break_dropped(&mut self, name: &KeyName<'_>, now: Instant) {
        if self.store.break_dropped(name, now) {
            self.rearm(now);
        }
    }

    /// Sets the timer for the next work.
    pub fn rearm(&mut self, now: Instant) {
        let undelivered = self.pending.has_undelivered().then_some(now);
        let next = self.store.next_work(now).into_iter().chain(undelivered).min();
        let has_queues = self.store.queues.has_queues();
        self.wakeup_timer.rearm(next, has_queues, self.store.sweeps_dropped_locks(), now);
    }
}

lazy_static! {
    static ref STATE: Shared<State> = Shared::new(State::default());
}

/// Whether the module is changing the keyspace. Set and read only under the server's lock.
static OWN_WRITE: AtomicBool = AtomicBool::new(false);

/// Uses the state. Must not be called within `use_state`.
pub fn with<R>(use_state: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(use_state)
}

/// Whether the module itself is changing the keyspace now. If so, the module ignores the server's reports of
/// this change.
pub fn own_write() -> bool {
    OWN_WRITE.load(Ordering::Relaxed)
}

/// Marks that the module is changing the keyspace, until this guard is dropped.
pub struct OwnWrite(());

impl OwnWrite {
    pub fn begin() -> Self {
        OWN_WRITE.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for OwnWrite {
    fn drop(&mut self) {
        OWN_WRITE.store(false, Ordering::Relaxed);
    }
}
