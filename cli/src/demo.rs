//! `lockward demo`: shows lost updates without a lock, on a real server.
//!
//! Many clients add 1 to the same number, with GET, an addition and SET. Without a lock, two clients can read the same
//! number, and one update is lost. All clients together make a fixed number of increments, so all clients compete until
//! the end.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use redis::{Connection, cmd};
use uuid::Uuid;

use crate::duration;
use crate::failure::Failure;
use crate::output;
use crate::primaries::Servers;
use crate::text::{self, Column::Left, Column::Right};

const CLIENTS: usize = 50;
const INCREMENTS: u64 = 5_000;
/// How long a client waits for a lock, in milliseconds.
const WAIT_LIMIT_MS: u64 = 20_000;
/// A lease that is much longer than a step of the demo, in milliseconds. So each client still holds the lock when it
/// releases the lock.
const LEASE_MS: u64 = 30_000;
/// How long a client sleeps before it tries SET NX PX again.
const RETRY: Duration = Duration::from_millis(50);
/// The TTL of the demo's number in seconds, in case somebody kills the demo.
const EXPIRY_S: u64 = 60;

/// Show lost updates without a lock, on a real server
///
/// Fifty clients add 1 to the same number (GET, add 1, SET): first without a lock, then with SET NX PX, then with
/// LOCK.ACQUIRE. The demo uses its own keys and deletes them.
#[derive(Args)]
pub(crate) struct Demo {
    #[command(flatten)]
    servers: Servers,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    NoLock,
    SetNx,
    LockCommands,
}

impl Demo {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let [server] = <[_; 1]>::try_from(self.servers.primaries(&[])?)
            .map_err(|_| Failure::new("demo needs a server that is not part of a cluster"))?;
        let (mut control, _) = server.connect_with_module()?;
        let connect = |_| {
            let connection = server.connect()?;
            // The connection must wait for a reply for longer than LOCK.ACQUIRE blocks.
            connection.set_read_timeout(Some(Duration::from_millis(WAIT_LIMIT_MS) + server.patience()))?;
            Ok(connection)
        };
        let mut clients = (0..CLIENTS).map(connect).collect::<Result<Vec<_>, Failure>>()?;
        output::print(&format!(
            "{CLIENTS} clients together add 1 to one number {INCREMENTS} times, each time in three steps: GET, add 1, SET.\n\
             The right result is {INCREMENTS}. Server: {}\n\n",
            server.address()
        ))?;
        let mut rows = Vec::new();
        for (kind, name) in [
            (Kind::NoLock, "no lock"),
            (Kind::SetNx, "SET NX PX, retry 50 ms"),
            (Kind::LockCommands, "LOCK.ACQUIRE BLOCK"),
        ] {
            let key = format!("lockward:demo:{}", Uuid::new_v4());
            let begun = Instant::now();
            let counted = count(kind, &key, &mut control, &mut clients);
            let took = duration::ms(begun.elapsed());
            let deleted = cmd("DEL").arg(&key).arg(lock_of(&key)).exec(&mut control);
            let number = counted?;
            deleted?;
            if kind == Kind::LockCommands && number != INCREMENTS {
                return Err(Failure::new(format!(
                    "LOCK.ACQUIRE led to {number} instead of {INCREMENTS}: two owners held the lock at once. Please report this."
                )));
            }
            let lost = INCREMENTS.saturating_sub(number).to_string();
            rows.push([name.to_owned(), number.to_string(), lost, duration::show_ms(took)]);
        }
        let columns = [Left("lock"), Right("number"), Right("lost updates"), Right("time")];
        output::print(&text::table(columns, rows.into_iter()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The lock that protects the number in this key.
fn lock_of(key: &str) -> String {
    format!("{key}:lock")
}

/// Lets the clients count with one kind of lock. Returns the final number.
fn count(
    kind: Kind,
    key: &str,
    control: &mut Connection,
    clients: &mut [Connection],
) -> Result<u64, Failure> {
    set_number(control, key, 0)?;
    // How many increments have begun.
    let begun = AtomicU64::new(0);
    let run = |client: &mut Connection| {
        while begun.fetch_add(1, Relaxed) < INCREMENTS {
            add_one(kind, key, client)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| run(client))).collect();
        let panicked = |_| Err(Failure::new("a client of the demo has panicked"));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })?;
    number(control, key)
}

/// Adds 1 to the number while the client holds the lock.
fn add_one(kind: Kind, key: &str, client: &mut Connection) -> Result<(), Failure> {
    let (lock, owner) = (lock_of(key), Uuid::new_v4().to_string());
    match kind {
        Kind::NoLock => {}
        Kind::SetNx => {
            let mut set = cmd("SET");
            set.arg(&lock).arg(&owner).arg("NX").arg("PX").arg(LEASE_MS);
            while set.query::<Option<String>>(client)?.is_none() {
                thread::sleep(RETRY);
            }
        }
        Kind::LockCommands => {
            let mut acquire = cmd("LOCK.ACQUIRE");
            acquire.arg(&lock).arg(&owner).arg("PX").arg(LEASE_MS).arg("BLOCK").arg(WAIT_LIMIT_MS);
            let granted: Option<(u64, u64, u64)> = acquire.query(client)?;
            granted.ok_or_else(|| Failure::new("a client waited too long for the lock"))?;
        }
    }
    // The demo does not use INCR, because most changes of an application take several steps. Another client can change
    // the number between the steps.
    let before = number(client, key)?;
    set_number(client, key, before.saturating_add(1))?;
    match kind {
        Kind::NoLock => {}
        Kind::SetNx => cmd("DEL").arg(&lock).exec(client)?,
        Kind::LockCommands => cmd("LOCK.RELEASE").arg(&lock).arg(&owner).exec(client)?,
    }
    Ok(())
}

fn number(connection: &mut Connection, key: &str) -> Result<u64, Failure> {
    let number: Option<u64> = cmd("GET").arg(key).query(connection)?;
    number.ok_or_else(|| Failure::new("the demo's number disappeared from the server during the round"))
}

fn set_number(connection: &mut Connection, key: &str, number: u64) -> Result<(), Failure> {
    Ok(cmd("SET").arg(key).arg(number).arg("EX").arg(EXPIRY_S).exec(connection)?)
}
