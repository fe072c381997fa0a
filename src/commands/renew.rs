//! LOCK.RENEW key owner [PX ms | EX s] [TOKEN token] [HOLDS n] [SHARED | SLOTS n [WEIGHT w]]

use super::command::{Command, LEASE, MODE, only_clients};
use crate::arguments::{Arguments, read_key, read_lease};
use crate::errors::Error;
use crate::server::{Argument, CommandInfo, Context, KeyName, KeyUse, OWN_CATEGORY};
use crate::{settings, state, transaction};
use lockward_core::arguments::{ParseError, check_mode, option, set_once};
use lockward_core::{RenewRequest, Slots};

const NAME: &str = "lock.renew";

pub struct Renew;

impl Command for Renew {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock.renew",
        flags: c"write fast",
        arity: -3,
        key: Some(KeyUse::Write),
        arguments: &[
            Argument::KEY,
            Argument::text(c"owner"),
            LEASE,
            Argument::number(c"token", c"TOKEN"),
            Argument::number(c"n", c"HOLDS"),
            MODE,
        ],
        categories: &["write", "fast", OWN_CATEGORY],
        tips: c"",
        summary:
            c"Sets a new lease for a lock the owner holds, and lets others in. In quarantine, restores a tenure by its token.",
        complexity: c"O(log(N)) in the holders and the waiters of the lock; O(1) for an exclusive lock that nobody waits for",
    };

    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error> {
        let (key, request) = parse(context, arguments)?;
        only_clients(context)?;
        let (token, holds) = transaction::run(context, &key, |decision| {
            let renewed = decision.renew(&request);
            renewed
                .map(|token| (token, decision.lock.holder(&request.owner).map_or(0, |holder| holder.holds)))
        })??;
        if holds == 1 {
            state::with(|state| state.pending.claim(token));
        }
        context.reply_integer(token.get());
        Ok(())
    }
}

fn parse<'a>(context: Context, mut arguments: Arguments<'a>) -> Result<(KeyName<'a>, RenewRequest), Error> {
    let key = read_key(context, &mut arguments)?;
    let owner = arguments.owner()?;
    let (mut lease, mut token, mut holds, mut slots, mut weight) = (None, None, None, None, None);
    while let Some(name) = arguments.option() {
        match name {
            option::PX => set_once(&mut lease, read_lease(&mut arguments, 1, NAME)?)?,
            option::EX => set_once(&mut lease, read_lease(&mut arguments, 1_000, NAME)?)?,
            option::TOKEN => set_once(&mut token, arguments.token()?)?,
            option::HOLDS => set_once(&mut holds, arguments.holds(1)?)?,
            option::SLOTS => set_once(&mut slots, arguments.slots()?)?,
            option::SHARED => set_once(&mut slots, Slots::SHARED)?,
            option::WEIGHT => set_once(&mut weight, arguments.weight()?)?,
            _ => return Err(ParseError::Syntax.into()),
        }
    }
    check_mode(slots, weight)?;
    let lease = lease.unwrap_or_else(settings::default_lease);
    Ok((key, RenewRequest { owner, lease, token, holds, slots, weight }))
}
