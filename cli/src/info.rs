//! `lockward info`: the holders and waiters of a lock.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;

use crate::duration;
use crate::failure::Failure;
use crate::json;
use crate::locks::Lock;
use crate::output;
use crate::primaries::{Primaries, ServerUrl};
use crate::text;

/// Show who holds a lock and who waits for it
///
/// The exit code is 0 if an owner holds the lock, 1 if nobody holds it, and 2 after an error.
#[derive(Args)]
pub(crate) struct Info {
    /// The lock
    key: OsString,

    /// Show the first N holders, in the order of their tokens
    #[arg(long, value_name = "N", default_value_t = 10)]
    holders: u64,

    /// Show the first N waiters of the queue
    #[arg(long, value_name = "N", default_value_t = 10)]
    waiters: u64,

    /// Print JSON: an object, or null if nobody holds the lock
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerUrl,
}

impl Info {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let key = self.key.as_bytes();
        let mut primaries = Primaries::connect(&self.server)?;
        let lock = primaries.info(key, self.holders, self.waiters)?;
        output::print(&match &lock {
            _ if self.json => format!("{}\n", json::line(&lock)?),
            Some(lock) => tables(key, lock),
            None => format!("nobody holds {}\n", text::show(key)),
        })?;
        Ok(if lock.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// A table of the holders and a table of the waiters.
pub(crate) fn tables(key: &[u8], lock: &Lock) -> String {
    let holders: Vec<_> = lock
        .holders
        .iter()
        .map(|holder| {
            [
                text::show(&holder.owner),
                holder.mode.to_string(),
                holder.holds.to_string(),
                holder.token.to_string(),
                duration::show_ms(holder.lease_left),
                duration::show_ms(holder.held_for),
            ]
        })
        .collect();
    let mut tables = format!("{}\n\n", lock.title(key));
    tables += &text::table(
        ["HOLDER", "MODE", "HOLDS", "TOKEN", "LEASE LEFT", "HELD FOR"],
        [false, false, true, true, true, true],
        &holders,
    );
    add_more(&mut tables, lock.holding, holders.len());
    let shown = lock.queue.as_deref().unwrap_or_default();
    if shown.is_empty() {
        tables += &format!("\n{} waiting\n", lock.waiters);
        return tables;
    }
    let queue: Vec<_> = (1..)
        .zip(shown)
        .map(|(position, waiter): (u64, _)| {
            [
                position.to_string(),
                text::show(&waiter.owner),
                waiter.mode.to_string(),
                duration::show_ms(waiter.waited),
                waiter.wait_left.map_or_else(|| "no limit".to_owned(), duration::show_ms),
                waiter.client_id.to_string(),
            ]
        })
        .collect();
    tables.push('\n');
    tables += &text::table(
        ["NEXT", "WAITER", "MODE", "WAITED", "WAIT LEFT", "CLIENT"],
        [true, false, false, true, true, true],
        &queue,
    );
    add_more(&mut tables, lock.waiters, queue.len());
    tables
}

/// Adds a line with the number of entries that are not shown.
fn add_more(tables: &mut String, all: u64, shown: usize) {
    let more = all.saturating_sub(u64::try_from(shown).unwrap_or(u64::MAX));
    if more > 0 {
        *tables += &format!("and {more} more\n");
    }
}
