//! LOCK._PANIC callback
//!
//! For the test suite alone: makes the next callback of the named kind panic.

use crate::arguments::Arguments;
use crate::callbacks::command::{Argument, Command, KeyUse};
use crate::callbacks::probe;
use crate::errors::Error;
use crate::server::Context;
use lockward_core::arguments::ParseError;
use std::ffi::{CStr, c_int};

pub struct Panic;

impl Command for Panic {
    const NAME: &'static CStr = c"lock._panic";
    const FLAGS: &'static CStr = c"admin";
    const ARITY: c_int = 2;
    const KEY: Option<KeyUse> = None;
    const ARGUMENTS: &'static [Argument] = &[Argument::text(c"callback")];
    const CATEGORIES: &'static [&'static str] = &["admin", "dangerous"];
    const SUMMARY: &'static CStr = c"For the test suite alone: makes the next callback of a kind panic.";
    const COMPLEXITY: &'static CStr = c"O(1)";

    fn run(context: Context, mut arguments: Arguments<'_>) -> Result<(), Error> {
        let edge = arguments.required()?;
        if !probe::arm(edge) {
            return Err(ParseError::Syntax.into());
        }
        context.reply_simple(c"OK");
        Ok(())
    }
}
