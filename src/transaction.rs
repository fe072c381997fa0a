//! A turn: one step on one lock with all that follows from it. The only way in which this server changes a lock,
//! whether a command asks for it, the timer, or the work left over by an event.
//!
//! The lock is found in the keyspace or, when the server has dropped its key early, as its shadow. The step is decided in
//! core. Its effects are then carried out in one order: store, replicate, set the alarm for whoever still waits, notify, and
//! unblock. Other modules may do anything as they hear of an event: that is news, and not our doing.

use crate::effects_buffer::{EffectsBuffer, Waits};
use crate::server::internal_commands::APPLY;
use crate::server::{
    BlockedClient, Content, Context, KeyName, Level, OpenKey, WrongType, lock_allocation, log, now,
};
use crate::state::{self, OwnWrite, State};
use lockward_core::{Decision, Instant, LONGEST_SWEPT_KEY, Lock, Now, Propagation, encoding};
use std::mem;

/// Runs `decide` as one step on the lock in `name`.
///
/// # Errors
/// [`WrongType`] when the key holds something else; then nothing was decided.
pub fn run<R>(
    context: Context,
    name: &KeyName<'_>,
    decide: impl FnOnce(&mut Decision<'_, BlockedClient>) -> R,
) -> Result<R, WrongType> {
    let mut key = OpenKey::for_write(context, name);
    let now = now();
    let (answer, mut decided) = match key.content() {
        Content::WrongType => {
            break_shadow(name, now.mono);
            return Err(WrongType);
        }
        Content::Lock(lock) => {
            let before = lock.expires_at();
            let decided = state::with(|state| {
                // A lock that was stored in its place, as by RESTORE, breaks the one the server dropped early.
                state.break_shadow(name, now.mono);
                decide_on(context, state, name, lock, now, decide)
            });
            let after = lock.time_to_expire();
            {
                let _acting = OwnWrite::begin();
                key.changed(before, after);
            }
            decided
        }
        Content::Missing => {
            let mut lock = lock_allocation::spare();
            let decided = state::with(|state| {
                let dropped_lock = state.take_shadow(name);
                let shadowed = dropped_lock.is_some();
                if let Some(dropped_lock) = dropped_lock {
                    *lock = dropped_lock;
                }
                let (answer, mut decided) = decide_on(context, state, name, &mut lock, now, decide);
                if shadowed && !decided.effects.changed() {
                    state.dropped_locks.put(name.db(), name.bytes(), mem::take(&mut *lock));
                } else if shadowed {
                    state.dropped_locks.mark_replicated(name.db(), name.bytes());
                    decided.effects.replicate_whole_lock(&lock, now);
                    lock.recompute_expiry(now);
                }
                (answer, decided)
            });
            key.create(lock);
            decided
        }
    };
    if let Some(waits) = &mut decided.waits
        && name.bytes().len() > LONGEST_SWEPT_KEY
    {
        // The rounds leave out long keys, so look again when the TTL ends.
        waits.due = key.expires_at().map(|time| now.mono_at(time)).into_iter().chain(waits.due).min();
    }
    drop(key);
    carry_out(context, name, decided, now);
    Ok(answer)
}

/// A read has found a lease that is over: it is cleared away, as the server drops a key whose TTL has passed when it
/// is read. Where somebody waits, that is about to be done in the background, which may also grant.
pub fn clear_away(context: Context, name: &KeyName<'_>) {
    let not_ours = state::with(|state| state.follows() || state.queue(name).is_some());
    if !not_ours && !Context::paused() {
        let (Ok(()) | Err(WrongType)) = run(context, name, |step| step.expire_and_serve());
    }
}

/// Forgets the tenure whose key the server dropped early: something else has been stored in its place. A replica waits
/// until it is told.
pub fn break_shadow(name: &KeyName<'_>, now: Instant) {
    state::with(|state| {
        if !state.follows() {
            state.break_shadow(name, now);
        }
    });
}

/// Puts a lock back into the keyspace that the server has dropped though it did not need the memory.
pub fn put_back(context: Context, name: &KeyName<'_>) {
    let now = now();
    let mut key = OpenKey::for_write(context, name);
    // What stands there instead, the patrol deals with.
    let Content::Missing = key.content() else { return };
    let Some(mut lock) = state::with(|state| {
        state.dropped_locks.mark_replicated(name.db(), name.bytes());
        state.dropped_locks.take(name.db(), name.bytes())
    }) else {
        return;
    };
    lock.recompute_expiry(now);
    let mut payload = Vec::new();
    encoding::append_lock(&mut payload, &lock, now);
    key.create(Box::new(lock));
    drop(key);
    replicate(context, name, &payload);
    context.signal_modified(name);
}

/// Tells replicas and the AOF what the shadow of a lock is, or that it has none.
pub fn tell_of_shadow(context: Context, name: &KeyName<'_>) {
    let mut payload = Vec::new();
    let now = now();
    state::with(|state| {
        encoding::append_dropped_lock(&mut payload, state.dropped_locks.get(name.db(), name.bytes()), now);
    });
    replicate(context, name, &payload);
}

/// Sends a payload to replicas and the AOF.
#[inline(never)]
pub fn replicate(context: Context, name: &KeyName<'_>, payload: &[u8]) {
    if !context.replicate(APPLY, name, payload) {
        log(Level::Warning, "the server does not know LOCK._APPLY: replicas and the AOF miss a change");
    }
}

fn decide_on<R>(
    context: Context,
    state: &mut State,
    name: &KeyName<'_>,
    lock: &mut Lock,
    now: Now,
    decide: impl FnOnce(&mut Decision<'_, BlockedClient>) -> R,
) -> (R, Box<EffectsBuffer>) {
    state.note_unlinked_as(name, now.mono);
    let mut decided = state.decided.take().unwrap_or_default();
    let EffectsBuffer { effects, waits, to_unblock } = &mut *decided;
    // What is sent instead is the command as it was given, so there must be one.
    if context.is_of_command() && state.replication_audience.none() {
        effects.skip_replication();
    }
    let queue = state.queue(name);
    if let Some(queue) = queue {
        *waits = state.queues.name(queue).map(|lock| Waits { queue, lock, due: None });
    }
    let mut step = Decision {
        lock,
        queue,
        quarantine_memory: state.seen(name),
        queues: &mut state.queues,
        tokens: &mut state.tokens,
        quarantine: state.quarantine,
        effects,
        counters: &mut state.statistics.counters,
        now,
    };
    let answer = decide(&mut step);
    if let Some(waits) = waits {
        waits.due = step.due();
        // Before other modules hear of anything: they may make a client leave that has just been granted the lock.
        for completion in effects.completions.drain(..) {
            to_unblock.push(state.pending.add(completion, Some(waits.lock.clone())));
        }
    }
    state.note(name, effects.quarantine_memory(), now.mono);
    (answer, decided)
}

fn carry_out(context: Context, name: &KeyName<'_>, mut decided: Box<EffectsBuffer>, now: Now) {
    let EffectsBuffer { effects, waits, to_unblock } = &mut *decided;
    match effects.propagation() {
        Propagation::Nothing => {}
        Propagation::Verbatim => context.replicate_verbatim(),
        Propagation::Changes(payload) => replicate(context, name, payload),
    }
    if let Some(Waits { queue, due, .. }) = waits.take() {
        state::with(|state| state.set_due(queue, due, now.mono));
    }
    if effects.changed() {
        context.signal_modified(name);
        for event in &effects.events {
            context.notify(*event, name);
        }
    }
    to_unblock.drain(..).for_each(BlockedClient::unblock);
    to_unblock.shrink_to(64);
    effects.clear();
    state::with(|state| state.decided = Some(decided));
}
