//! LOCK.INFO key [WAITERS n]

use super::command::Command;
use crate::arguments::Arguments;
use crate::errors::Error;
use crate::server::{
    Argument, BlockedClient, CommandInfo, Content, Context, KeyName, KeyUse, OWN_CATEGORY, OpenKey, mono,
};
use crate::{state, transaction};
use lockward_core::arguments::{ParseError, option, set_once};
use lockward_core::{Holder, Instant, Lock, Slots, Waiter};

pub struct Info;

impl Command for Info {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock.info",
        flags: c"readonly",
        arity: -2,
        key: Some(KeyUse::Read),
        arguments: &[Argument::KEY, Argument::number(c"n", c"WAITERS")],
        categories: &["read", "slow", OWN_CATEGORY],
        tips: c"nondeterministic_output",
        summary: c"Tells who holds a lock and who waits for it.",
        complexity: c"O(N) in the waiters that are shown",
    };

    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error> {
        let (key, shown) = parse(arguments)?;
        let now = mono();
        let holders = holders_of(context, &key, now)?;
        let Some(slots) = holders.iter().map(|holder| holder.slots).min() else {
            context.reply_null_array();
            return Ok(());
        };
        let (waiting, queue) = state::with(|state| {
            let Some(id) = state.store.queues.queue(key.db(), key.bytes()) else { return (0, Vec::new()) };
            let queue = state.store.queues.waiters_in(id).take(shown.unwrap_or(0)).cloned().collect();
            (state.store.queues.len(id), queue)
        });
        context.reply_map(if shown.is_some() { 4 } else { 3 });
        context.reply_bytes(b"slots");
        context.reply_integer(u64::from(slots.number()));
        context.reply_bytes(b"holders");
        context.reply_array(holders.len());
        holders.iter().for_each(|holder| reply_holder(context, holder, now));
        context.reply_bytes(b"waiters");
        context.reply_integer(u64::try_from(waiting).unwrap_or(u64::MAX));
        if shown.is_some() {
            context.reply_bytes(b"queue");
            context.reply_array(queue.len());
            queue.iter().for_each(|waiter| reply_waiter(context, waiter, now));
        }
        Ok(())
    }
}

fn parse<'a>(mut arguments: Arguments<'a>) -> Result<(KeyName<'a>, Option<usize>), Error> {
    let key = arguments.key()?;
    let mut shown = None;
    while let Some(name) = arguments.option() {
        match name {
            option::WAITERS => set_once(&mut shown, arguments.count(0)?)?,
            _ => return Err(ParseError::Syntax.into()),
        }
    }
    Ok((key, shown))
}

/// The holders of the lock now. A lease that is over does not count, though it may not be cleared away yet.
pub fn holders_of(context: Context, key: &KeyName<'_>, now: Instant) -> Result<Vec<Holder>, Error> {
    let holding = |lock: &Lock| -> Vec<Holder> {
        lock.holders().filter(|holder| !holder.is_over(now)).map(Holder::cloned).collect()
    };
    let mut open = OpenKey::for_read(context, key);
    match open.content() {
        Content::WrongType => {
            transaction::break_dropped(key, now);
            Err(Error::WrongType)
        }
        Content::Lock(lock) => {
            let holders = holding(lock);
            let all = holders.len() == lock.holders().len();
            drop(open);
            if !all {
                transaction::clear_away(context, key);
            }
            Ok(holders)
        }
        Content::Missing => Ok(state::with(|state| {
            let dropped = state.store.dropped_locks.get(key.db(), key.bytes());
            dropped.map(holding).unwrap_or_default()
        })),
    }
}

fn reply_holder(context: Context, holder: &Holder, now: Instant) {
    context.reply_map(6);
    context.reply_bytes(b"owner");
    context.reply_bytes(&holder.owner.to_bytes());
    context.reply_bytes(b"holds");
    context.reply_integer(u64::from(holder.holds));
    context.reply_bytes(b"token");
    context.reply_integer(holder.token.get());
    reply_slots(context, holder.slots);
    context.reply_bytes(b"lease-left");
    context.reply_integer(holder.lease_left(now).as_millis());
    context.reply_bytes(b"held-for");
    context.reply_integer(now.since(holder.since).as_millis());
}

fn reply_waiter(context: Context, waiter: &Waiter<BlockedClient>, now: Instant) {
    let wait_request = &waiter.wait_request;
    context.reply_map(5);
    context.reply_bytes(b"owner");
    context.reply_bytes(&wait_request.request.owner.to_bytes());
    reply_slots(context, wait_request.request.slots);
    context.reply_bytes(b"client-id");
    context.reply_integer(wait_request.handle.id);
    context.reply_bytes(b"waited");
    context.reply_integer(now.since(waiter.since).as_millis());
    context.reply_bytes(b"wait-left");
    match wait_request.limit {
        Some(limit) => context.reply_integer(now.until(limit).as_millis()),
        None => context.reply_signed(-1),
    }
}

fn reply_slots(context: Context, slots: Slots) {
    context.reply_bytes(b"slots");
    context.reply_integer(u64::from(slots.number()));
}
