//! The memory of a held lock and of a waiting client.

use crate::open_files::allow_waiters;
use crate::placement::{Place, be_client_of};
use crate::queues::{Kind, Queues, Shape};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::results::{Row, Target, Unit};
use crate::rounds::Series;
use crate::server::Server;

const KEYS: usize = 100_000;
const WAITERS: usize = 5_000;

/// Measures the memory of a lock, compared with a hash. Then measures the memory of a client that waits for a lock,
/// minus the memory of a client that an empty module blocks.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let lock = of_keys(&[|key, owner| request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE])]);
    let hash = of_keys(&[
        |key, owner| request(&["HSET", key, owner, "1"]),
        |key, _| request(&["PEXPIRE", key, LEASE]),
    ]);
    let (what, against) =
        ("memory of a held lock, owner `UUID:thread`", "a re-entrant hash lock (HSET + PEXPIRE)");
    let row = Row::ratio("memory/lock", what, &lock, against, &hash).of(Unit::Bytes);
    report.row(row.target(Target::AtMost(1.05)));

    allow_waiters(2 * WAITERS);
    let servers = [Kind::Lock, Kind::Nothing].map(|kind| {
        let mut queues = Queues::start(Shape::One, kind, Place::Together, WAITERS);
        let before = queues.used_memory();
        queues.connect(WAITERS);
        queues.wait(WAITERS);
        (queues, before)
    });
    let [lock, empty] =
        servers.map(|(mut queues, before)| (queues.settled_memory() - before) / WAITERS as f64);
    let what = "memory of a waiter, minus the memory of a client that an empty module blocks";
    let row = Row::figure("memory/waiter", what, Unit::Bytes, &Series::once(lock - empty));
    report.row(row.target(Target::AtMost(1024.0)));
}

/// Bytes of used memory for each key. Each of `requests` makes a request from a key and its owner.
fn of_keys(requests: &[fn(&str, &str) -> Vec<u8>]) -> Series {
    let server = Server::start(&[]);
    let mut client = server.client();
    let before = client.info_number("memory", "used_memory");
    for make in requests {
        client.fill(0..KEYS, |key| make(&format!("lock:{key:07}"), &owner(key)));
    }
    // Closing the connection frees its large buffer.
    drop(client);
    Series::once((server.client().info_number("memory", "used_memory") - before) / KEYS as f64)
}
