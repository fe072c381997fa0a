//! `lockward ls`: the locks that are held.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;
use redis::{Cmd, Connection, RedisError};
use serde::Serialize;

use crate::duration;
use crate::failure::Failure;
use crate::json;
use crate::locks::{Lock, Mode, TYPE, if_readable, info_command};
use crate::output;
use crate::primaries::{Primaries, ServerUrl};
use crate::text;

/// How many keys the server scans before it serves other clients again.
const SCAN_COUNT: u64 = 1_000;

/// How many holders of a lock are in the output of `--json`.
const JSON_HOLDERS: u64 = 100;

/// List the locks that are held
///
/// ls reads all keys of each primary with SCAN, a thousand at a time. SCAN does not block the server, but takes long if
/// there are many other keys. With --top, ls sends LOCK.TOP instead, which is fast.
#[derive(Args)]
pub(crate) struct Ls {
    /// Only locks whose key matches this pattern, as in KEYS: order:*
    #[arg(value_name = "PATTERN", conflicts_with = "top")]
    pattern: Option<OsString>,

    /// Only the N locks with the most waiters, most waiters first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    top: Option<u64>,

    /// Print one line of JSON for each lock
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerUrl,
}

#[derive(Serialize)]
struct LockWithKey<'a> {
    #[serde(serialize_with = "json::name")]
    key: &'a [u8],
    #[serde(flatten)]
    lock: &'a Lock,
}

impl Ls {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut primaries = Primaries::connect(&self.server)?;
        let found = self.find(&mut primaries)?;
        let lines = || found.iter().map(|(key, lock)| Ok(json::line(&LockWithKey { key, lock })? + "\n"));
        let shown = if self.json { lines().collect::<Result<String, Failure>>()? } else { table(&found) };
        output::print(&shown)?;
        Ok(ExitCode::SUCCESS)
    }

    fn find(&self, primaries: &mut Primaries) -> Result<Vec<(Vec<u8>, Lock)>, RedisError> {
        let mut found = Vec::new();
        if let Some(count) = self.top {
            for lock in primaries.most_contended(count)? {
                // A lock with waiters has no holder if the server is in quarantine, or if the holder has released the
                // lock since LOCK.TOP.
                let mode = Mode { slots: 0, weight: 0 };
                let free = Lock { mode, holding: 0, holders: Vec::new(), waiters: lock.waiters, queue: None };
                let held = if_readable(primaries.query(&self.info_command(&lock.key)))?;
                found.push((lock.key, held.unwrap_or(free)));
            }
            return Ok(found);
        }
        for connection in primaries.connections() {
            self.scan(connection, &mut found)?;
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        // SCAN may return a key twice.
        found.dedup_by(|(one, _), (other, _)| one == other);
        Ok(found)
    }

    fn info_command(&self, key: &[u8]) -> Cmd {
        info_command(key, if self.json { JSON_HOLDERS } else { 1 }, None)
    }

    fn scan(&self, connection: &mut Connection, found: &mut Vec<(Vec<u8>, Lock)>) -> Result<(), RedisError> {
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor);
            if let Some(pattern) = &self.pattern {
                scan.arg("MATCH").arg(pattern.as_bytes());
            }
            let scan = scan.arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg(TYPE);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query(connection)?;
            let mut infos = redis::pipe();
            for key in &keys {
                infos.add_command(self.info_command(key));
            }
            if !keys.is_empty() {
                let replies: Vec<Result<Option<Lock>, RedisError>> =
                    infos.ignore_errors().query(connection)?;
                for (key, reply) in keys.into_iter().zip(replies) {
                    found.extend(if_readable(reply)?.map(|lock| (key, lock)));
                }
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

fn table(found: &[(Vec<u8>, Lock)]) -> String {
    if found.is_empty() {
        return "no locks\n".to_owned();
    }
    let rows: Vec<_> = found
        .iter()
        .map(|(key, lock)| {
            let none = || "-".to_owned();
            let first = lock.holders.first();
            [
                text::show(key),
                lock.show_holders().unwrap_or_else(none),
                first.map_or_else(none, |_| lock.mode.to_string()),
                first.map_or_else(none, |holder| holder.holds.to_string()),
                first.map_or_else(none, |holder| duration::show_ms(holder.lease_left)),
                lock.waiters.to_string(),
            ]
        })
        .collect();
    text::table(
        ["LOCK", "HOLDER", "MODE", "HOLDS", "LEASE LEFT", "WAITERS"],
        [false, false, false, true, true, true],
        &rows,
    )
}
