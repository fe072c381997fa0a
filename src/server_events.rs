//! Changes of locks that the module did not make, as the server reports them.
//!
//! The functions in this file must not write to any key, because the server is in the middle of another operation. The
//! functions record which locks must be checked, and set the timer. [`crate::background`] does the work in the next
//! iteration of the event loop.
//!
//! The *unlinked lock* is the last held lock that something other than the module removed from the keyspace. The lock
//! is *settled* when it is certain that a command has deleted, overwritten, renamed or moved the lock, and that the
//! server has neither evicted nor expired it.

use crate::server::{
    Caller, Context, KeyName, OpenKey, global_flags, latest_wall, lock_allocation, module_context, mono,
    subscriptions, watch_commands,
};
use crate::state::{self, State};
use crate::statistics::count;
use crate::transaction;
use lockward_core::{Db, Expired, LONGEST_SWEPT_KEY, Loading, Lock, NameRef, Now, QueueId, Span, Unlinked};

/// Something other than the module removes the lock in `name` from the keyspace: the key is deleted, overwritten,
/// renamed, moved, expired or evicted. After the removal, the background work serves the waiters, depending on the
/// value that the key then holds.
pub fn unlinked(name: &KeyName<'_>, lock: &Lock) {
    let now = Now { mono: mono(), wall: latest_wall() };
    let (unlinked, has_pending_replies) = state::with(|state| {
        if state.store.follows() {
            return (Unlinked::default(), false);
        }
        // Reading the server's flags is costly, so the store reads them only if it needs the answer.
        let evicts = || global_flags().may_evict();
        let unlinked = state.store.unlinked(name, lock, now, lock_allocation::freed(), evicts);
        if unlinked.recheck {
            state.recheck_lock(name, now.mono);
        }
        (unlinked, !state.pending.is_empty())
    });
    // Subscribing now is early enough, because the server sends the event of an eviction or expiry only after the key
    // is gone.
    if unlinked.may_be_dropped {
        subscriptions::subscribe_expired_evicted();
    }
    if unlinked.may_be_evicted {
        watch_commands();
    }
    if has_pending_replies {
        subscriptions::subscribe_generic();
    }
}

/// A command begins. A key that is evicted from now on is not the key of the last unlinked lock, so this lock can be
/// settled. The exception is a command that another module calls in its callback for the eviction of the unlinked lock:
/// such an inner command does not settle the lock.
///
/// If the server does not name the caller, the module opens the key of the last unlinked lock. If the key
/// holds a value at that time, or gets a value later, a command has replaced the lock. On servers that name
/// the caller, the module must not open a key in this call. When a key is opened for a client that has set CLIENT
/// NO-TOUCH, Redis 7.2 to 8.0 and Valkey 8 read their pointer to the running command. These servers set this
/// pointer only after this call, so they would crash.
pub fn command_begins(caller: Caller) {
    let now = mono();
    match caller {
        Caller::Inner => {}
        Caller::TopLevel => {
            state::with(|state| state.store.settle_unlinked(now, lock_allocation::freed()));
        }
        Caller::Unknown => {
            let Some(unlinked) = state::with(|state| state.store.take_unlinked()) else { return };
            let context = module_context();
            let name = KeyName::copied(unlinked.name().db(), unlinked.name().key());
            context.select(name.db());
            let is_replaced = !matches!(OpenKey::for_write(context, &name).content(), Ok(None));
            // The present command may store a new value in the key of the unlinked lock, and the server's timer may
            // evict this value before the next command begins. The event of a new key then shows that the unlinked
            // lock was not evicted.
            subscriptions::subscribe_new_keys();
            let freed = lock_allocation::freed();
            state::with(|state| state.store.return_unlinked(unlinked, is_replaced, now, freed));
        }
    }
}

/// A client has set a TTL. Waited-for keys with short names need no check here, because the sweeps visit them.
pub fn ttl_set(name: &KeyName<'_>) {
    if name.key().len() > LONGEST_SWEPT_KEY {
        let now = mono();
        state::with(|state| state.recheck_lock(name, now));
    }
}

/// A key has got this name by RENAME or MOVE. If the key holds a lock, each hold whose client left before the reply is
/// later taken back under this name.
pub fn arrived(context: Context, name: &KeyName<'_>) {
    if state::with(|state| state.pending.is_empty()) {
        return;
    }
    if let Ok(Some(lock)) = OpenKey::to_look(context, name).content() {
        let here = (name.db(), name.key().into());
        state::with(|state| state.pending.moved(lock, &here));
    }
}

