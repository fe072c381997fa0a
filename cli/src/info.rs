//! `lockward info`: who holds a lock, and who waits for it.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;

use crate::duration;
use crate::failure::Failure;
use crate::json;
use crate::locks::Lock;
use crate::primaries::{Place, Primaries, TROUBLE};
use crate::text;

/// Show who holds a lock and who waits for it
///
/// Exits with 0 if somebody holds it, 1 if nobody does, 2 if it cannot be told.
#[derive(Args)]
pub(crate) struct Info {
    /// The lock
    key: OsString,

    /// How many of the queue to show, next to be served first
    #[arg(long, value_name = "N", default_value_t = 10)]
    waiters: u64,

    /// As JSON: an object, or null if nobody holds the lock
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Place,
}

impl Info {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let key = self.key.as_bytes();
        let mut primaries = Primaries::connect(&self.place)?;
        let told = primaries.look_at(key, self.waiters).map_err(|failure| failure.exit(TROUBLE))?;
        if self.json {
            println!("{}", json::line(&told).map_err(|failure| failure.exit(TROUBLE))?);
        } else {
            match &told {
                Some(lock) => print!("{}", page(key, lock)),
                None => println!("nobody holds {}", text::show(key)),
            }
        }
        Ok(if told.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Who holds it and who waits, in two tables.
pub(crate) fn page(key: &[u8], lock: &Lock) -> String {
    let holders: Vec<_> = lock
        .holders
        .iter()
        .map(|holder| {
            [
                text::show(&holder.owner),
                holder.holds.to_string(),
                holder.token.to_string(),
                duration::show_ms(holder.lease_left),
                duration::show_ms(holder.held_for),
            ]
        })
        .collect();
    let mut page = format!("{}\n\n", text::show(key));
    page += &text::table(
        ["HOLDER", "HOLDS", "TOKEN", "LEASE LEFT", "HELD FOR"],
        [false, true, true, true, true],
        &holders,
    );
    let shown = lock.queue.as_deref().unwrap_or_default();
    if shown.is_empty() {
        // Writing to a string does not fail.
        let _ = write!(page, "\n{} waiting\n", lock.waiters);
        return page;
    }
    let queue: Vec<_> = (1..)
        .zip(shown)
        .map(|(place, waiter): (u64, _)| {
            [
                place.to_string(),
                text::show(&waiter.owner),
                duration::show_ms(waiter.waited),
                waiter.wait_left.map_or_else(|| "no limit".to_owned(), duration::show_ms),
                waiter.client_id.to_string(),
            ]
        })
        .collect();
    page.push('\n');
    page += &text::table(
        ["NEXT", "WAITER", "WAITED", "WAIT LEFT", "CLIENT"],
        [true, false, true, true, true],
        &queue,
    );
    let more = lock.waiters.saturating_sub(u64::try_from(shown.len()).unwrap_or(u64::MAX));
    if more > 0 {
        let _ = writeln!(page, "and {more} more");
    }
    page
}
