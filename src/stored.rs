//! Locks that are read from an RDB file or a RESTORE.

use crate::server::{clock, global_flags, warn};
use crate::state;
use lockward_core::encoding::{self, Origin};
use lockward_core::{Loading, Lock};
use std::fmt::Display;

/// Reads a stored lock; `None` when the lock is refused. The tokens of the lock raise the floor of new tokens, so that
/// every new token is larger.
///
/// In a RESTORE that a client sends, the module refuses a token that lies more than a day ahead of this server's clock.
/// From the server's own file or primary, the module accepts such a token. The token shows that a clock was wrong, but
/// a server that does not start would be worse.
pub fn load(payload: &[u8]) -> Option<Lock> {
    let now = clock::read();
    let (origin, trusted) = match state::with(|state| state.store.loading()) {
        Loading::Primary => (Origin::Live, true),
        Loading::File => (Origin::Loaded, true),
        Loading::No => {
            let flags = global_flags();
            // A replica receives RESTORE from its primary, for example when a slot moves. With `Loaded`, if the
            // replica's clock is ahead, the lease would end on the replica before it ends on the primary. With `Live`,
            // the time between DUMP and RESTORE is added to the lease, which is safe.
            let origin = if flags.replica() { Origin::Live } else { Origin::Loaded };
            (origin, flags.loading_or_async_loading() || flags.replica())
        }
    };
    if let Some(version) = payload.first().filter(|version| **version > encoding::VERSION) {
        warn_of_version(version);
    }
    let lock = encoding::decode_lock(payload, origin, now).ok()?;
    state::with(|state| {
        if !trusted && state.store.is_far_ahead(&lock, now.wall) {
            return None;
        }
        state.store.observe(&lock);
        Some(lock)
    })
}

/// Warns of a lock that another version of the module has written. The server itself only reports a damaged file.
pub fn warn_of_version(version: impl Display) {
    let known = encoding::VERSION;
    let text =
        format!("a lock of encoding {version}, by another version of Lockward: this one reads {known}");
    warn(&text);
}
