//! How a replica, or a server that loads its AOF, carries out what a primary has decided.

use crate::errors::Error;
use crate::server::{Context, KeyName, OpenKey, lock_allocation, now, subscriptions};
use crate::state::{self, OwnWrite};
use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{Change, Event, Lock, Now, event_of};

/// Applies the message in `payload` to the lock in `name`, and passes the message on to this server's own replicas and
/// AOF.
///
/// # Errors
/// [`Error::Payload`] or [`Error::WrongType`]. After an error nothing has changed.
pub fn apply(context: Context, name: &KeyName<'_>, payload: &[u8], origin: Origin) -> Result<(), Error> {
    let now = now();
    match encoding::decode_message(payload, origin, now).map_err(|_| Error::Payload)? {
        Message::Changes(changes) => apply_changes(context, name, changes, origin, now)?,
        Message::DroppedLock(dropped) => follow_dropped(name, dropped),
    }
    context.replicate_verbatim();
    Ok(())
}

/// Records the dropped lock of the primary, or the end of this lock. The key needs no change for one of these reasons:
/// the key is missing on this server too, the key holds another value, or the primary sends a DEL of the key next.
/// (When the primary evicts a lock, it replicates the dropped lock before the DEL.)
fn follow_dropped(name: &KeyName<'_>, dropped: Option<Lock>) {
    subscriptions::subscribe_new_keys();
    state::with(|state| state.store.follow_dropped(name, dropped));
}

fn apply_changes(
    context: Context,
    name: &KeyName<'_>,
    changes: Vec<Change>,
    origin: Origin,
    now: Now,
) -> Result<(), Error> {
    let mut key = OpenKey::for_write(context, name);
    let _own_write = OwnWrite::begin();
    state::with(|state| state.store.end_dropped(name));
    let events = match key.content()? {
        Some(lock) => {
            let before = lock.expires_at();
            let leased = changes.iter().any(Change::begins_lease);
            let events = apply_to(lock, changes, now);
            let after = lock.time_to_expire();
            key.changed(before, after, leased);
            events
        }
        None => {
            let mut lock = lock_allocation::spare();
            let events = apply_to(&mut lock, changes, now);
            key.create(lock);
            events
        }
    };
    drop(key);
    context.signal_modified(name);
    if origin == Origin::Live {
        events.into_iter().for_each(|event| context.notify(event, name));
    }
    Ok(())
}

fn apply_to(lock: &mut Lock, changes: Vec<Change>, now: Now) -> Vec<Event> {
    state::with(|state| changes.iter().for_each(|change| state.store.observe_change(change)));
    let events = changes.iter().map(|change| event_of(lock, change)).collect();
    changes.into_iter().for_each(|change| lock.apply(change, now));
    events
}
