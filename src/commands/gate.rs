//! LOCK._GATE key
//!
//! Internal: a write that does nothing. The module calls it to learn whether the server would let a client write to
//! the key now, see [`crate::server::Context::write_gate`].

use crate::arguments::Arguments;
use crate::callbacks::command::{Argument, Command, KeyUse};
use crate::errors::Error;
use crate::server::Context;
use std::ffi::{CStr, c_int};

pub struct WriteGate;

impl Command for WriteGate {
    const NAME: &'static CStr = c"lock._gate";
    const FLAGS: &'static CStr = c"write fast no-monitor no-slowlog";
    const ARITY: c_int = 2;
    const KEY: Option<KeyUse> = Some(KeyUse::WriteUnseen);
    const ARGUMENTS: &'static [Argument] = &[Argument::KEY];
    const CATEGORIES: &'static [&'static str] = &["write", "dangerous"];
    const SUMMARY: &'static CStr = c"Internal: a write that does nothing.";
    const COMPLEXITY: &'static CStr = c"O(1)";

    fn run(context: Context, _arguments: Arguments<'_>) -> Result<(), Error> {
        context.reply_simple(c"OK");
        Ok(())
    }
}
