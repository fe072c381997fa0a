//! `lockward ls`: the locks on the servers.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use redis::Connection;
use serde::Serialize;

use crate::duration;
use crate::failure::Failure;
use crate::json;
use crate::locks::{self, Lock, TYPE, info};
use crate::primaries::{Place, Primaries, TROUBLE};
use crate::text;

/// How many keys the server looks at in one go, before it serves others again.
const AT_ONCE: u64 = 1_000;

/// List the locks that are held
///
/// It goes through the keys by SCAN, a thousand at a time, on every primary: a server with many other keys takes a
/// while, and goes on serving meanwhile. With --top only LOCK.TOP is asked, which takes no time.
#[derive(Args)]
pub(crate) struct List {
    /// Only locks whose name matches, as in KEYS: order:*
    #[arg(value_name = "PATTERN", conflicts_with = "top")]
    pattern: Option<String>,

    /// Only the locks that most wait for, most waiters first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    top: Option<u64>,

    /// One line of JSON a lock
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Place,
}

#[derive(Serialize)]
struct Named<'a> {
    #[serde(serialize_with = "json::name")]
    key: &'a [u8],
    #[serde(flatten)]
    lock: &'a Lock,
}

impl List {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut primaries = Primaries::connect(&self.place)?;
        let found = self.find(&mut primaries).map_err(|error| Failure::from(error).exit(TROUBLE))?;
        let mut out = io::stdout().lock();
        let written = if self.json {
            found.iter().try_for_each(|(key, lock)| {
                writeln!(out, "{}", json::line(&Named { key, lock }).unwrap_or_default())
            })
        } else {
            out.write_all(table(&found).as_bytes())
        };
        match written.and_then(|()| out.flush()) {
            // Whoever reads has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            written => {
                written.map(|()| ExitCode::SUCCESS).map_err(|error| Failure::from(error).exit(TROUBLE))
            }
        }
    }

    fn find(&self, primaries: &mut Primaries) -> Result<Vec<(Vec<u8>, Lock)>, redis::RedisError> {
        let mut found = Vec::new();
        if let Some(count) = self.top {
            for lock in locks::most_contended(primaries, count)? {
                // Nobody holds it, in quarantine; or the last hold was given back meanwhile.
                let nobody = Lock { holders: Vec::new(), waiters: lock.waiters, queue: None };
                let held: Option<Lock> = primaries.ask(&info(&lock.key, None))?;
                found.push((lock.key, held.unwrap_or(nobody)));
            }
            return Ok(found);
        }
        for connection in primaries.connections() {
            self.scan(connection, &mut found)?;
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        // SCAN may show a key twice.
        found.dedup_by(|(one, _), (other, _)| one == other);
        Ok(found)
    }

    fn scan(
        &self,
        connection: &mut Connection,
        found: &mut Vec<(Vec<u8>, Lock)>,
    ) -> Result<(), redis::RedisError> {
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor);
            if let Some(pattern) = &self.pattern {
                scan.arg("MATCH").arg(pattern);
            }
            let scan = scan.arg("COUNT").arg(AT_ONCE).arg("TYPE").arg(TYPE);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query(connection)?;
            let mut asked = redis::pipe();
            for key in &keys {
                asked.add_command(info(key, None));
            }
            if !keys.is_empty() {
                let told: Vec<Option<Lock>> = asked.query(connection)?;
                let held = keys.into_iter().zip(told);
                found.extend(held.filter_map(|(key, lock)| Some((key, lock?))));
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
            let first = lock.holders.first();
            let (holder, holds, lease) = first.map_or_else(
                || ("-".to_owned(), "-".to_owned(), "-".to_owned()),
                |holder| {
                    (
                        text::show(&holder.owner),
                        holder.holds.to_string(),
                        duration::show_ms(holder.lease_left),
                    )
                },
            );
            [text::show(key), holder, holds, lease, lock.waiters.to_string()]
        })
        .collect();
    text::table(["LOCK", "HOLDER", "HOLDS", "LEASE LEFT", "WAITERS"], [false, false, true, true, true], &rows)
}
