//! `lockward ls`: the locks that are held.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use clap::Args;
use redis::{Connection, RedisError};

use crate::duration;
use crate::exit_code;
use crate::failure::Failure;
use crate::locks::{FoundLock, read_all, read_contended, scan_command};
use crate::output;
use crate::primaries::Servers;
use crate::server::{Server, all_answers};
use crate::text::{self, Column::Left, Column::Right, Name};

/// How many holders of a lock the output of `--json` has, at most.
const JSON_HOLDERS: u64 = 100;

/// List the locks that are held
///
/// ls reads all keys of each primary with SCAN, a thousand at a time. SCAN does not block the server, but takes long if
/// there are many other keys. With --top, ls sends LOCK.TOP instead, which is fast.
///
/// The exit code is 0, 2 after an error, and 3 if some primaries of a cluster did not answer, so that their locks are
/// missing.
#[derive(Args)]
pub(crate) struct Ls {
    /// Only locks whose key matches this pattern, as in KEYS: order:*
    #[arg(value_name = "PATTERN", conflicts_with = "top", default_value = "*", hide_default_value = true)]
    pattern: OsString,

    /// Only the N locks with the most waiters, most waiters first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    top: Option<u64>,

    /// Print one line of JSON for each lock
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    servers: Servers,
}

impl Ls {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let holders = if self.json { JSON_HOLDERS } else { 1 };
        let (pattern, top) = (self.pattern.into_vec(), self.top);
        let ask = move |_: &Server, connection: &mut Connection| match top {
            Some(count) => read_contended(connection, count, holders),
            None => scan(connection, &pattern, holders),
        };
        let (found, failures) = all_answers(self.servers.ask_each(ask)?)?;
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        if let Some(count) = top {
            found.sort_by_key(FoundLock::rank);
            found.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        } else {
            found.sort_by(|one, other| one.key.cmp(&other.key));
            // SCAN may return a key twice.
            found.dedup_by(|one, other| one.key == other.key);
        }
        let lines = || found.iter().map(|lock| Ok(output::json(lock)? + "\n"));
        output::print(&if self.json {
            lines().collect::<Result<String, Failure>>()?
        } else {
            table(&found)
        })?;
        failures.iter().for_each(|failure| output::complain(&failure.to_string()));
        Ok(if failures.is_empty() { ExitCode::SUCCESS } else { exit_code::PARTIAL.into() })
    }
}

/// Reads all locks of a server.
fn scan(connection: &mut Connection, pattern: &[u8], holders: u64) -> Result<Vec<FoundLock>, RedisError> {
    let mut found = Vec::new();
    let mut cursor = 0;
    loop {
        let (next, keys): (u64, Vec<Vec<u8>>) = scan_command(cursor, pattern).query(connection)?;
        let locks = read_all(connection, keys.iter(), holders)?;
        found.extend(
            keys.into_iter()
                .zip(locks)
                .filter_map(|(key, lock)| Some(FoundLock { key: Name(key), longest_wait: 0, lock: lock? })),
        );
        if next == 0 {
            return Ok(found);
        }
        cursor = next;
    }
}

fn table(found: &[FoundLock]) -> String {
    if found.is_empty() {
        return "no locks\n".to_owned();
    }
    let row = |FoundLock { key, lock, .. }: &FoundLock| {
        let first = lock.holders.first();
        let or_none = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        [
            key.to_string(),
            or_none(lock.show_holders()),
            or_none(first.map(|_| lock.mode.to_string())),
            or_none(first.map(|holder| holder.holds.to_string())),
            or_none(first.map(|holder| duration::show_ms(holder.lease_left))),
            lock.waiters.to_string(),
        ]
    };
    let columns =
        [Left("LOCK"), Left("HOLDER"), Left("MODE"), Right("HOLDS"), Right("LEASE LEFT"), Right("WAITERS")];
    text::table(columns, found.iter().map(row))
}
