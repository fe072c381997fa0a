//! LOCK._PANIC callback
//!
//! Makes the next callback of the named kind panic. Only the test suite uses this command. With the name
//! `nested`, the command instead publishes an event while the module's state is in use, so the server calls
//! back into the module.

use super::command::Command;
use crate::arguments::Arguments;
use crate::errors::Error;
use crate::panics::probe;
use crate::server::{Argument, CommandInfo, Context, KeyName, subscriptions};
use crate::state;
use lockward_core::Event;
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
        if callback == probe::NESTED {
            subscriptions::subscribe_expired_evicted();
            let name = KeyName::copied(context.db(), callback);
            state::with(|_| context.notify(Event::LeaseOver, &name));
        } else if !probe::arm(callback) {
            return Err(ParseError::Syntax.into());
        }
        context.reply_simple(c"OK");
        Ok(())
    }
}
