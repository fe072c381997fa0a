//! The memory of a held lock and of a waiting client.

use crate::clients::{Client, Clients};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::results::{Row, Target, Unit};
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use lockward_tests::raise_open_files;
use std::thread;
use std::time::{Duration, Instant};

const KEYS: usize = 100_000;
const WAITERS: usize = 5_000;
/// The measurement waits until the memory has not decreased for this time, because the server shrinks the buffers of a
/// client after five idle seconds.
const SETTLED: Duration = Duration::from_secs(6);

/// Measures locks and hashes, clients that wait for a lock, and idle clients.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let lock = of_keys(|key, owner| vec![request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE])]);
    let hash =
        of_keys(|key, owner| vec![request(&["HSET", key, owner, "1"]), request(&["PEXPIRE", key, LEASE])]);
    let (what, against) =
        ("memory of a held lock, owner `UUID:thread`", "a re-entrant hash lock (HSET + PEXPIRE)");
    let row = Row::ratio("memory/lock", what, &lock, against, &hash).of(Unit::Bytes);
    report.row(row.target(Target::AtMost(1.05)));

    let crowds = [Loaded::Lockward, Loaded::Empty].map(Crowd::start);
    let [lock, empty] = crowds.map(Crowd::settled);
    let what = "memory of a waiter, minus the memory of a client that an empty module blocks";
    let row = Row::figure("memory/waiter", what, Unit::Bytes, &Series::once(lock - empty));
    report.row(row.target(Target::AtMost(1024.0)));
}

/// Bytes of used memory for each key.
fn of_keys(make: impl Fn(&str, &str) -> Vec<Vec<u8>>) -> Series {
    let server = Server::start(&[]);
    let mut client = server.client();
    let before = client.info_number("memory", "used_memory");
    let keys: Vec<usize> = (0..KEYS).collect();
    for keys in keys.chunks(1_000) {
        let requests = keys.iter().flat_map(|key| make(&format!("lock:{key:07}"), &owner(*key)));
        client.pipeline(&requests.collect::<Vec<_>>());
    }
    // Closing the connection frees its large buffer.
    drop(client);
    Series::once((server.client().info_number("memory", "used_memory") - before) / KEYS as f64)
}

/// A server with clients that wait.
struct Crowd {
    _server: Server,
    control: Client,
    _waiters: Clients,
    /// The used memory before the clients connected.
    before: f64,
}

impl Crowd {
    fn start(loaded: Loaded) -> Self {
        raise_open_files(2 * WAITERS as u64 + 200);
        let config = format!("maxclients {}", WAITERS + 50);
        let server = Server::start_with(loaded, Place::Together, &[&config]);
        let mut control = server.client();
        let command = if loaded == Loaded::Lockward { "LOCK.ACQUIRE" } else { "EMPTY.BLOCK" };
        let wait = |owner: &str| request(&[command, "memory:wait", owner, "PX", LEASE, "BLOCK", "0"]);
        if loaded == Loaded::Lockward {
            control.pipeline(&[wait("holder")]);
        }
        let before = control.info_number("memory", "used_memory");
        let mut waiters = server.clients(WAITERS);
        for who in 0..WAITERS {
            waiters.send(who, &wait(&owner(who)));
            control.call(&["PING"]);
        }
        assert_eq!(control.info_number("clients", "blocked_clients"), WAITERS as f64, "clients that wait");
        Self { _server: server, control, _waiters: waiters, before }
    }

    /// Bytes of used memory for each waiter, after the server has shrunk the waiters' buffers.
    fn settled(mut self) -> f64 {
        let mut least = (f64::MAX, Instant::now());
        while least.1.elapsed() < SETTLED {
            let used = self.control.info_number("memory", "used_memory");
            if used < least.0 * 0.999 {
                least = (used, Instant::now());
            }
            thread::sleep(Duration::from_millis(100));
        }
        (self.control.info_number("memory", "used_memory") - self.before) / WAITERS as f64
    }
}
