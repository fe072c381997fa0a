//! The commands, one file each: what the server is told of it, parse, do, reply.

mod acquire;
mod apply;
mod gate;
mod info;
#[cfg(feature = "panic-probe")]
mod panic;
mod release;
mod renew;
mod top;

use crate::callbacks::command::{Argument, Command, add_category, register};
use crate::errors::Error;
use crate::server::Context;
use crate::state;
use std::ffi::CStr;

/// The command that asks whether a write is allowed.
pub const GATE: &CStr = gate::WriteGate::NAME;

/// Registers all commands. False when the server refuses one.
pub fn register_all(context: Context) -> bool {
    let own_category = add_category(context);
    let registered = register::<acquire::Acquire>(context, own_category)
        && register::<release::Release>(context, own_category)
        && register::<renew::Renew>(context, own_category)
        && register::<info::Info>(context, own_category)
        && register::<top::Top>(context, own_category)
        && register::<apply::Apply>(context, own_category)
        && register::<gate::WriteGate>(context, own_category);
    #[cfg(feature = "panic-probe")]
    let registered = registered && register::<panic::Panic>(context, own_category);
    registered
}

/// The lease, as every command that takes one documents it.
const LEASE: Argument = Argument::one_of(
    c"lease",
    &[Argument::number(c"milliseconds", c"PX"), Argument::number(c"seconds", c"EX")],
);

/// On whose word a command that changes locks is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandSource {
    /// A client's, to this primary.
    BlockedClient,
    /// The primary's of this replica.
    Primary,
    /// The AOF's, while the data is loaded.
    File,
}

/// On whose word the running command is given.
///
/// # Errors
/// [`Error::Paused`] when a transaction that has paused all writes goes on with one.
/// [`Error::ReadOnly`] when a client asks a replica to change a lock: the server lets that pass where replicas are not
/// read-only, but no replica grants or frees a lock by itself.
#[inline]
fn word(context: Context) -> Result<CommandSource, Error> {
    if Context::paused() {
        let flags = context.flags();
        if !flags.sent_by_primary() && !flags.loading() {
            return Err(Error::Paused);
        }
    }
    if !state::with(|state| state.follows()) {
        return Ok(CommandSource::BlockedClient);
    }
    let flags = context.flags();
    if flags.sent_by_primary() {
        Ok(CommandSource::Primary)
    } else if flags.loading() {
        Ok(CommandSource::File)
    } else if flags.replica() {
        Err(Error::ReadOnly)
    } else {
        Ok(CommandSource::BlockedClient)
    }
}

/// As [`word`], for what neither a primary nor a file ever sends.
#[inline]
fn only_clients(context: Context) -> Result<(), Error> {
    match word(context)? {
        CommandSource::BlockedClient => Ok(()),
        CommandSource::Primary | CommandSource::File => Err(Error::ReadOnly),
    }
}
