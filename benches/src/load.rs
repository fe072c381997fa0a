//! The CPU time of loading a snapshot of a million locks, compared with a million strings with a TTL.

use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LONG_LEASE, owner, request};
use crate::results::{Row, Target};
use crate::rounds::Series;
use crate::server::Server;

const KEYS: usize = 1_000_000;
const ROUNDS: usize = 5;

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let lock = saved(|key, owner| request(&["LOCK.ACQUIRE", key, owner, "PX", LONG_LEASE]));
    let string = saved(|key, owner| request(&["SET", key, owner, "PX", LONG_LEASE]));
    let (mut lock_cpu, mut string_cpu) = (Series::default(), Series::default());
    for round in 0..ROUNDS {
        report.progress(round, ROUNDS);
        let nothing = Server::start(&[]).cpu().settled().as_nanos() as f64;
        for (snapshot, cpu) in [(&lock, &mut lock_cpu), (&string, &mut string_cpu)] {
            let loaded = Server::start(&[&format!("dir {}", snapshot.dir().display())]);
            cpu.push((loaded.cpu().settled().as_nanos() as f64 - nothing) / KEYS as f64);
            let there = loaded.client().info("keyspace");
            assert!(there.contains(&format!("keys={KEYS},")), "all keys are loaded: {there}");
        }
    }
    let what = "loading a million locks from a snapshot";
    let row = Row::ratio("load/lock", what, &lock_cpu, "a million strings with a TTL", &string_cpu);
    report.row(row.target(Target::AtMost(1.5)));
}

/// Returns a server that has ended. Its directory has a snapshot with a million keys.
fn saved(make: impl Fn(&str, &str) -> Vec<u8>) -> Server {
    let mut server = Server::start(&[]);
    let mut client = server.client();
    client.fill(0..KEYS, |key| make(&format!("lock:{key:07}"), &owner(key)));
    client.call(&["SAVE"]);
    drop(client);
    server.end();
    server
}
