//! A slot moves to another node. Each lock in the slot has a waiter. The x axis is the number of these locks. The
//! curves are the time of the move, and the longest PING of the node that gives the slot away.

use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LONG_LEASE, fill, owner};
use crate::results::{Row, Series, Unit};
use crate::scene::{Scene, Side, longest_ping};
use lockward_tests::{Client, Cluster, Reply, raise_open_files, slot_of};
use std::time::{Duration, Instant};

const COUNTS: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 2;

pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    raise_open_files(25_000);
    for count in COUNTS {
        let [mut whole, mut longest] = <[Series; 2]>::default();
        for _ in 0..ROUNDS {
            let moved = move_slot(count);
            whole.push(moved.0);
            longest.push(moved.1);
        }
        for (what, series) in [
            ("time until no client waits at the old node, with MIGRATE", whole),
            ("longest PING at the old node, with MIGRATE", longest),
        ] {
            // Other load of the machine can only add time.
            report.row(Row::figure(what, Unit::Nanoseconds, &series.least()).at(count, "lock"));
        }
    }
}

/// Moves a slot with this number of locks to another node. Returns the time until no client waits any more, and the
/// longest PING of the node that gives the slot away, in nanoseconds.
fn move_slot(locks: usize) -> (f64, f64) {
    let setup = Scene::setup(Side::Lockward, &["cluster-enabled yes", "cluster-node-timeout 15000"]);
    let cluster = Cluster::start_primaries(setup, 2);
    let key = |number: usize| format!("{{slot}}:{number}");
    let (from, to) = cluster.owner_and_other("{slot}");
    let mut control = from.client();
    fill(&mut control, 0..locks, |number| Side::Lockward.take(&key(number), LONG_LEASE));
    let waiter = |number: usize| {
        let mut client = from.client();
        client.send_bytes(&Side::Lockward.wait(&key(number), &owner(number), Duration::ZERO));
        client
    };
    let mut waiters: Vec<Client> = (0..locks).map(waiter).collect();
    control.see_blocked(locks as i64);
    let mut whole = Duration::ZERO;
    let longest = longest_ping(from.client(), || {
        let begin = Instant::now();
        let moving = cluster.begin_to_move(slot_of("{slot}"), to);
        let port = to.port().to_string();
        for keys in (0..locks).map(key).collect::<Vec<_>>().chunks(10) {
            let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"].into_iter();
            control.call(migrate.chain(keys.iter().map(String::as_str)).collect::<Vec<_>>());
        }
        moving.end();
        control.see_blocked(0);
        whole = begin.elapsed();
    });
    for waiter in &mut waiters {
        assert!(matches!(waiter.reply(), Reply::Error(_)), "the waiter asks the new node");
    }
    (whole.as_nanos() as f64, longest * 1e6)
}
