//! LOCK._PANIC callback
//!
//! Makes the next callback of a kind panic. The argument is the name that the callback passes to
//! [`catch_panic`](crate::panics::catch_panic), such as `RdbSave`. With `nested`, the command instead publishes an
//! event while the module's state is in use, so the server calls back into the module. Only the test suite uses this
//! command.

use super::command::Command;
use crate::arguments::Arguments;
use crate::errors::Error;
use crate::panics::probe;
use crate::server::{Argument, CommandInfo, Context, KeyName, subscriptions};
use crate::state;
use lockward_core::Event;

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
        if callback == b"nested" {
            subscriptions::subscribe_expired_evicted();
            let name = KeyName::copied(context.db(), callback);
            state::with(|_| context.notify(Event::LeaseOver, &name));
        } else {
            probe::arm(callback);
        }
        context.reply_simple(c"OK");
        Ok(())
    }
}
