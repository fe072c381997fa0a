//! LOCK.RELEASE key owner [HOLDS n | ALL] [TOKEN token]

use super::{CommandSource, word};
use crate::arguments::Arguments;
use crate::callbacks::command::{Argument, Command, KeyUse, OWN_CATEGORY};
use crate::errors::Error;
use crate::server::{Context, KeyName};
use crate::{state, transaction};
use lockward_core::arguments::{ParseError, option, set_once};
use lockward_core::{HoldsLeft, ReleaseRequest};
use std::ffi::{CStr, c_int};

pub struct Release;

impl Command for Release {
    const NAME: &'static CStr = c"lock.release";
    const FLAGS: &'static CStr = c"write fast";
    const ARITY: c_int = -3;
    const KEY: Option<KeyUse> = Some(KeyUse::Write);
    const ARGUMENTS: &'static [Argument] = &[
        Argument::KEY,
        Argument::text(c"owner"),
        Argument::one_of(c"left", &[Argument::number(c"n", c"HOLDS"), Argument::word(c"all", c"ALL")]),
        Argument::number(c"token", c"TOKEN"),
    ];
    const CATEGORIES: &'static [&'static str] = &["write", "fast", OWN_CATEGORY];
    const SUMMARY: &'static CStr =
        c"Gives back one hold of a lock, or all. With the last, the first waiter is granted the lock.";
    const COMPLEXITY: &'static CStr =
        c"O(1) when nobody waits; O(log(N)) to hand over to the first of N waiters";

    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error> {
        let (key, request) = parse(arguments)?;
        let mut claimed = None;
        let released = match word(context)? {
            CommandSource::BlockedClient => transaction::run(context, &key, |step| {
                let left = step.release(&request)?;
                if left > 0
                    && request.left == HoldsLeft::Exactly(left)
                    && let Some(holder) = step.lock.holder(&request.owner)
                {
                    claimed = Some(holder.token);
                }
                Ok(left)
            })?,
            // The primary has judged the lease, and told apart what else it did.
            CommandSource::Primary | CommandSource::File => {
                transaction::run(context, &key, |step| step.apply_release(&request))?
            }
        };
        let left = released?;
        if let Some(token) = claimed {
            state::with(|state| state.pending.claim(token));
        }
        context.reply_integer(u64::from(left));
        Ok(())
    }
}

fn parse<'a>(mut arguments: Arguments<'a>) -> Result<(KeyName<'a>, ReleaseRequest), Error> {
    let key = arguments.key()?;
    let owner = arguments.owner()?;
    let (mut left, mut token) = (None, None);
    while let Some(name) = arguments.option() {
        match name {
            option::HOLDS => set_once(&mut left, HoldsLeft::Exactly(arguments.holds(0)?))?,
            option::ALL => set_once(&mut left, HoldsLeft::None)?,
            option::TOKEN => set_once(&mut token, arguments.token()?)?,
            _ => return Err(ParseError::Syntax.into()),
        }
    }
    Ok((key, ReleaseRequest { owner, left: left.unwrap_or(HoldsLeft::OneLess), token }))
}
