//! LOCK._GATE key
//!
//! Internal: a write that does nothing. The module calls this command to find out whether the server would
//! let a client write to the key now, see [`crate::server::Context::write_gate`].

use super::command::Command;
use crate::arguments::Arguments;
use crate::errors::Error;
use crate::server::{Argument, CommandInfo, Context, GATE, KeyUse};

pub struct Gate;

impl Command for Gate {
    const INFO: CommandInfo = CommandInfo {
        name: GATE,
        flags: c"write fast no-monitor no-slowlog",
        arity: 2,
        key: Some(KeyUse::WriteUnseen),
        arguments: &[Argument::KEY],
        categories: &["write", "dangerous"],
        tips: c"",
        summary: c"Internal: a write that does nothing.",
        complexity: c"O(1)",
    };

    fn run(context: Context, _arguments: Arguments<'_>) -> Result<(), Error> {
        context.reply_simple(c"OK");
        Ok(())
    }
}
