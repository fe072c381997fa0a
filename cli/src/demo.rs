//! `lockward demo`: shows lost updates without a lock, on a real server.
//!
//! Many clients add 1 to the same number, with GET, an addition and SET. Without a lock, two clients can read the same
//! number, and one update is lost.
//!
//! All clients together make a fixed number of increments, so all clients compete until the end. The number of
//! increments by each client shows how fair the lock is.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use redis::Connection;
use uuid::Uuid;

use crate::duration;
use crate::failure::Failure;
use crate::output;
use crate::primaries::Servers;
use crate::server::Server;
use crate::text::{self, Column::Left, Column::Right};

/// How long a client waits for a lock, in milliseconds.
const WAIT_LIMIT_MS: u64 = 20_000;
/// A lease that is much longer than a step of the demo, in milliseconds.
const LEASE_MS: u64 = 30_000;

const CLIENTS: usize = 50;
const INCREMENTS: u64 = 5_000;
/// How long a client sleeps before it tries SET NX PX again.
const RETRY: Duration = Duration::from_millis(50);
/// The TTL of the demo's data in seconds, in case somebody kills the demo.
const EXPIRY_S: u64 = 60;

/// Deletes the key if its value is the owner in ARGV.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])";

/// Show lost updates without a lock, on a real server
///
/// Fifty clients add 1 to the same number (GET, add 1, SET): first without a lock, then with SET NX PX, then with
/// LOCK.ACQUIRE. The demo uses its own keys and deletes them.
#[derive(Args)]
pub(crate) struct Demo {
    #[command(flatten)]
    servers: Servers,
}

impl Demo {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let [server] = <[_; 1]>::try_from(self.servers.primaries()?)
            .map_err(|_| Failure::new("demo needs a server that is not part of a cluster"))?;
        server.connect_with_module()?;
        run(&server)
    }
}

/// A kind of lock: its name, and how to acquire and release it.
struct Kind {
    name: &'static str,
    acquire: fn(&str, &mut Client) -> Result<(), Failure>,
    release: fn(&str, &mut Client) -> Result<(), Failure>,
}

const LOCK_COMMANDS: &str = "LOCK.ACQUIRE BLOCK";

const KINDS: [Kind; 3] = [
    Kind { name: "no lock", acquire: |_, _| Ok(()), release: |_, _| Ok(()) },
    Kind { name: "SET NX PX, retry 50 ms", acquire: set_nx, release: delete },
    Kind { name: LOCK_COMMANDS, acquire, release },
];

/// A client of the demo, like one thread of an application.
struct Client {
    connection: Connection,
    owner: String,
}

/// The increments of one client, and the longest time that the client waited for the lock.
#[derive(Clone, Copy, Default)]
struct Share {
    increments: u64,
    longest_wait: Duration,
}

/// Lets the clients count with each kind of lock, and prints a table. Fails if an update was lost with the lock
/// commands.
fn run(server: &Server) -> Result<ExitCode, Failure> {
    // By convention, the name of an owner is a UUID of the process and a number of the thread.
    let process = Uuid::new_v4();
    let client = |thread| {
        let connection = server.connect()?;
        // The connection must wait for a reply for longer than LOCK.ACQUIRE blocks.
        connection.set_read_timeout(Some(Duration::from_millis(WAIT_LIMIT_MS) + server.patience()))?;
        Ok(Client { connection, owner: format!("{process}:{thread}") })
    };
    let mut clients = (0..CLIENTS).map(client).collect::<Result<Vec<_>, Failure>>()?;
    let mut control = server.connect()?;
    output::print(&format!(
        "{CLIENTS} clients together add 1 to one number {INCREMENTS} times, each time in three steps: GET, add 1, SET.\n\
         The right result is {INCREMENTS}. With a fair lock, each client adds 1 about {} times. Server: {}\n\n",
        INCREMENTS / CLIENTS as u64,
        server.address()
    ))?;
    let mut rows = Vec::new();
    for kind in &KINDS {
        let round = Round::new(kind);
        let result = round.run(&mut control, &mut clients);
        let deleted = redis::cmd("DEL").arg(&round.number).arg(&round.lock).exec(&mut control);
        let (number, took, shares) = result?;
        deleted?;
        let increments = || shares.iter().map(|share| share.increments);
        let longest = shares.iter().map(|share| share.longest_wait).max().unwrap_or_default();
        rows.push([
            kind.name.to_owned(),
            number.to_string(),
            INCREMENTS.saturating_sub(number).to_string(),
            show(took),
            show(longest),
            format!("{} to {}", increments().min().unwrap_or(0), increments().max().unwrap_or(0)),
        ]);
        if kind.name == LOCK_COMMANDS && number != INCREMENTS {
            return Err(Failure::new(format!(
                "LOCK.ACQUIRE led to {number} instead of {INCREMENTS}: two owners held the lock at once. Please report this."
            )));
        }
    }
    let columns = [
        Left("lock"),
        Right("number"),
        Right("lost updates"),
        Right("time"),
        Right("longest wait"),
        Right("adds per client"),
    ];
    output::print(&text::table(columns, rows.into_iter()))?;
    Ok(ExitCode::SUCCESS)
}

