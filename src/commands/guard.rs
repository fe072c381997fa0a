//! LOCK.GUARD key token [command [arg ...]]

use super::command::{Command, only_clients};
use crate::arguments::{Arguments, read_key};
use crate::errors::Error;
use crate::server::{
    Argument, CommandInfo, Context, InnerCommand, KeyName, KeyUse, OWN_CATEGORY, OpenKey, WrongType,
};
use crate::{command_time, state, transaction};
use lockward_core::{Fencing, FencingToken, Instant, NameRef};

pub struct Guard;

impl Command for Guard {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock.guard",
        flags: c"write getkeys-api",
        arity: -3,
        key: Some(KeyUse::ReadBeforeCommand),
        arguments: &[
            Argument::KEY,
            Argument::required_number(c"token"),
            Argument::together(c"guarded", &[Argument::text(c"command"), Argument::more(c"arg")]),
        ],
        categories: &["write", "slow", OWN_CATEGORY],
        tips: c"",
        summary: c"Runs a command while a fencing token is that of a present holder.",
        complexity: c"O(log(N)) in the holders of the lock, and that of the command",
    };

    fn run(context: Context, mut arguments: Arguments<'_>) -> Result<(), Error> {
        let key = read_key(context, &mut arguments)?;
        let token = arguments.token()?;
        let command = InnerCommand::parse(arguments.rest()).map_err(Error::Inner)?;
        only_clients(context)?;
        check(context, &key, token)?;
        match command {
            Some(command) => command.run(context).map_err(Error::Inner)?,
            None => context.reply_simple(c"OK"),
        }
        Ok(())
    }
}

/// Whether the token is that of a present holder. Changes nothing: a holder whose lease is over stays until another
/// command ends its tenure.
fn check(context: Context, key: &KeyName<'_>, token: FencingToken) -> Result<(), Error> {
    let now = command_time::of(context).mono;
    match fencing(context, key, token, now)? {
        Fencing::Held => Ok(()),
        Fencing::Free => Err(Error::Fenced(None)),
        Fencing::HeldWith(latest) => Err(Error::Fenced(Some(latest))),
    }
}

fn fencing(context: Context, key: &KeyName<'_>, token: FencingToken, now: Instant) -> Result<Fencing, Error> {
    match OpenKey::for_read(context, key).content() {
        Ok(Some(lock)) => Ok(lock.fencing(token, now)),
        Ok(None) => Ok(state::with(|state| {
            let dropped = state.store.dropped_locks.get(key.db(), key.key());
            dropped.map_or(Fencing::Free, |lock| lock.fencing(token, now))
        })),
        Err(WrongType) => {
            transaction::break_dropped(key, now);
            Err(Error::WrongType)
        }
    }
}
