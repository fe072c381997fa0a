//! Plain commands, without a client library. Each client is a thread with its own connection and owner.

use crate::job_run::{HOLD, JobRun, Limit, key, limit, microseconds};
use lockward_bench::peers::job::{Job, PERMITS};
use lockward_bench::request::{owner, request};
use lockward_tests::{Client, Reply};
use std::thread;
use std::time::{Duration, Instant};

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(70);
/// The pause between two tries of a client that polls, in milliseconds: redsync's default.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 50..=250;

/// The commands with which a client acquires and releases a lock.
#[derive(Clone, Copy, Debug)]
pub enum Commands {
    /// LOCK.ACQUIRE and LOCK.RELEASE as README.md advises: with a wait limit, HOLDS and TOKEN.
    Lockward,
    /// SET NX PX, and DELEX of Redis 8.4, which compares the owner.
    Delex,
    /// SET NX PX, and DELIFEQ of Valkey 9, which compares the owner.
    Delifeq,
}

/// The requests of a client.
struct Requests {
    commands: Commands,
    key: String,
    owner: String,
    acquire: Vec<u8>,
}

impl Requests {
    fn new(commands: Commands, job_run: &JobRun, client: usize) -> Self {
        let (key, owner) = (key(job_run.job, client), owner(client));
        let (permits, weight);
        let options: &[&str] = match limit(job_run.job, client) {
            Limit::Exclusive => &[],
            Limit::Shared => &["SHARED"],
            Limit::Permits(taken) => {
                (permits, weight) = (PERMITS.to_string(), taken.to_string());
                &["SLOTS", &permits, "WEIGHT", &weight]
            }
        };
        let acquire = match commands {
            Commands::Lockward => {
                let words = ["LOCK.ACQUIRE", &key, &owner, "PX", "30000", "BLOCK", "60000", "HOLDS", "1"];
                request(&[&words, options].concat())
            }
            Commands::Delex | Commands::Delifeq => request(&["SET", &key, &owner, "NX", "PX", "30000"]),
        };
        Self { commands, key, owner, acquire }
    }

    /// Acquires the lock and returns the request that releases it. Returns `None` if a client that polls has no lock at
    /// the end of the job.
    fn acquire(&self, connection: &mut Client, job_run: &JobRun) -> Option<Vec<u8>> {
        let (key, owner) = (&self.key, &self.owner);
        loop {
            let reply = call(connection, &self.acquire);
            match self.commands {
                Commands::Lockward => {
                    let token = reply.grant().token.to_string();
                    return Some(request(&["LOCK.RELEASE", key, owner, "HOLDS", "0", "TOKEN", &token]));
                }
                Commands::Delex | Commands::Delifeq if reply == Reply::NullBulk => {}
                Commands::Delex => return Some(request(&["DELEX", key, "IFEQ", owner])),
                Commands::Delifeq => return Some(request(&["DELIFEQ", key, owner])),
            }
            thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
            if job_run.is_over(Instant::now()) {
                return None;
            }
        }
    }

    /// The reply to a release that ended the tenure.
    const fn released(&self) -> Reply {
        match self.commands {
            Commands::Lockward => Reply::Int(0),
            Commands::Delex | Commands::Delifeq => Reply::Int(1),
        }
    }
}

impl Commands {
    /// The version that the table shows.
    pub const fn version(self) -> &'static str {
        match self {
            Self::Lockward => env!("CARGO_PKG_VERSION"),
            Self::Delex | Self::Delifeq => "-",
        }
    }

    /// How the commands are used.
    pub const fn notes(self) -> &'static str {
        match self {
            Self::Lockward => "a connection for each client; lease 30 s, not renewed",
            Self::Delex | Self::Delifeq => {
                "a connection for each client; lease 30 s, not renewed; tries 50 to 250 ms apart"
            }
        }
    }

    /// Runs the job with a client for each connection. Returns how long each client's acquisitions took, in
    /// microseconds.
    pub fn run_clients(self, connections: Vec<Client>, job_run: &JobRun) -> Vec<Vec<u32>> {
        thread::scope(|scope| {
            let clients: Vec<_> = connections
                .into_iter()
                .enumerate()
                .map(|(client, connection)| {
                    let work =
                        move || run(connection, &Requests::new(self, job_run, client), client, job_run);
                    thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, work).expect("a thread")
                })
                .collect();
            clients.into_iter().map(|client| client.join().expect("a client that comes to its end")).collect()
        })
    }
}

fn run(mut connection: Client, requests: &Requests, client: usize, job_run: &JobRun) -> Vec<u32> {
    let mut times = Vec::new();
    loop {
        let asked = Instant::now();
        if job_run.is_over(asked) {
            return times;
        }
        let Some(release) = requests.acquire(&mut connection, job_run) else {
            return times;
        };
        let granted = Instant::now();
        let is_counted = job_run.counts(granted);
        // A client that gets the lock after the end of the job only releases it.
        if !job_run.is_over(granted) {
            if job_run.job.is_shared() {
                job_run.enter(client, is_counted);
                thread::sleep(HOLD);
                job_run.leave(client);
            } else if job_run.job == Job::Contended {
                let read = job_run.read(is_counted);
                thread::yield_now();
                job_run.write(client, read, is_counted);
            }
        }
        assert_eq!(
            call(&mut connection, &release),
            requests.released(),
            "the lock was held until its release"
        );
        if is_counted {
            times.push(microseconds(asked, granted));
        }
    }
}

fn call(connection: &mut Client, request: &[u8]) -> Reply {
    connection.send_bytes(request);
    connection.reply_within(PATIENCE).expect("a reply")
}
