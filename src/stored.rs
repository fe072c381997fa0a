//! Locks as they come out of an RDB file or a RESTORE.

use crate::server::{global_flags, now};
use crate::state::{self, Loading};
use lockward_core::Lock;
use lockward_core::encoding::{self, Heard};

/// Reads a stored lock; `None` when it is refused. Its tokens are noted, so that every new one is larger.
///
/// A token that lies a day ahead is refused from a RESTORE, which a client sends, but not from our own file or primary:
/// there the clock is what is wrong, and a server that does not start would be worse.
pub fn load(payload: &[u8]) -> Option<Lock> {
    let now = now();
    let flags = global_flags();
    let heard = match state::with(|state| state.loading) {
        Loading::Primary => Heard::Live,
        Loading::File | Loading::No => Heard::Loaded,
    };
    let lock = encoding::decode_lock(payload, heard, now).ok()?;
    let trusted = flags.loading_somehow() || flags.replica();
    state::with(|state| {
        let tokens = || lock.holders().iter().map(|holder| holder.token);
        if !trusted && tokens().any(|token| state.tokens.is_far_ahead(token, now.wall)) {
            return None;
        }
        tokens().for_each(|token| state.tokens.observe(token));
        Some(lock)
    })
}
