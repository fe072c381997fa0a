//! LOCK.ACQUIRE key owner [PX ms | EX s] [BLOCK ms [KEEP ms]] [HOLDS n] [SHARED | SLOTS n [WEIGHT w]]

use super::command::{Command, LEASE, MODE, only_clients};
use crate::arguments::{Arguments, read_key, read_lease};
use crate::errors::Error;
use crate::server::{Argument, CommandInfo, Context, KeyName, KeyUse, OWN_CATEGORY};
use crate::statistics::count;
use crate::waiters::{self, Wait};
use crate::{settings, state, transaction};
use lockward_core::arguments::{ParseError, check_mode, option, set_once};
use lockward_core::{AcquireRequest, Acquired, Owner, Slots};
use uuid::Uuid;

const NAME: &str = "lock.acquire";

pub struct Acquire;

impl Command for Acquire {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock.acquire",
        flags: c"write deny-oom blocking",
        arity: -3,
        key: Some(KeyUse::Write),
        arguments: &[
            Argument::KEY,
            Argument::text(c"owner"),
            LEASE,
            Argument::together(
                c"wait",
                &[Argument::number(c"milliseconds", c"BLOCK"), Argument::number(c"milliseconds", c"KEEP")],
            ),
            Argument::number(c"n", c"HOLDS"),
            MODE,
        ],
        categories: &["write", "slow", "blocking", OWN_CATEGORY],
        tips: c"nondeterministic_output",
        summary: c"Acquires a lock, or adds a hold. With BLOCK the client waits.",
        complexity: c"O(log(N)) in the holders and the waiters of the lock; O(1) for an exclusive lock that nobody waits for",
    };

    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error> {
        let parsed = Parsed::parse(context, arguments)?;
        only_clients(context)?;
        let mut due = None;
        let acquired = transaction::run(context, &parsed.key, |decision| {
            let acquired = decision.acquire(&parsed.wait.request);
            if acquired == Ok(Acquired::Busy) {
                // After a change, the server notifies other modules. These modules may free the lock before this client
                // is in the wait queue, so Lockward must decide on the lock again at once.
                due = if decision.effects.changed() { Some(decision.now.mono) } else { decision.due() };
            }
            acquired
        })?;
        match acquired? {
            Acquired::Granted(grant) => {
                if grant.holds > 1 || !grant.counted {
                    state::with(|state| state.pending.claim(grant.token));
                }
                let minted = parsed.wait.minted.then_some(&parsed.wait.request.owner);
                waiters::reply_grant(context, grant, minted);
            }
            Acquired::Busy if parsed.blocks && !context.flags().must_not_block() => {
                waiters::park(context, &parsed.key, parsed.wait, due)?;
            }
            Acquired::Busy => {
                state::with(|state| count(&mut state.statistics.busy));
                context.reply_null_array();
            }
        }
        Ok(())
    }
}

struct Parsed<'a> {
    key: KeyName<'a>,
    wait: Wait,
    /// Whether the client waits.
    blocks: bool,
}

impl<'a> Parsed<'a> {
    fn parse(context: Context, mut arguments: Arguments<'a>) -> Result<Self, Error> {
        let key = read_key(context, &mut arguments)?;
        let owner = arguments.required()?;
        let minted = owner == b"*";
        let owner = if minted { mint() } else { Owner::new(owner) }.ok_or(ParseError::Owner)?;
        let (mut lease, mut block, mut keep, mut holds) = (None, None, None, None);
        let (mut slots, mut weight) = (None, None);
        while let Some(name) = arguments.option() {
            match name {
                option::PX => set_once(&mut lease, read_lease(&mut arguments, 1, NAME)?)?,
                option::EX => set_once(&mut lease, read_lease(&mut arguments, 1_000, NAME)?)?,
                option::BLOCK => set_once(&mut block, arguments.wait_limit()?)?,
                option::KEEP => set_once(&mut keep, arguments.keep()?)?,
                option::HOLDS => set_once(&mut holds, arguments.holds(1)?)?,
                option::WEIGHT => set_once(&mut weight, arguments.weight()?)?,
                option::SLOTS => set_once(&mut slots, arguments.slots()?)?,
                option::SHARED => set_once(&mut slots, Slots::SHARED)?,
                _ => return Err(ParseError::Syntax.into()),
            }
        }
        check_mode(slots, weight)?;
        if keep.is_some() && (block.is_none() || holds.is_none() || minted) {
            return Err(Error::KeepNeeds);
        }
        let slots = slots.unwrap_or(Slots::EXCLUSIVE);
        let lease = lease.unwrap_or_else(settings::default_lease);
        let request = AcquireRequest { owner, lease, holds, slots, weight };
        let wait = Wait { request, wait_limit: block.flatten(), keep, minted };
        Ok(Self { key, wait, blocks: block.is_some() })
    }
}

fn mint() -> Option<Owner> {
    Owner::new(Uuid::new_v4().hyphenated().encode_lower(&mut Uuid::encode_buffer()).as_bytes())
}
