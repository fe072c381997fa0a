//! The instant that a command uses as the current time for leases.
//!
//! All commands of one transaction, script or function use the instant of the first command. So no lease ends while the
//! transaction, script or function runs. The server does the same for TTLs. Most servers can call the module at the end
//! of a transaction, script or function. On other servers, the module watches for the next command that is in no
//! transaction or script. The server does not report each command that begins: Redis from 7.2 on and Valkey leave out a
//! command that had to wait until a pause was over. So the background work and the cron forget the instant too.

use crate::server::{Context, global_flags, now, stop_watching_commands, watch_commands};
use crate::state;
use lockward_core::Now;

/// The time that the running command, or the background work, uses as the current time for leases.
#[inline]
pub fn of(context: Context) -> Now {
    let now = now();
    if context.is_of_command() && global_flags().in_transaction_or_script() {
        of_first(context, now)
    } else {
        now
    }
}

/// The time of the first command in the running transaction or script. If the running command is the first, the time is
/// `now`.
#[inline(never)]
fn of_first(context: Context, now: Now) -> Now {
    if let Some(first) = state::with(|state| state.transaction_time) {
        return first;
    }
    if !context.call_when_over() {
        watch_commands();
    }
    state::with(|state| state.transaction_time = Some(now));
    now
}

/// A command begins. If this command is in no transaction or script, the last transaction or script is over.
pub fn command_begins() {
    if state::with(|state| state.transaction_time.is_some()) && !global_flags().in_transaction_or_script() {
        forget();
    }
}

/// Stops watching for commands. Must not be called within a transaction or script.
pub fn stop_watching() {
    stop_watching_commands();
    forget();
}

/// Forgets the time, because the transaction, script or function is over.
pub fn forget() {
    state::with(|state| state.transaction_time = None);
}
