//! Plain commands, without a client library. Each client is a thread with its own connection and owner.

use crate::job_run::{HOLD, JobRun};
use lockward_bench::peers::job::{Job, PERMITS};
use lockward_bench::request::{owner, request};
use lockward_tests::{Client, Reply};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(70);
/// The pause between two tries of a client that polls, in milliseconds: redsync's default.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 50..=250;

#[derive(Clone, Copy, Debug)]
pub enum Commands {
    /// LOCK.ACQUIRE and LOCK.RELEASE as README.md advises: with a wait limit, HOLDS and TOKEN.
    Lockward,
    /// SET NX PX, and DELEX of Redis 8.4, which compares the owner.
    Delex,
    /// SET NX PX, and DELIFEQ of Valkey 9, which compares the owner.
    Delifeq,
}

impl Commands {
    pub const fn version(self) -> &'static str {
        match self {
            Self::Lockward => env!("CARGO_PKG_VERSION"),
            Self::Delex | Self::Delifeq => "-",
        }
    }

    pub const fn notes(self) -> &'static str {
        match self {
            Self::Lockward => "a connection for each client; lease 30 s, not renewed",
            Self::Delex | Self::Delifeq => {
                "a connection for each client; lease 30 s, not renewed; tries 50 to 250 ms apart"
            }
        }
    }

    pub fn run_clients(self, port: u16, job_run: JobRun, clients: usize) -> Vec<Vec<i64>> {
        let connections: Vec<Client> =
            (0..clients).map(|_| Client::connect(port).expect("a connection")).collect();
        thread::scope(|scope| {
            let clients = connections.into_iter().enumerate().map(|(client, connection)| {
                let work = move || self.run(connection, client, job_run);
                thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, work).expect("a thread")
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|client| client.join().expect("a client that comes to its end")).collect()
        })
    }

    fn run(self, mut connection: Client, client: usize, job_run: JobRun) -> Vec<i64> {
        let (key, owner) = (job_run.key(client), owner(client));
        let acquire = self.acquire(&key, &owner, job_run.job, client);
        let mut tenures = Vec::new();
        while !job_run.is_over() {
            let asked = Instant::now();
            let mut reply = call(&mut connection, &acquire);
            // SET with NX replies with nil if the key exists.
            while reply == Reply::NullBulk {
                thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
                if job_run.is_over() {
                    return tenures;
                }
                reply = call(&mut connection, &acquire);
            }
            let granted = Instant::now();
            if job_run.job.is_shared() {
                thread::sleep(HOLD);
            } else if job_run.job == Job::Contended {
                thread::yield_now();
            }
            tenures.extend(job_run.tenure([asked, granted, Instant::now()]));
            let (release, released) = match self {
                Self::Lockward => {
                    let token = reply.grant().token.to_string();
                    (request(&["LOCK.RELEASE", &key, &owner, "HOLDS", "0", "TOKEN", &token]), Reply::Int(0))
                }
                Self::Delex => (request(&["DELEX", &key, "IFEQ", &owner]), Reply::Int(1)),
                Self::Delifeq => (request(&["DELIFEQ", &key, &owner]), Reply::Int(1)),
            };
            let reply = call(&mut connection, &release);
            assert_eq!(reply, released, "the lock was held until its release");
        }
        tenures
    }

    fn acquire(self, key: &str, owner: &str, job: Job, client: usize) -> Vec<u8> {
        match self {
            Self::Lockward => {
                let acquire = ["LOCK.ACQUIRE", key, owner, "PX", "30000", "BLOCK", "60000", "HOLDS", "1"];
                let (permits, weight) = (PERMITS.to_string(), job.weight(client).to_string());
                let options: &[&str] = match job {
                    Job::Readers if !job.is_writer(client) => &["SHARED"],
                    Job::Permits | Job::Weights => &["SLOTS", &permits, "WEIGHT", &weight],
                    Job::Uncontended | Job::Contended | Job::Readers => &[],
                };
                request(&[&acquire, options].concat())
            }
            Self::Delex | Self::Delifeq => request(&["SET", key, owner, "NX", "PX", "30000"]),
        }
    }
}

fn call(connection: &mut Client, request: &[u8]) -> Reply {
    connection.send_bytes(request);
    connection.reply_within(PATIENCE).expect("a reply")
}
