//! One decision on one lock with all its effects. A command, the timer and an event all change locks in this one way.
//!
//! The lock is in the keyspace or, when the server has dropped its key early, among the dropped locks. Core decides.
//! The effects are then carried out in one order: store, replicate, set the timer for the clients that still wait,
//! notify, and unblock. A module that is notified may call any command. If that module changes locks, Lockward receives
//! the changes as events.

use crate::command_time;
use crate::server::{APPLY, BlockedClient, Context, KeyName, OpenKey, WrongType, lock_allocation, now, warn};
use crate::state::{self, EffectsBuffer, OwnWrite, State};
use crate::statistics::count;
use lockward_core::{
    Completion, Decided, Decision, Instant, LONGEST_SWEPT_KEY, LockName, NameRef, Now, Outcome, Propagation,
    Waits, encoding,
};

/// Runs `decide` on the lock in `name`, and carries out the effects.
///
/// # Errors
/// [`WrongType`] when the key holds another type. In this case no decision is made.
pub fn run<R>(
    context: Context,
    name: &KeyName<'_>,
    decide: impl FnOnce(&mut Decision<'_, BlockedClient>) -> R,
) -> Result<R, WrongType> {
    let mut key = OpenKey::for_write(context, name);
    let now = command_time::of(context);
    let mut new = None;
    let (lock, before) = match key.content() {
        Err(WrongType) => {
            break_dropped(name, now.mono);
            return Err(WrongType);
        }
        Ok(Some(lock)) => {
            let before = lock.expires_at();
            (lock, Some(before))
        }
        Ok(None) => (&mut **new.insert(lock_allocation::spare()), None),
    };
    let (answer, mut buffer) = state::with(|state| {
        if before.is_some() {
            // A lock that was stored under the key, for example by RESTORE, ends the dropped lock.
            state.break_dropped(name, now.mono);
        }
        let mut buffer = buffer(context, state);
        let freed = lock_allocation::freed();
        let answer = state.store.decide(name, lock, &mut buffer.decided, now, freed, decide);
        end_waits(state, &mut buffer);
        (answer, buffer)
    });
    if let Some(before) = before {
        let after = lock.time_to_expire();
        let _own_write = OwnWrite::begin();
        key.changed(before, after, buffer.decided.effects.leased());
    }
    if let Some(new) = new {
        key.create(new);
    }
    if let Some(waits) = &mut buffer.decided.waits
        && name.key().len() > LONGEST_SWEPT_KEY
    {
        // The sweeps leave out long keys. So the module must decide again when the TTL ends.
        waits.due = key.expires_at().map(|time| now.mono_at(time)).into_iter().chain(waits.due).min();
    }
    drop(key);
    carry_out(context, name, buffer, now);
    Ok(answer)
}

/// A read has found a lease that is over. The module removes the holder, just as the server deletes an expired key that
/// a client reads. If a client waits for the lock, this function changes nothing, because the background work removes
/// the holder, and may grant the lock.
pub fn clear_away(context: Context, name: &KeyName<'_>) {
    let not_ours = state::with(|state| state.store.follows() || state.store.queue(name).is_some());
    if !not_ours && !Context::paused() {
        let (Ok(()) | Err(WrongType)) = run(context, name, |decision| decision.expire_and_serve());
    }
}

/// Ends the tenures of a dropped lock, because another value has been stored under its key. Does nothing on a
/// replica, where the primary decides.
pub fn break_dropped(name: &KeyName<'_>, now: Instant) {
    state::with(|state| {
        if !state.store.follows() {
            state.break_dropped(name, now);
        }
    });
}

/// Puts a dropped lock back into the keyspace. The server dropped this lock because of a jump of the wall clock, not to
/// free memory.
pub fn put_back(context: Context, name: &KeyName<'_>) {
    let now = now();
    let mut key = OpenKey::for_write(context, name);
    // If the key holds another value, the sweep ends the dropped lock.
    let Ok(None) = key.content() else { return };
    let Some(lock) = state::with(|state| state.store.take_to_put_back(name, now)) else { return };
    let mut payload = Vec::new();
    encoding::append_lock(&mut payload, &lock, now);
    key.create(Box::new(lock));
    drop(key);
    replicate(context, name, &payload);
    context.signal_modified(name);
}

/// Replicates the dropped lock of this name, or the end of this lock.
pub fn replicate_dropped(context: Context, name: &KeyName<'_>) {
    let mut payload = Vec::new();
    let now = now();
    state::with(|state| {
        let dropped = state.store.dropped_locks.get(name.db(), name.key());
        encoding::append_dropped_lock(&mut payload, dropped, now);
    });
    replicate(context, name, &payload);
}

/// Sends a payload to replicas and the AOF.
#[inline(never)]
pub fn replicate(context: Context, name: &KeyName<'_>, payload: &[u8]) {
    if !context.replicate(APPLY, name, payload) {
        warn("the server does not know LOCK._APPLY: replicas and the AOF miss a change");
    }
}

/// The buffer for the next decision.
#[inline]
fn buffer(context: Context, state: &mut State) -> Box<EffectsBuffer> {
    let mut buffer = state.effects_buffer.take().unwrap_or_default();
    // Without an audience, the module does not encode the changes, but replicates the running command verbatim. So a
    // command must be running.
    if context.is_of_command() && state.no_audience {
        buffer.decided.effects.skip_encoding();
    }
    buffer
}

/// Adds the replies of the waits that a decision has ended to the pending replies. This function runs before any event
/// is sent, because another module may react to an event and close the connection of a client that has just been
/// granted the lock.
#[inline]
fn end_waits(state: &mut State, buffer: &mut EffectsBuffer) {
    if let Some(waits) = &buffer.decided.waits {
        end_waits_for(state, &waits.lock, &mut buffer.decided.effects.completions, &mut buffer.to_unblock);
    }
}

#[inline(never)]
fn end_waits_for(
    state: &mut State,
    lock: &LockName,
    completions: &mut Vec<Completion<BlockedClient>>,
    to_unblock: &mut Vec<BlockedClient>,
) {
    for completion in completions.drain(..) {
        if completion.outcome == Outcome::Superseded {
            count(&mut state.statistics.superseded);
        }
        to_unblock.push(state.pending.add(completion, Some(lock.clone())));
    }
}

/// Carries out what was decided. The part that every decision needs is inlined.
#[inline(always)]
fn carry_out(context: Context, name: &KeyName<'_>, mut buffer: Box<EffectsBuffer>, now: Now) {
    let EffectsBuffer { decided: Decided { effects, waits }, to_unblock } = &mut *buffer;
    match effects.propagation() {
        Propagation::Nothing => {}
        Propagation::Verbatim => context.replicate_verbatim(),
        Propagation::Changes(payload) => replicate(context, name, payload),
    }
    if waits.is_some() {
        wait_on(waits, now.mono);
    }
    if effects.changed() {
        context.signal_modified(name);
        for event in &effects.events {
            context.notify(*event, name);
        }
    }
    if !to_unblock.is_empty() {
        unblock(to_unblock);
    }
    effects.clear();
    state::with(|state| state.effects_buffer = Some(buffer));
}

/// Sets when the lock must be checked again for the clients that still wait.
#[inline(never)]
fn wait_on(waits: &mut Option<Waits>, now: Instant) {
    if let Some(Waits { queue, due, .. }) = waits.take() {
        state::with(|state| state.set_due(queue, due, now));
    }
}

#[inline(never)]
fn unblock(clients: &mut Vec<BlockedClient>) {
    clients.drain(..).for_each(BlockedClient::unblock);
    clients.shrink_to(64);
}
