//! LOCK.RENEW key owner [PX ms | EX s] [TOKEN token] [HOLDS n]

use super::{LEASE, only_clients};
use crate::arguments::Arguments;
use crate::callbacks::command::{Argument, Command, KeyUse, OWN_CATEGORY};
use crate::errors::Error;
use crate::server::{Context, KeyName};
use crate::{settings, state, transaction};
use lockward_core::RenewRequest;
use lockward_core::arguments::{ParseError, option, set_once};
use std::ffi::{CStr, c_int};

const NAME: &str = "lock.renew";

pub struct Renew;

impl Command for Renew {
    const NAME: &'static CStr = c"lock.renew";
    const FLAGS: &'static CStr = c"write fast";
    const ARITY: c_int = -3;
    const KEY: Option<KeyUse> = Some(KeyUse::Write);
    const ARGUMENTS: &'static [Argument] = &[
        Argument::KEY,
        Argument::text(c"owner"),
        LEASE,
        Argument::number(c"token", c"TOKEN"),
        Argument::number(c"n", c"HOLDS"),
    ];
    const CATEGORIES: &'static [&'static str] = &["write", "fast", OWN_CATEGORY];
    const SUMMARY: &'static CStr =
        c"Sets a new lease for a lock the owner holds. During quarantine, restores a tenure by its token.";
    const COMPLEXITY: &'static CStr = c"O(1)";

    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error> {
        let (key, request) = parse(arguments)?;
        only_clients(context)?;
        let (token, holds) = transaction::run(context, &key, |step| {
            let renewed = step.renew(&request);
            renewed.map(|token| (token, step.lock.holder(&request.owner).map_or(0, |holder| holder.holds)))
        })??;
        if holds == 1 {
            state::with(|state| state.pending.claim(token));
        }
        context.reply_integer(token.get());
        Ok(())
    }
}

fn parse<'a>(mut arguments: Arguments<'a>) -> Result<(KeyName<'a>, RenewRequest), Error> {
    let key = arguments.key()?;
    let owner = arguments.owner()?;
    let (mut lease, mut token, mut holds) = (None, None, None);
    while let Some(name) = arguments.option() {
        match name {
            option::PX => set_once(&mut lease, arguments.lease(1, NAME)?)?,
            option::EX => set_once(&mut lease, arguments.lease(1_000, NAME)?)?,
            option::TOKEN => set_once(&mut token, arguments.token()?)?,
            option::HOLDS => set_once(&mut holds, arguments.holds(1)?)?,
            _ => return Err(ParseError::Syntax.into()),
        }
    }
    let lease = lease.unwrap_or_else(settings::default_lease);
    Ok((key, RenewRequest { owner, lease, token, holds }))
}
