//! LOCK._APPLY key changes
//!
//! Internal: what replicas and the AOF are sent when a lock changes, see docs/design.md. Refused from clients.

use super::{CommandSource, word};
use crate::arguments::Arguments;
use crate::callbacks::command::{Argument, Command, KeyUse};
use crate::errors::Error;
use crate::replicated;
use crate::server::Context;
use lockward_core::encoding::Origin;
use std::ffi::{CStr, c_int};

pub struct Apply;

impl Command for Apply {
    const NAME: &'static CStr = c"lock._apply";
    const FLAGS: &'static CStr = c"write";
    const ARITY: c_int = 3;
    const KEY: Option<KeyUse> = Some(KeyUse::WriteUnseen);
    const ARGUMENTS: &'static [Argument] = &[Argument::KEY, Argument::text(c"changes")];
    const CATEGORIES: &'static [&'static str] = &["write", "dangerous"];
    const SUMMARY: &'static CStr = c"Internal: carries changes of a lock to replicas and the AOF.";
    const COMPLEXITY: &'static CStr = c"O(N) in the changes";

    fn run(context: Context, mut arguments: Arguments<'_>) -> Result<(), Error> {
        let key = arguments.key()?;
        let payload = arguments.required()?;
        let heard = match word(context) {
            Ok(CommandSource::Primary) => Origin::Live,
            Ok(CommandSource::File) => Origin::Loaded,
            // A node that moves a whole slot here sends its locks as a primary does (Valkey 9).
            Ok(CommandSource::BlockedClient) if context.flags().sent_by_primary() => Origin::Live,
            Ok(CommandSource::BlockedClient) | Err(_) => return Err(Error::NotFromPrimary),
        };
        replicated::apply(context, &key, payload, heard)?;
        context.reply_simple(c"OK");
        Ok(())
    }
}
