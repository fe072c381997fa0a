//! The present holders of a lock, for the commands that only read.

use crate::errors::Error;
use crate::server::{Context, KeyName, OpenKey, WrongType};
use crate::{state, transaction};
use lockward_core::{Holder, Instant, Load, Lock, NameRef};

/// Who holds a lock now.
pub struct Holding {
    /// The first holders, up to the requested number.
    pub first: Vec<Holder>,
    /// How many holders there are.
    pub count: usize,
    /// The sum of the weights of all holders, and their smallest limit.
    pub load: Load,
}

impl Holding {
    /// `None` when nobody holds the lock. A holder whose lease is over does not count, although it may still be stored.
    fn of(lock: &Lock, most: usize, now: Instant) -> Option<Self> {
        let (count, load) = (lock.count_present(now), lock.load_present(now));
        (count > 0).then(|| Self { first: lock.present(now, most), count, load })
    }
}

/// Who holds the lock in `key` now, with the first `most` holders.
pub fn holding(
    context: Context,
    key: &KeyName<'_>,
    most: usize,
    now: Instant,
) -> Result<Option<Holding>, Error> {
    let mut open = OpenKey::for_read(context, key);
    match open.content() {
        Err(WrongType) => {
            transaction::break_dropped(key, now);
            Err(Error::WrongType)
        }
        Ok(Some(lock)) => {
            let holding = Holding::of(lock, most, now);
            let any_over = holding.as_ref().is_none_or(|holding| holding.count < lock.holders().len());
            drop(open);
            if any_over {
                transaction::clear_away(context, key);
            }
            Ok(holding)
        }
        Ok(None) => Ok(state::with(|state| {
            let dropped = state.store.dropped_locks.get(key.db(), key.key());
            dropped.and_then(|lock| Holding::of(lock, most, now))
        })),
    }
}
