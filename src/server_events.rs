//! What happens to locks behind the module's back, and what it makes of it.
//!
//! Within these calls no key may be written: the server is in the middle of something. They note what is to be looked
//! at and set the alarm; the work is done in the next turn of the event loop, by [`crate::background`].

use crate::server::{
    Caller, Content, Context, KeyName, OpenKey, global_flags, latest_wall, lock_allocation, module_context,
    mono, subscriptions, watch_commands,
};
use crate::state::{self, Loading, State, Unlinked};
use crate::statistics::count;
use crate::transaction;
use lockward_core::{
    Db, DroppedLocks, FencingToken, LONGEST_SWEPT_KEY, Lock, QuarantineMemory, QueueId, Span,
};

/// A lock leaves the keyspace under `name`, and the module did not take it: deleted, overwritten, renamed, moved, expired, evicted. Whoever waits for
/// it is served from what is there then.
pub fn unlinked(name: &KeyName<'_>, lock: &Lock) {
    let now = mono();
    state::with(|state| {
        if state.follows() {
            return;
        }
        // One DEL may unlink many locks, and the server's flags are dear. No command has begun since the lock before this one.
        let is_known_to_evict = state.unlinked.as_ref().is_some_and(|gone| gone.may_be_evicted);
        // Should it turn out that the server dropped it on its own account, the tenure is kept.
        state.note_unlinked(now);
        let held = lock.holders().any(|holder| !holder.is_over(now));
        let may_be_evicted = held && (is_known_to_evict || global_flags().may_evict());
        if held {
            state.unlinked = Some(Unlinked {
                name: KeyName::copied(name.db(), name.bytes()),
                lock: lock.clone(),
                freed: lock_allocation::freed(),
                may_be_evicted,
            });
        } else {
            state.statistics.leases_ended(lock);
            // As where the module ends a lease: that tenure may come back, nothing older.
            let token = lock.holders().map(|holder| holder.token).max();
            let ended = token.and_then(FencingToken::before);
            state.note(name, QuarantineMemory { ended, ..QuarantineMemory::default() }, now);
        }
        if held || state.queue(name).is_some() || !state.seen.is_empty() {
            state.look_at_lock(name, now);
        }
        // In time: the server sends these events after the key is gone.
        if may_be_evicted || (held && ttl_has_passed(lock)) {
            subscriptions::subscribe_expired_evicted();
        }
        if may_be_evicted {
            watch_commands();
        }
        if !state.pending.is_empty() {
            subscriptions::subscribe_generic();
        }
    });
}

/// A command begins. What is evicted from now on is not the last lock that was unlinked, unless another module has called this
/// command from its own callback for that eviction.
///
/// Where the server does not tell who calls, it is seen by the key: if something else stands in the place of the lock, or comes
/// there, a command has put it there. Servers that tell may not be asked for a key here (Redis 7.2 to 8.0 and Valkey 8: with CLIENT
/// NO-TOUCH they look into the command, which is not known yet).
pub fn command_begins(caller: Caller) {
    let now = mono();
    match caller {
        Caller::Inner => {}
        Caller::TopLevel => state::with(|state| state.note_unlinked(now)),
        Caller::Unknown => {
            let Some(gone) = state::with(|state| state.unlinked.take()) else { return };
            let context = module_context();
            let name = &gone.name;
            context.select(name.db());
            let is_replaced = !matches!(OpenKey::for_write(context, name).content(), Content::Missing);
            // This command may store a new value there, which the server's timer may evict before the next command begins.
            subscriptions::subscribe_new_keys();
            state::with(|state| {
                // To look at the key may have made another lock go.
                let newer = state.unlinked.replace(gone);
                if is_replaced || newer.is_some() {
                    state.note_unlinked(now);
                }
                state.unlinked = newer.or(state.unlinked.take());
            });
        }
    }
}

