//! The present holders of a lock, for the commands that only read.

use crate::errors::Error;
use crate::server::{Context, KeyName, OpenKey, WrongType};
use crate::{state, transaction};
use lockward_core::{Instant, Lock, NameRef, Present};

/// Who holds the lock in `key` now, with the first `most` holders; `None` when nobody holds the lock. A holder whose
/// lease is over does not count, although it may still be stored.
pub fn holding(
    context: Context,
    key: &KeyName<'_>,
    most: usize,
    now: Instant,
) -> Result<Option<Present>, Error> {
    let present = |lock: &Lock| Some(lock.present(now, most)).filter(|present| present.count > 0);
    let mut open = OpenKey::for_read(context, key);
    match open.content() {
        Err(WrongType) => {
            transaction::break_dropped(key, now);
            Err(Error::WrongType)
        }
        Ok(Some(lock)) => {
            let holding = present(lock);
            let any_over = holding.as_ref().is_none_or(|holding| holding.count < lock.holders().len());
            drop(open);
            if any_over {
                transaction::clear_away(context, key);
            }
            Ok(holding)
        }
        Ok(None) => Ok(state::with(|state| {
            let dropped = state.store.dropped_locks.get(key.db(), key.key());
            dropped.and_then(present)
        })),
    }
}
