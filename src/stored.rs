//! Locks as they come out of an RDB file or a RESTORE.

use crate::server::{Level, clock, global_flags, log};
use crate::state::{self, Loading};
use lockward_core::Lock;
use lockward_core::encoding::{self, Origin};
use std::fmt::Display;

/// Reads a stored lock; `None` when it is refused. Its tokens are noted, so that every new one is larger.
///
/// A token that lies a day ahead is refused from a RESTORE, which a client sends, but not from our own file or primary:
/// there the clock is what is wrong, and a server that does not start would be worse.
pub fn load(payload: &[u8]) -> Option<Lock> {
    let now = clock::read();
    let (heard, trusted) = match state::with(|state| state.loading) {
        Loading::Primary => (Origin::Live, true),
        Loading::File => (Origin::Loaded, true),
        Loading::No => {
            let flags = global_flags();
            // A RESTORE that the primary passes on, as where a slot moves. By a clock that is ahead its lease would be over
            // here before it is there. The time between DUMP and RESTORE is given again, which hurts nobody.
            let heard = if flags.replica() { Origin::Live } else { Origin::Loaded };
            (heard, flags.loading_somehow() || flags.replica())
        }
    };
    if let Some(version) = payload.first().filter(|version| **version > encoding::VERSION) {
        is_of_another_version(version);
    }
    let lock = encoding::decode_lock(payload, heard, now).ok()?;
    state::with(|state| {
        let tokens = lock.holders().map(|holder| holder.token);
        if !trusted && tokens.clone().any(|token| state.tokens.is_far_ahead(token, now.wall)) {
            return None;
        }
        tokens.for_each(|token| state.tokens.observe(token));
        Some(lock)
    })
}

/// Tells the operator: what the server says of such a lock is that the file is damaged.
pub fn is_of_another_version(version: impl Display) {
    let known = encoding::VERSION;
    let text =
        format!("a lock of encoding {version}, by another version of Lockward: this one reads {known}");
    log(Level::Warning, &text);
}
