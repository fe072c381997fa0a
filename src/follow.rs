//! How a replica, or a server that loads its AOF, carries out what a primary has decided.

use crate::errors::Error;
use crate::server::{Content, Context, KeyName, OpenKey, now};
use crate::state::{self, Acting};
use lockward_core::encoding::{self, Heard};
use lockward_core::{Change, Lock, Now, event_of};

/// Applies the changes in `payload` to the lock in `name`, all or none, and passes them on to our own replicas and AOF.
///
/// # Errors
/// [`Error::Payload`] or [`Error::WrongType`]; then nothing has changed.
pub fn apply(context: Context, name: &KeyName<'_>, payload: &[u8], heard: Heard) -> Result<(), Error> {
    let now = now();
    let changes = encoding::decode(payload, heard, now).map_err(|_| Error::Payload)?;
    let mut key = OpenKey::for_write(context, name);
    let mut events = Vec::new();
    let _acting = Acting::begin();
    match key.content() {
        Content::Foreign => return Err(Error::WrongType),
        Content::Lock(lock) => {
            let before = lock.expires_at();
            events = apply_to(lock, changes, now);
            let (free, expires_at) = (lock.is_free(), lock.expires_at());
            if free {
                key.delete();
            } else if expires_at != before {
                // As the primary did: a TTL set by hand stands until the next lease.
                key.expire_at(expires_at);
            }
        }
        Content::Missing => {
            let mut lock = Lock::new();
            events.extend(apply_to(&mut lock, changes, now));
            if !lock.is_free() {
                let expires_at = lock.expires_at();
                key.create(lock);
                key.expire_at(expires_at);
            }
        }
    }
    drop(key);
    context.replicate_verbatim();
    context.signal_modified(name);
    if heard == Heard::Live {
        events.into_iter().for_each(|event| context.notify(event, name));
    }
    Ok(())
}

fn apply_to(lock: &mut Lock, changes: Vec<Change>, now: Now) -> Vec<lockward_core::Event> {
    let mut events = Vec::with_capacity(changes.len());
    for change in changes {
        if let Change::Put(holder) = &change {
            state::with(|state| state.tokens.observe(holder.token));
        }
        events.push(event_of(lock, &change));
        lock.apply(change, now);
    }
    events
}