/// A TTL has been set by hand. Waited-for keys with short names are looked at all the time, and need no telling.
pub fn ttl_set(name: &KeyName<'_>) {
    if name.bytes().len() > LONGEST_SWEPT_KEY {
        let now = mono();
        state::with(|state| {
            state.look_at_lock(name, now);
        });
    }
}

/// A key has come here from another name or database. When it is a lock, that is where holds of it are passed on.
pub fn arrived(context: Context, name: &KeyName<'_>) {
    if state::with(|state| state.pending.is_empty()) {
        return;
    }
    if let Content::Lock(lock) = OpenKey::to_look(context, name).content() {
        let here = (name.db(), name.bytes().into());
        state::with(|state| state.pending.moved(lock, &here));
    }
}

/// Whether the server may have found that the TTL has passed which the module set.
fn ttl_has_passed(lock: &Lock) -> bool {
    latest_wall() >= lock.expires_at()
}

/// The server has evicted a key: a tenure in it is kept. Where a command unlinked the lock, and what is evicted is something
/// later of the same name, [`command_begins`] has settled that by now.
///
/// Replicas and the AOF are told at set_once, before the server's own DEL: in the next turn of the event loop it may be too
/// late, as a failover or a shutdown lets nobody write.
pub fn evicted(context: Context, name: &KeyName<'_>) {
    if keep(name, Cause::Eviction, |gone| gone.may_be_evicted) {
        transaction::tell_of_shadow(context, name);
    }
}

/// A key has come to be where none was: one in the place of a shadow breaks that, and one in the place of the last lock that was
/// unlinked shows that a command has ended that.
pub fn new_key(name: &KeyName<'_>) {
    if state::own_write() {
        return;
    }
    state::with(|state| {
        if state.unlinked.is_some() {
            state.note_unlinked_as(name, mono());
        }
        // In quarantine nothing stands there; the sweeps do not open long keys.
        if name.bytes().len() > LONGEST_SWEPT_KEY {
            state.look_at_lock(name, mono());
        }
        if !state.follows() && state.dropped_locks.get(name.db(), name.bytes()).is_some() {
            let now = mono();
            state.break_shadow(name, now);
            state.look_at_lock(name, now);
        }
    });
}

/// The server has found that a key's TTL has passed. When that is the TTL the module set, but the lease is not over by
/// the monotonic clock, then the wall clock has jumped, and the tenure is kept. An earlier TTL was set by hand, and ends
/// the lock.
pub fn expired(name: &KeyName<'_>) {
    keep(name, Cause::Clock, |gone| ttl_has_passed(&gone.lock));
}

/// How much must be left of a lease for the wall clock to have stepped, and not just to run fast.
const STEP: Span = match Span::from_millis(1_000) {
    Some(span) => span,
    None => Span::MAX,
};

#[derive(Clone, Copy)]
enum Cause {
    Eviction,
    Clock,
}

fn keep(name: &KeyName<'_>, cause: Cause, by_itself: impl FnOnce(&Unlinked) -> bool) -> bool {
    if state::own_write() {
        return false;
    }
    let now = mono();
    let kept = state::with(|state| {
        let dropped = |gone: &mut Unlinked| gone.name.is(name) && by_itself(gone);
        if let Some(gone) = state.unlinked.take_if(dropped) {
            let (db, key) = (name.db(), name.bytes());
            let left = gone.lock.last_deadline().map_or(Span::default(), |deadline| now.until(deadline));
            state.dropped_locks.keep(db, key, gone.lock);
            match cause {
                Cause::Eviction => {
                    state.dropped_locks.mark_replicated(db, key);
                    count(&mut state.statistics.kept_from_eviction);
                }
                // A clock that runs a little fast is a few milliseconds ahead when a lease ends.
                Cause::Clock if left < STEP => {}
                Cause::Clock => {
                    count(&mut state.statistics.kept_from_clock_steps);
                    state.to_put_back.push_back((db, key.into()));
                }
            }
            state.look_at(&[], now);
            return true;
        }
        false
    });
    if kept {
        subscriptions::subscribe_new_keys();
    }
    kept
}

