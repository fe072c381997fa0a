//! LOCK.RELEASE key owner [HOLDS n | ALL] [TOKEN token]

use super::command::{Command, CommandSource, command_source};
use crate::arguments::Arguments;
use crate::errors::Error;
use crate::server::{Argument, CommandInfo, Context, KeyName, KeyUse, OWN_CATEGORY};
use crate::{state, transaction};
use lockward_core::arguments::{ParseError, option, set_once};
use lockward_core::{HoldsLeft, ReleaseRequest};

pub struct Release;

impl Command for Release {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock.release",
        flags: c"write fast",
        arity: -3,
        key: Some(KeyUse::Write),
        arguments: &[
            Argument::KEY,
            Argument::text(c"owner"),
            Argument::one_of(c"left", &[Argument::number(c"n", c"HOLDS"), Argument::flag(c"all", c"ALL")]),
            Argument::number(c"token", c"TOKEN"),
        ],
        categories: &["write", "fast", OWN_CATEGORY],
        tips: c"",
        summary:
            c"Gives back one hold of a lock, or all. After the last, the first waiters that fit are granted the lock.",
        complexity: c"O(log(N)) in the holders and the waiters of the lock; O(1) for an exclusive lock that nobody waits for",
    };

    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error> {
        let (key, request) = parse(arguments)?;
        let mut claimed = None;
        let released = match command_source(context)? {
            CommandSource::Client => transaction::run(context, &key, |decision| {
                let left = decision.release(&request)?;
                if left > 0
                    && request.left == HoldsLeft::Exactly(left)
                    && let Some(holder) = decision.lock.holder(&request.owner)
                {
                    claimed = Some(holder.token);
                }
                Ok(left)
            })?,
            // The primary decides whether a lease is over and serves the waiters. The primary replicates
            // these changes separately.
            CommandSource::Primary | CommandSource::File => {
                transaction::run(context, &key, |decision| decision.apply_release(&request))?
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
