//! LOCK.RELEASE key owner [HOLDS n | ALL] [TOKEN token]

use super::command::{Command, CommandSource, command_source};
use crate::arguments::{Arguments, read_key};
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
        let (key, request) = parse(context, arguments)?;
        let left = match command_source(context)? {
            CommandSource::Client => release(context, &key, &request)?,
            CommandSource::Primary | CommandSource::File => apply(context, &key, &request)?,
        };
        context.reply_integer(u64::from(left));
        Ok(())
    }
}

fn release(context: Context, key: &KeyName<'_>, request: &ReleaseRequest) -> Result<u32, Error> {
    let mut claimed = None;
    let released = transaction::run(context, key, |decision| {
        let released = decision.release(request);
        if let Ok(left @ 1..) = released
            && request.left == HoldsLeft::Exactly(left)
            && let Some(holder) = decision.lock.holder(&request.owner)
        {
            claimed = Some(holder.token);
        }
        released
    })?;
    if let Some(token) = claimed {
        state::with(|state| state.pending.claim(token));
    }
    Ok(released?)
}

/// Carries out a release from the primary or from a file. The primary decides whether a lease is over and serves the
/// waiters. The primary replicates these changes separately.
#[inline(never)]
fn apply(context: Context, key: &KeyName<'_>, request: &ReleaseRequest) -> Result<u32, Error> {
    Ok(transaction::run(context, key, |decision| decision.apply_release(request))??)
}

fn parse<'a>(context: Context, mut arguments: Arguments<'a>) -> Result<(KeyName<'a>, ReleaseRequest), Error> {
    let key = read_key(context, &mut arguments)?;
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
