//! The memory of a held lock and of a waiting client.

use crate::placement::{Place, be_client_of};
use crate::queues::{Kind, Queues, Shape, allow_waiters};
use crate::report::Report;
use crate::request::{LEASE, fill, owner, request, used_memory};
use crate::results::{Row, Series, Unit};
use crate::server::start;

const KEYS: usize = 100_000;
const WAITERS: usize = 5_000;

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let lock = of_key(|key, owner| request(&["LOCK.ACQUIRE", key, owner, "PX", LEASE]));
    let script = "redis.call('HSET', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], ARGV[2])";
    let hash = of_key(|key, owner| request(&["EVAL", script, "1", key, owner, LEASE]));
    let (what, against) =
        ("memory of a held lock, owner `UUID:thread`", "a re-entrant hash lock (HSET + PEXPIRE)");
    report.row(Row::ratio(what, &lock, against, &hash).at_most(1.05));

    allow_waiters(2 * WAITERS);
    let [lock, empty] = [Kind::Lock, Kind::Nothing].map(|kind| {
        let mut queues = Queues::start(Shape::One, kind, Place::Together, WAITERS);
        let before = queues.settled_memory();
        queues.connect(WAITERS);
        queues.wait(WAITERS);
        (queues.settled_memory() - before) / WAITERS as f64
    });
    let what = "memory of a waiter, minus the memory of a client that an empty module blocks";
    report.row(Row::figure(what, Unit::Bytes, &Series::once(lock - empty)).at_most(1024.0));
}

/// The bytes of used memory for each key. `make` returns the request that creates a key for an owner.
fn of_key(make: impl Fn(&str, &str) -> Vec<u8>) -> Series {
    let server = start(&[]);
    let before = used_memory(&mut server.client());
    fill(&mut server.client(), 0..KEYS, |key| make(&format!("lock:{key:07}"), &owner(key)));
    // The connection that sent the requests is closed, so its large buffer is freed.
    Series::once((used_memory(&mut server.client()) - before) / KEYS as f64)
}
