//! LOCK.TOP [COUNT n]

use super::command::Command;
use super::holding::holding;
use crate::arguments::Arguments;
use crate::errors::Error;
use crate::server::{Argument, CommandInfo, Context, KeyName, OWN_CATEGORY};
use crate::{command_time, state};
use lockward_core::arguments::{ParseError, option, set_once};
use lockward_core::{Db, Instant};
use std::cmp::Reverse;
use std::rc::Rc;

const DEFAULT_COUNT: usize = 10;

pub struct Top;

impl Command for Top {
    const INFO: CommandInfo = CommandInfo {
        name: c"lock.top",
        flags: c"readonly admin",
        arity: -1,
        key: None,
        arguments: &[Argument::number(c"n", c"COUNT")],
        categories: &["read", "slow", "admin", "dangerous", OWN_CATEGORY],
        tips: c"nondeterministic_output request_policy:all_shards",
        summary: c"Tells which locks of the selected database most clients wait for.",
        complexity: c"O(N) in the locks that are waited for, O(M*log(M)) in those that are shown",
    };

    fn run(context: Context, mut arguments: Arguments<'_>) -> Result<(), Error> {
        let mut count = None;
        while let Some(name) = arguments.option() {
            match name {
                option::COUNT => set_once(&mut count, arguments.count(1)?)?,
                _ => return Err(ParseError::Syntax.into()),
            }
        }
        // In a transaction, Redis from 7.4 on and Valkey from 8 on look up every key in the slot of the transaction's
        // own keys. So these servers would not find waited-for keys of other slots, and LOCK.TOP is refused.
        let flags = context.flags();
        if flags.cluster() && flags.must_not_block() {
            return Err(Error::TopInTransaction);
        }
        let now = command_time::of(context).mono;
        let top = most_contended(context.db(), count.unwrap_or(DEFAULT_COUNT));
        context.reply_array(top.len());
        for contended in top {
            let name = KeyName::copied(context.db(), &contended.key);
            // If the key holds another type by now, no holder is shown. The waiters will get an error soon.
            let holding = holding(context, &name, 1, now).unwrap_or_default();
            context.reply_map(5);
            context.reply_bytes(b"key");
            context.reply_bytes(&contended.key);
            context.reply_field(b"waiters", u64::try_from(contended.waiters).unwrap_or(u64::MAX));
            context.reply_field(b"longest-wait", now.since(contended.first_since).as_millis());
            let holders = holding.as_ref().map_or(0, |holding| holding.count);
            context.reply_field(b"holders", u64::try_from(holders).unwrap_or(u64::MAX));
            context.reply_bytes(b"holder");
            match holding.as_ref().and_then(|holding| holding.first.first()) {
                Some(holder) => context.reply_bytes(&holder.owner.to_bytes()),
                None => context.reply_null(),
            }
        }
        Ok(())
    }
}

struct Contended {
    key: Rc<[u8]>,
    waiters: usize,
    first_since: Instant,
}

/// The locks of `db` with the most waiters, sorted by the number of waiters, largest first. Locks with the same number
/// of waiters are sorted by their longest wait, longest first.
fn most_contended(db: Db, count: usize) -> Vec<Contended> {
    let mut all: Vec<Contended> = state::with(|state| {
        let contended = |(key, waiters, first_since)| Contended { key: Rc::clone(key), waiters, first_since };
        state.store.queues.contended(db).map(contended).collect()
    });
    let order = |contended: &Contended| (Reverse(contended.waiters), contended.first_since);
    if count < all.len() {
        all.select_nth_unstable_by_key(count, order);
        all.truncate(count);
    }
    all.sort_by_key(order);
    all
}
