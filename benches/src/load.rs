//! The CPU time of loading a snapshot of a million locks, compared with a million strings with a TTL.

use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{owner, request};
use crate::results::{Row, Target};
use crate::rounds::Series;
use crate::server::{Loaded, Server};

const KEYS: usize = 1_000_000;
const ROUNDS: usize = 5;
/// A lease that lasts beyond the last round, in milliseconds.
const LONG_LEASE: &str = "36000000";

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let lock = saved(|key, owner| request(&["LOCK.ACQUIRE", key, owner, "PX", LONG_LEASE]));
    let string = saved(|key, owner| request(&["SET", key, owner, "PX", LONG_LEASE]));
    let (mut lock_cpu, mut string_cpu) = (Series::default(), Series::default());
    for round in 0..ROUNDS {
        report.progress(round, ROUNDS);
        let nothing = started(&[]).cpu().settled().as_nanos() as f64;
        for (snapshot, cpu) in [(&lock, &mut lock_cpu), (&string, &mut string_cpu)] {
            let loaded = started(&[&format!("dir {}", snapshot.dir().display())]);
            cpu.push((loaded.cpu().settled().as_nanos() as f64 - nothing) / KEYS as f64);
            let there = loaded.client().info("keyspace");
            assert!(there.contains(&format!("keys={KEYS},")), "all keys are loaded: {there}");
        }
    }
    let what = "loading a million locks from a snapshot";
    let row = Row::ratio("load/lock", what, &lock_cpu, "a million strings with a TTL", &string_cpu);
    report.row(row.target(Target::AtMost(1.5)));
}

fn started(config: &[&str]) -> Server {
    Server::start_with(Loaded::Lockward, Place::Together, config)
}

/// Returns a server that has ended. Its directory has a snapshot with a million keys.
fn saved(make: impl Fn(&str, &str) -> Vec<u8>) -> Server {
    let mut server = started(&[]);
    let mut client = server.client();
    let keys: Vec<usize> = (0..KEYS).collect();
    for keys in keys.chunks(1_000) {
        let requests = keys.iter().map(|key| make(&format!("lock:{key:07}"), &owner(*key)));
        client.pipeline(&requests.collect::<Vec<_>>());
    }
    client.call(&["SAVE"]);
    drop(client);
    server.end();
    server
}
