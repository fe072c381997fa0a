//! LOCK._APPLY key changes
//!
//! Internal: the server sends this command to replicas and the AOF when a lock changes, see docs/design.md.
//! Clients may not call this command.

use super::command::{Command, CommandSource, command_source};
use crate::arguments::{Arguments, read_key};
use crate::errors::Error;
use crate::replicated;
use crate::server::{Argument, CommandInfo, Context, KeyUse};
use lockward_core::encoding::Origin;

pub struct Apply;

impl Command for Apply {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock._apply",
        flags: c"write",
        arity: 3,
        key: Some(KeyUse::WriteUnseen),
        arguments: &[Argument::KEY, Argument::text(c"changes")],
        categories: &["write", "dangerous"],
        tips: c"",
        summary: c"Internal: carries changes of a lock to replicas and the AOF.",
        complexity: c"O(N) in the changes",
    };

    fn run(context: Context, mut arguments: Arguments<'_>) -> Result<(), Error> {
        let key = read_key(context, &mut arguments)?;
        let payload = arguments.required()?;
        let origin = match command_source(context) {
            Ok(CommandSource::Primary) => Origin::Live,
            Ok(CommandSource::File) => Origin::Loaded,
            // In Valkey 9, a node that moves a whole slot to this node sends the locks of the slot as a primary does.
            Ok(CommandSource::Client) if context.flags().sent_by_primary() => Origin::Live,
            Ok(CommandSource::Client) | Err(_) => return Err(Error::NotFromPrimary),
        };
        replicated::apply(context, &key, payload, origin)?;
        context.reply_simple(c"OK");
        Ok(())
    }
}
