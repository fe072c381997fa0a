//! The trait of all commands, and what several commands share: the documentation of options, and the check where a
//! command comes from.

use crate::arguments::Arguments;
use crate::errors::Error;
use crate::server::{Argument, CommandInfo, Context};
use crate::state;

/// One command: its description for the server, and what it does.
pub trait Command {
    const INFO: CommandInfo;

    /// Parses the whole request, carries it out and replies. A command that fails returns an error and sends no reply.
    ///
    /// # Errors
    /// The error that the client gets.
    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error>;
}

/// The documentation of the lease, for every command that takes a lease.
pub const LEASE: Argument = Argument::one_of(
    c"lease",
    &[Argument::number(c"milliseconds", c"PX"), Argument::number(c"seconds", c"EX")],
);

/// The documentation of the limit and the weight, for every command with these options.
pub const MODE: Argument = Argument::one_of(
    c"mode",
    &[
        Argument::flag(c"shared", c"SHARED"),
        Argument::together(c"limit", &[Argument::number(c"n", c"SLOTS"), Argument::number(c"w", c"WEIGHT")]),
    ],
);

/// Where a command that changes locks comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSource {
    /// A client of this primary.
    Client,
    /// The primary of this replica.
    Primary,
    /// The AOF, while the data is loaded.
    File,
}

/// Where the running command comes from.
///
/// # Errors
/// [`Error::Paused`] when a transaction tries to write after the transaction itself has paused all writes.
/// [`Error::ReadOnly`] when a client asks a replica to change a lock. The server allows writes on a replica that is not
/// read-only, but no replica grants or frees a lock by itself.
#[inline]
pub fn command_source(context: Context) -> Result<CommandSource, Error> {
    if Context::paused() {
        let flags = context.flags();
        if !flags.sent_by_primary() && !flags.loading() {
            return Err(Error::Paused);
        }
    }
    if !state::with(|state| state.store.follows()) {
        return Ok(CommandSource::Client);
    }
    let flags = context.flags();
    if flags.sent_by_primary() {
        Ok(CommandSource::Primary)
    } else if flags.loading() {
        Ok(CommandSource::File)
    } else if flags.replica() {
        Err(Error::ReadOnly)
    } else {
        Ok(CommandSource::Client)
    }
}

/// Fails if the running command does not come from a client of this primary. A command that calls this function is
/// never replicated itself. Only its effects are replicated.
#[inline]
pub fn only_clients(context: Context) -> Result<(), Error> {
    match command_source(context)? {
        CommandSource::Client => Ok(()),
        CommandSource::Primary | CommandSource::File => Err(Error::ReadOnly),
    }
}
