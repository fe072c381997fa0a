//! How a replica, or a server that loads its AOF, carries out what a primary has decided.

use crate::errors::Error;
use crate::server::{Content, Context, KeyName, OpenKey, lock_allocation, now, subscriptions};
use crate::state::{self, OwnWrite};
use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{Change, Event, Lock, Now, event_of};

/// Applies what `payload` tells to the lock in `name`, all or none, and passes it on to our own replicas and AOF.
///
/// # Errors
/// [`Error::Payload`] or [`Error::WrongType`]; then nothing has changed.
pub fn apply(context: Context, name: &KeyName<'_>, payload: &[u8], heard: Origin) -> Result<(), Error> {
    let now = now();
    match encoding::decode_message(payload, heard, now).map_err(|_| Error::Payload)? {
        Message::Changes(changes) => change(context, name, changes, heard, now)?,
        Message::DroppedLock(dropped_lock) => keep(name, dropped_lock),
    }
    context.replicate_verbatim();
    Ok(())
}

/// The key is left alone: it is missing here too, or is deleted by what the primary sends next (an eviction is told of
/// before its DEL), or something else stands in its place.
fn keep(name: &KeyName<'_>, dropped_lock: Option<Lock>) {
    subscriptions::subscribe_new_keys();
    state::with(|state| match dropped_lock {
        Some(lock) => {
            lock.holders().for_each(|holder| state.tokens.observe(holder.token));
            state.dropped_locks.put(name.db(), name.bytes(), lock);
        }
        None => {
            state.dropped_locks.take(name.db(), name.bytes());
        }
    });
}

fn change(
    context: Context,
    name: &KeyName<'_>,
    changes: Vec<Change>,
    heard: Origin,
    now: Now,
) -> Result<(), Error> {
    let mut key = OpenKey::for_write(context, name);
    let _acting = OwnWrite::begin();
    // What changes a lock that has a shadow is the whole of it.
    state::with(|state| state.dropped_locks.take(name.db(), name.bytes()));
    let events = match key.content() {
        Content::WrongType => return Err(Error::WrongType),
        Content::Lock(lock) => {
            let before = lock.expires_at();
            let events = apply_to(lock, changes, now);
            let after = lock.time_to_expire();
            key.changed(before, after);
            events
        }
        Content::Missing => {
            let mut lock = lock_allocation::spare();
            let events = apply_to(&mut lock, changes, now);
            key.create(lock);
            events
        }
    };
    drop(key);
    context.signal_modified(name);
    if heard == Origin::Live {
        events.into_iter().for_each(|event| context.notify(event, name));
    }
    Ok(())
}

fn apply_to(lock: &mut Lock, changes: Vec<Change>, now: Now) -> Vec<Event> {
    state::with(|state| {
        let put = |change: &Change| if let Change::Put(holder) = change { Some(holder.token) } else { None };
        changes.iter().filter_map(put).for_each(|token| state.tokens.observe(token));
    });
    let events = changes.iter().map(|change| event_of(lock, change)).collect();
    lock.apply_all(changes, now);
    events
}