fn show(duration: Duration) -> String {
    duration::show_ms(duration::ms(duration))
}

/// A round of the demo, with one kind of lock. Each round has its own keys.
struct Round {
    kind: &'static Kind,
    number: String,
    lock: String,
    /// How many increments have begun.
    taken: AtomicU64,
}

impl Round {
    fn new(kind: &'static Kind) -> Self {
        let name = format!("lockward:demo:{}", Uuid::new_v4());
        Self {
            kind,
            number: format!("{name}:number"),
            lock: format!("{name}:lock"),
            taken: AtomicU64::new(0),
        }
    }

    /// Runs the round. Returns the final number, the time, and the share of each client.
    fn run(
        &self,
        control: &mut Connection,
        clients: &mut [Client],
    ) -> Result<(u64, Duration, Vec<Share>), Failure> {
        self.write_number(control, 0)?;
        let begun = Instant::now();
        let shares = thread::scope(|scope| {
            let threads: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(|| self.count(client))).collect();
            let ended = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(Failure::new("a client of the demo has panicked")))
            };
            threads.into_iter().map(ended).collect::<Result<Vec<_>, Failure>>()
        })?;
        Ok((self.read_number(control)?, begun.elapsed(), shares))
    }

    fn count(&self, client: &mut Client) -> Result<Share, Failure> {
        let mut share = Share::default();
        while self.taken.fetch_add(1, Relaxed) < INCREMENTS {
            let asked = Instant::now();
            (self.kind.acquire)(&self.lock, client)?;
            share.longest_wait = share.longest_wait.max(asked.elapsed());
            // The demo does not use INCR, because most changes of an application take several steps. Another client can
            // change the number between the steps.
            let number = self.read_number(&mut client.connection)?;
            self.write_number(&mut client.connection, number.saturating_add(1))?;
            (self.kind.release)(&self.lock, client)?;
            share.increments = share.increments.saturating_add(1);
        }
        Ok(share)
    }

    fn read_number(&self, connection: &mut Connection) -> Result<u64, Failure> {
        let number: Option<u64> = redis::cmd("GET").arg(&self.number).query(connection)?;
        number.ok_or_else(|| Failure::new("the demo's number disappeared from the server during the round"))
    }

    fn write_number(&self, connection: &mut Connection, number: u64) -> Result<(), Failure> {
        redis::cmd("SET").arg(&self.number).arg(number).arg("EX").arg(EXPIRY_S).exec(connection)?;
        Ok(())
    }
}

fn set_nx(lock: &str, Client { connection, owner }: &mut Client) -> Result<(), Failure> {
    let mut set = redis::cmd("SET");
    set.arg(lock).arg(owner).arg("NX").arg("PX").arg(LEASE_MS);
    while set.query::<Option<String>>(connection)?.is_none() {
        thread::sleep(RETRY);
    }
    Ok(())
}

fn delete(lock: &str, Client { connection, owner }: &mut Client) -> Result<(), Failure> {
    let mut script = redis::cmd("EVAL");
    script.arg(RELEASE).arg(1).arg(lock).arg(owner);
    let lost = || Failure::new("a lease ended before its owner released the lock");
    script.query::<bool>(connection)?.then_some(()).ok_or_else(lost)
}

fn acquire(lock: &str, Client { connection, owner }: &mut Client) -> Result<(), Failure> {
    let mut acquire = redis::cmd("LOCK.ACQUIRE");
    acquire.arg(lock).arg(owner).arg("PX").arg(LEASE_MS).arg("BLOCK").arg(WAIT_LIMIT_MS);
    let granted: Option<(u64, u64, u64)> = acquire.query(connection)?;
    granted.map(drop).ok_or_else(|| Failure::new("a client waited too long for the lock"))
}

fn release(lock: &str, Client { connection, owner }: &mut Client) -> Result<(), Failure> {
    Ok(redis::cmd("LOCK.RELEASE").arg(lock).arg(owner).exec(connection)?)
}
