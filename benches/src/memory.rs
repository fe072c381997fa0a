//! The memory of a held lock and of a waiting client.

use crate::clients::{Client, Clients};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::results::{Row, Target, Unit};
use crate::rounds::Series;
use crate::server::{Loaded, Server, wait_for};
use lockward_tests::raise_open_files;
use std::thread;
use std::time::{Duration, Instant};

/// The number of keys.
const KEYS: usize = 100_000;
/// The number of waiters.
const WAITERS: usize = 5_000;
/// The number of clients that connect at once. It is so small that all of them wait before the server shortens the
/// buffers of the first.
const BURST: usize = 1_000;
/// The number of servers on which each kind is measured.
const ROUNDS: usize = 1;
/// Memory is final when it has not decreased for this long: the server shortens buffers after five idle seconds.
const SETTLED: Duration = Duration::from_secs(6);

/// Measures locks and hashes, clients that wait for a lock, and idle clients.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let (mut lock, mut hash, mut lock_usage, mut hash_usage) = Default::default();
    let (mut new_waiter, mut new_connection) = <(Series, Series)>::default();
    let mut waiting =
        [Loaded::Lockward, Loaded::Empty].map(|module| (module, Series::default(), Series::default()));
    for round in 0..ROUNDS {
        report.progress(round, ROUNDS);
        let acquire = |key: &str, owner: &str| vec![request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE])];
        of_keys(acquire, &mut lock, &mut lock_usage);
        let count = |key: &str, owner: &str| {
            vec![request(&["HSET", key, owner, "1"]), request(&["PEXPIRE", key, LEASE])]
        };
        of_keys(count, &mut hash, &mut hash_usage);
        new_waiter.push(of_new_waiters());
        new_connection.push(of_new_connections());
        let crowds = waiting.each_ref().map(|(module, ..)| Crowd::start(*module));
        for (crowd, (_, used, resident)) in crowds.into_iter().zip(&mut waiting) {
            let (each_used, each_resident) = crowd.settled();
            used.push(each_used);
            resident.push(each_resident);
        }
    }
    let what = "memory of a held lock, owner `UUID:thread`";
    let against = "the hash lock (HSET + PEXPIRE)";
    let row = Row::ratio("memory/lock", what, &lock, against, &hash).of(Unit::Bytes);
    report.row(row.target(Target::AtMost(1.05)));
    let what = "MEMORY USAGE of a held lock";
    report.row(Row::ratio("memory/usage", what, &lock_usage, against, &hash_usage).of(Unit::Bytes));
    let [(_, lock, lock_resident), (_, floor, floor_resident)] = &waiting;
    let against = "a client blocked by an empty module";
    let more = lock.less(floor);
    let row = Row::figure(
        "memory/waiter",
        "memory of a waiting client, minus that of a client blocked by an empty module",
        Unit::Bytes,
        &more,
    );
    report.row(row.target(Target::AtMost(1024.0)));
    let what = "memory of a waiting client that has just connected";
    report.row(Row::figure("memory/waiter-new", what, Unit::Bytes, &new_waiter));
    let what = "memory of a connection that has just sent its first command";
    report.row(Row::figure("memory/connection-new", what, Unit::Bytes, &new_connection));
    let what = "memory of a client that has waited for some seconds";
    report.row(Row::figure("memory/waiter-later", what, Unit::Bytes, lock));
    let what = "memory of a waiting client";
    report.row(Row::ratio("memory/waiter-used", what, lock, against, floor).of(Unit::Bytes));
    let what = "resident memory of a waiting client";
    report.row(
        Row::ratio("memory/waiter-resident", what, lock_resident, against, floor_resident).of(Unit::Bytes),
    );
}