/// A database, or all of them, has been flushed: its locks are broken, those dropped early too.
pub fn flushed(db: Option<Db>) {
    let now = mono();
    recheck(|state| {
        let matters = !state.follows() && state.quarantine.ends(now).is_some();
        if let Some(last) = state.tokens.last().filter(|_| matters) {
            state.flushed.insert(db, last);
        }
        state.dropped_locks.flush(db);
        db.map_or_else(|| state.queues.queues().collect(), |db| state.queues.queues_of(db).collect())
    });
}

/// Two databases have been swapped. Who waits, waits on for the same key of the same database.
pub fn swapped(one: Db, other: Db) {
    let swapped = |db: Db| db.swapped(one, other);
    recheck(|state| {
        state.seen = state.seen.drain().map(|((db, key), seen)| ((swapped(db), key), seen)).collect();
        state.flushed = state.flushed.drain().map(|(db, token)| (db.map(swapped), token)).collect();
        state.dropped_locks.swap(one, other);
        state.pending.swap(one, other);
        for (db, _) in state.to_put_back.iter_mut().chain(&mut state.carriers) {
            *db = swapped(*db);
        }
        state.queues.queues_of(one).chain(state.queues.queues_of(other)).collect()
    });
}

/// The quarantine has been given another length: it may be over, or have begun anew.
pub fn quarantine_changed() {
    recheck(|state| state.queues.queues().collect());
}

fn recheck(queues: impl FnOnce(&mut State) -> Vec<QueueId>) {
    let now = mono();
    state::with(|state| {
        let queues = queues(state);
        state.look_at(&queues, now);
    });
}

/// The server has become a replica: it follows, and keeps no work of its own. Most servers have sent its waiters away by
/// now, one by one, and each has left its line. Valkey 9 leaves some: in cluster mode all, during FAILOVER all until it
/// has succeeded, and else those clients that can be redirected. They are sent away in the next turn.
pub fn became_replica() {
    subscriptions::subscribe_async_loading();
    let now = mono();
    state::with(|state| {
        state.replication_audience.may_come();
        state.replica = true;
        state.dropped_locks.drop_unreplicated();
        state.to_put_back.clear();
        state.pending.drop_undelivered();
        state.unlinked = None;
        state.forget_seen();
        let left: Vec<QueueId> = state.queues.queues().collect();
        state.look_at(&left, now);
    });
}

/// The server has become a primary. It may have missed grants, and withholds new ones for the time of the quarantine.
pub fn became_primary() {
    let now = mono();
    state::with(|state| {
        state.replication_audience.may_come();
        state.replica = false;
        state.forget_seen();
        state.quarantine.restart(now);
    });
}

/// A replica begins to load a data set beside the one it has, and to serve that meanwhile.
pub fn loading_beside_begins() {
    state::with(|state| state.loaded_beside = Some(DroppedLocks::new()));
}

/// The new data set takes the place of the old; or it has been given up.
pub fn loading_beside_ends(loaded: bool) {
    state::with(|state| {
        if let Some(dropped_locks) = state.loaded_beside.take().filter(|_| loaded) {
            state.dropped_locks = dropped_locks;
        }
    });
}

/// The server has forked, begins a snapshot, or has got other settings: from now on a replica or an AOF may hear what
/// changes.
pub fn listeners_may_come() {
    state::with(|state| state.replication_audience.may_come());
}

/// The server begins to load its data.
pub fn loading_begins(from: Loading) {
    state::with(|state| {
        state.replication_audience.may_come();
        state.loading = from;
    });
}

/// The server has loaded its data, or failed to.
pub fn loading_ends() {
    let now = mono();
    recheck(|state| {
        state.replication_audience.may_come();
        state.loading = Loading::No;
        state.quarantine.loaded(now);
        state.queues.queues().collect()
    });
}
