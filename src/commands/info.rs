//! LOCK.INFO key [HOLDERS n] [WAITERS n]

use super::command::Command;
use super::holding::holding;
use crate::arguments::{Arguments, read_key};
use crate::errors::Error;
use crate::server::{Argument, BlockedClient, CommandInfo, Context, KeyName, KeyUse, OWN_CATEGORY};
use crate::{command_time, state};
use lockward_core::arguments::{ParseError, option, set_once};
use lockward_core::{Holder, Instant, Mode, NameRef, Waiter};

pub struct Info;

impl Command for Info {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock.info",
        flags: c"readonly",
        arity: -2,
        key: Some(KeyUse::Read),
        arguments: &[Argument::KEY, Argument::number(c"n", c"HOLDERS"), Argument::number(c"n", c"WAITERS")],
        categories: &["read", "slow", OWN_CATEGORY],
        tips: c"nondeterministic_output",
        summary: c"Tells who holds a lock and who waits for it.",
        complexity: c"O(N) in the holders and the waiters that are shown",
    };

    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error> {
        let (key, shown) = parse(context, arguments)?;
        let now = command_time::of(context).mono;
        let Some(holding) = holding(context, &key, shown.holders, now)? else {
            context.reply_null_array();
            return Ok(());
        };
        let (waiting, queue) = state::with(|state| {
            let Some(id) = state.store.queues.queue(key.db(), key.key()) else { return (0, Vec::new()) };
            let queue = state.store.queues.waiters_in(id).take(shown.waiters.unwrap_or(0)).cloned().collect();
            (state.store.queues.len(id), queue)
        });
        context.reply_map(if shown.waiters.is_some() { 6 } else { 5 });
        context.reply_field(b"slots", u64::from(holding.load.slots.number()));
        context.reply_field(b"weight", holding.load.weight);
        context.reply_field(b"holding", u64::try_from(holding.count).unwrap_or(u64::MAX));
        context.reply_bytes(b"holders");
        context.reply_array(holding.first.len());
        holding.first.iter().for_each(|holder| reply_holder(context, holder, now));
        context.reply_field(b"waiters", u64::try_from(waiting).unwrap_or(u64::MAX));
        if shown.waiters.is_some() {
            context.reply_bytes(b"queue");
            context.reply_array(queue.len());
            queue.iter().for_each(|waiter| reply_waiter(context, waiter, now));
        }
        Ok(())
    }
}

/// How many holders and waiters are shown.
struct Shown {
    holders: usize,
    waiters: Option<usize>,
}

fn parse<'a>(context: Context, mut arguments: Arguments<'a>) -> Result<(KeyName<'a>, Shown), Error> {
    const HOLDERS: usize = 100;
    let key = read_key(context, &mut arguments)?;
    let (mut holders, mut waiters) = (None, None);
    while let Some(name) = arguments.option() {
        match name {
            option::HOLDERS => set_once(&mut holders, arguments.count(0)?)?,
            option::WAITERS => set_once(&mut waiters, arguments.count(0)?)?,
            _ => return Err(ParseError::Syntax.into()),
        }
    }
    Ok((key, Shown { holders: holders.unwrap_or(HOLDERS), waiters }))
}

fn reply_holder(context: Context, holder: &Holder, now: Instant) {
    context.reply_map(7);
    context.reply_bytes(b"owner");
    context.reply_bytes(&holder.owner.to_bytes());
    context.reply_field(b"holds", u64::from(holder.holds));
    context.reply_field(b"token", holder.token.get());
    reply_mode(context, holder.mode);
    context.reply_field(b"lease-left", holder.lease_left(now).as_millis());
    context.reply_field(b"held-for", now.since(holder.since).as_millis());
}

fn reply_waiter(context: Context, waiter: &Waiter<BlockedClient>, now: Instant) {
    let wait_request = &waiter.wait_request;
    context.reply_map(6);
    context.reply_bytes(b"owner");
    context.reply_bytes(&wait_request.request.owner.to_bytes());
    reply_mode(context, wait_request.request.mode());
    context.reply_field(b"client-id", wait_request.handle.id);
    context.reply_field(b"waited", now.since(waiter.since).as_millis());
    context.reply_bytes(b"wait-left");
    match wait_request.wait_limit {
        Some(limit) => context.reply_integer(now.until(limit).as_millis()),
        None => context.reply_signed(-1),
    }
}

fn reply_mode(context: Context, mode: Mode) {
    context.reply_field(b"slots", u64::from(mode.slots.number()));
    context.reply_field(b"weight", u64::from(mode.weight.number()));
}