/// The server has evicted a key. Perhaps another key got the name of the last unlinked lock, and was then evicted. In
/// that case [`command_begins`] has already settled the lock, so this function does not treat the lock as evicted.
///
/// A dropped lock is replicated at once, before the server's own DEL. The next iteration of the event loop may be too
/// late, because a failover or a shutdown may forbid writes by then.
pub fn evicted(context: Context, name: &KeyName<'_>) {
    if state::own_write() {
        return;
    }
    let now = mono();
    let dropped = state::with(|state| {
        let dropped = state.store.evicted(name);
        if dropped {
            count(&mut state.statistics.kept_from_eviction);
            state.rearm(now);
        }
        dropped
    });
    if dropped {
        subscriptions::subscribe_new_keys();
        transaction::replicate_dropped(context, name);
    }
}

/// The server has found that a key's TTL has passed.
pub fn expired(name: &KeyName<'_>) {
    if state::own_write() || !state::with(|state| state.store.unlinked_is(name)) {
        return;
    }
    let (wall, now) = (latest_wall(), mono());
    let expired = state::with(|state| {
        let expired = state.store.expired(name, wall, now);
        if expired == Expired::KeptFromClockJump {
            count(&mut state.statistics.kept_from_clock_steps);
        }
        if expired != Expired::Over {
            state.rearm(now);
        }
        expired
    });
    if expired != Expired::Over {
        subscriptions::subscribe_new_keys();
    }
}

pub fn new_key(name: &KeyName<'_>) {
    if state::own_write() || !state::with(|state| state.store.concerns_new_key(name)) {
        return;
    }
    let now = mono();
    state::with(|state| {
        if state.store.new_key(name, now, lock_allocation::freed()) {
            state.recheck_lock(name, now);
        }
    });
}

/// One database has been flushed, or all databases if `db` is `None`. If `sync` is true, the server has freed all
/// memory of the keys already, so the module frees its memory at once too.
pub fn flushed(db: Option<Db>, sync: bool) {
    let now = mono();
    recheck(|state| {
        state.store.flush(db, now);
        while sync && state.store.drop_discarded() {}
        let queues = &state.store.queues;
        db.map_or_else(|| queues.queues().collect(), |db| queues.queues_of(db).collect())
    });
}

pub fn swapped(one: Db, other: Db) {
    recheck(|state| {
        state.store.swap(one, other);
        state.pending.swap(one, other);
        for (db, _) in &mut state.snapshot_keys {
            *db = db.swapped(one, other);
        }
        state.store.queues.queues_of(one).chain(state.store.queues.queues_of(other)).collect()
    });
}

/// A client has changed the length of the quarantine: the quarantine may be over, or have begun again.
pub fn quarantine_changed(length: Span) {
    let now = mono();
    recheck(|state| {
        state.store.set_quarantine_length(length, now);
        state.store.queues.queues().collect()
    });
}

fn recheck(queues: impl FnOnce(&mut State) -> Vec<QueueId>) {
    let now = mono();
    state::with(|state| {
        let queues = queues(state);
        state.recheck(&queues, now);
    });
}

/// The server has become a replica. All servers except Valkey 9 have ended the waits before this event, one by one, and
/// each client has left its queue. The module ends the waits that Valkey 9 leaves, in the next iteration of the event
/// loop:
///
/// - in cluster mode, all waits;
/// - during FAILOVER, all waits, until the failover has succeeded;
/// - otherwise, the waits of clients that can be redirected.
pub fn became_replica() {
    subscriptions::subscribe_async_loading();
    recheck(|state| {
        state.no_audience = false;
        state.store.become_replica();
        state.pending.drop_undelivered();
        state.store.queues.queues().collect()
    });
}

pub fn became_primary() {
    let now = mono();
    state::with(|state| {
        state.no_audience = false;
        state.store.become_primary(now);
    });
}

/// The server has forked, begins a snapshot, or has new settings: from now on a replica or an AOF may receive the
/// changes of locks.
pub fn audience_may_come() {
    state::with(|state| state.no_audience = false);
}

pub fn loading_begins(from: Loading) {
    state::with(|state| {
        state.no_audience = false;
        state.store.begin_loading(from);
    });
}

/// The server has loaded its data, or has failed to load it.
pub fn loading_ends() {
    let now = mono();
    recheck(|state| {
        state.no_audience = false;
        state.store.end_loading(now);
        state.store.queues.queues().collect()
    });
}
