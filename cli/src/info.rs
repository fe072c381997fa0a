//! `lockward info`: the holders and waiters of a lock.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;
use redis::Connection;

use crate::duration;
use crate::failure::Failure;
use crate::locks::{Lock, info_command};
use crate::output;
use crate::primaries::Servers;
use crate::server::{Server, first_answer};
use crate::text::{self, Column, Column::Left, Column::Right};

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
    servers: Servers,
}

impl Info {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let key = self.key.as_bytes();
        let (lock, _) = read(&self.servers, key, self.holders, self.waiters)?;
        output::print(&match &lock {
            _ if self.json => format!("{}\n", output::json(&lock)?),
            Some(lock) => tables(key, lock),
            None => format!("nobody holds {}\n", text::show(key)),
        })?;
        Ok(if lock.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Reads a lock at the primary that serves its key, with the first `holders` holders and the first `waiters` waiters. Also
/// returns this primary.
pub(crate) fn read(
    servers: &Servers,
    key: &[u8],
    holders: u64,
    waiters: u64,
) -> Result<(Option<Lock>, Server), Failure> {
    let request = info_command(key, holders, Some(waiters));
    let ask = move |server: &Server, connection: &mut Connection| match request.query(connection) {
        Err(error) if error.code() == Some("MOVED") => Ok(None),
        reply => Ok(Some((reply?, server.clone()))),
    };
    first_answer(servers.ask_each(ask)?)
}

/// The columns of a table of holders.
pub(crate) const HOLDERS: [Column; 6] =
    [Left("HOLDER"), Left("MODE"), Right("HOLDS"), Right("TOKEN"), Right("LEASE LEFT"), Right("HELD FOR")];

/// The columns of a table of waiters.
pub(crate) const WAITERS: [Column; 6] =
    [Right("NEXT"), Left("WAITER"), Left("MODE"), Right("WAITED"), Right("WAIT LEFT"), Right("CLIENT")];

/// The cells of each holder.
pub(crate) fn holder_rows(lock: &Lock) -> impl Iterator<Item = [String; 6]> {
    lock.holders.iter().map(|holder| {
        [
            holder.owner.to_string(),
            holder.mode.to_string(),
            holder.holds.to_string(),
            holder.token.to_string(),
            duration::show_ms(holder.lease_left),
            duration::show_ms(holder.held_for),
        ]
    })
}

/// The cells of each waiter.
pub(crate) fn waiter_rows(lock: &Lock) -> impl Iterator<Item = [String; 6]> {
    (1_u64..).zip(lock.queue.iter().flatten()).map(|(position, waiter)| {
        [
            position.to_string(),
            waiter.owner.to_string(),
            waiter.mode.to_string(),
            duration::show_ms(waiter.waited),
            waiter.wait_left.map_or_else(|| "no limit".to_owned(), duration::show_ms),
            waiter.client_id.to_string(),
        ]
    })
}

/// A table of the holders and a table of the waiters.
pub(crate) fn tables(key: &[u8], lock: &Lock) -> String {
    let mut tables = format!("{}\n\n{}", lock.title(key), text::table(HOLDERS, holder_rows(lock)));
    add_more(&mut tables, lock.holding, lock.holders.len());
    let shown = lock.queue.iter().flatten().count();
    if shown == 0 {
        tables += &format!("\n{} waiting\n", lock.waiters);
        return tables;
    }
    tables += &format!("\n{}", text::table(WAITERS, waiter_rows(lock)));
    add_more(&mut tables, lock.waiters, shown);
    tables
}

/// Adds a line with the number of entries that are not shown.
fn add_more(tables: &mut String, all: u64, shown: usize) {
    let more = all.saturating_sub(u64::try_from(shown).unwrap_or(u64::MAX));
    if more > 0 {
        *tables += &format!("and {more} more\n");
    }
}
