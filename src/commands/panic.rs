//! LOCK._PANIC callback
//!
//! For the test suite alone: makes the next callback of the named kind panic.

use super::command::Command;
use crate::arguments::Arguments;
use crate::errors::Error;
use crate::panics::probe;
use crate::server::{Argument, CommandInfo, Context};
use lockward_core::arguments::ParseError;

pub struct Panic;

impl Command for Panic {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock._panic",
        flags: c"admin",
        arity: 2,
        key: None,
        arguments: &[Argument::text(c"callback")],
        categories: &["admin", "dangerous"],
        tips: c"",
        summary: c"For the test suite alone: makes the next callback of a kind panic.",
        complexity: c"O(1)",
    };

    fn run(context: Context, mut arguments: Arguments<'_>) -> Result<(), Error> {
        let callback = arguments.required()?;
        if !probe::arm(callback) {
            return Err(ParseError::Syntax.into());
        }
        context.reply_simple(c"OK");
        Ok(())
    }
}