/// Bytes for each key, from the difference in used memory, and from MEMORY USAGE.
fn of_keys(make: impl Fn(&str, &str) -> Vec<Vec<u8>>, used: &mut Series, usage: &mut Series) {
    let server = Server::start(&[]);
    let mut client = server.client();
    let before = client.info_number("memory", "used_memory");
    let keys: Vec<usize> = (0..KEYS).collect();
    for keys in keys.chunks(1_000) {
        let requests: Vec<_> = keys.iter().flat_map(|key| make(&name(*key), &owner(*key))).collect();
        client.pipeline(&requests);
    }
    drop(client);
    let mut client = server.client();
    used.push((client.info_number("memory", "used_memory") - before) / KEYS as f64);
    usage.push(client.call(&["MEMORY", "USAGE", &name(0)]).int() as f64);
}

fn name(key: usize) -> String {
    format!("lock:{key:07}")
}

/// Bytes for each waiter, right after many have connected.
fn of_new_waiters() -> f64 {
    of_new_clients(|control, clients| {
        control.pipeline(&[wait_request("LOCK.ACQUIRE", "holder")]);
        for who in 0..BURST {
            clients.send(who, &wait_request("LOCK.ACQUIRE", &owner(who)));
        }
        wait_for("clients that wait", || control.info_number("clients", "blocked_clients") == BURST as f64);
    })
}

/// Bytes for each connection that has sent one command, right after many have connected.
fn of_new_connections() -> f64 {
    of_new_clients(|_, clients| {
        for who in 0..BURST {
            clients.call(who, &["PING"]);
        }
    })
}

/// Bytes for each client, right after many have connected and sent a request.
fn of_new_clients(ask: impl FnOnce(&mut Client, &mut Clients)) -> f64 {
    raise_open_files(2 * BURST as u64 + 200);
    let server = Server::start(&[]);
    let mut control = server.client();
    let before = control.info_number("memory", "used_memory");
    let mut clients = server.clients(BURST);
    ask(&mut control, &mut clients);
    (control.info_number("memory", "used_memory") - before) / BURST as f64
}

/// The request of an owner that waits without limit.
fn wait_request(command: &str, owner: &str) -> Vec<u8> {
    request(&[command, "memory:wait", owner, "PX", LEASE, "BLOCK", "0"])
}

/// A server with clients that wait.
struct Crowd {
    server: Server,
    control: Client,
    _waiters: Clients,
    /// Memory before the clients connected: used memory and resident memory.
    before: (f64, f64),
}

impl Crowd {
    fn start(loaded: Loaded) -> Self {
        raise_open_files(2 * WAITERS as u64 + 200);
        let config = format!("maxclients {}", WAITERS + 50);
        let server = Server::start_with(loaded, Place::Together, &[&config]);
        let mut control = server.client();
        let command = match loaded {
            Loaded::Lockward => "LOCK.ACQUIRE",
            Loaded::Empty | Loaded::Nothing => "EMPTY.BLOCK",
        };
        let wait = |owner: &str| wait_request(command, owner);
        if loaded == Loaded::Lockward {
            control.pipeline(&[wait("holder")]);
        }
        let before = (control.info_number("memory", "used_memory"), server.resident());
        let mut waiters = server.clients(WAITERS);
        for who in 0..WAITERS {
            waiters.send(who, &wait(&owner(who)));
            control.call(&["PING"]);
        }
        assert_eq!(control.info_number("clients", "blocked_clients"), WAITERS as f64, "clients that wait");
        Self { server, control, _waiters: waiters, before }
    }

    /// Bytes for each waiter, of used and of resident memory, once the server has shortened its buffers.
    fn settled(mut self) -> (f64, f64) {
        let mut least = (f64::MAX, Instant::now());
        while least.1.elapsed() < SETTLED {
            let used = self.control.info_number("memory", "used_memory");
            if used < least.0 * 0.999 {
                least = (used, Instant::now());
            }
            thread::sleep(Duration::from_millis(100));
        }
        let used = self.control.info_number("memory", "used_memory");
        let each = |now: f64, before: f64| (now - before) / WAITERS as f64;
        (each(used, self.before.0), each(self.server.resident(), self.before.1))
    }
}
