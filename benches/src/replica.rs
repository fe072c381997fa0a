//! Replica lag: the time from a grant until WAIT reports that the replica has applied the grant. Meanwhile other
//! connections acquire and release as fast as they can. The x axis is the number of these connections. SET NX PX + DEL
//! is measured for comparison.

use crate::clients::Clients;
use crate::pairs::Pair;
use crate::placement::{Place, be_client_of};
use crate::report::{Report, alternate};
use crate::request::{owner, request};
use crate::results::{Row, Series, Unit};
use crate::server::{Loaded, setup, start_replica_of};
use lockward_tests::Server;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CONNECTIONS: [usize; 5] = [1, 10, 50, 200, 1_000];
const ROUNDS: usize = 5;
const MEDIAN: &str = "replica lag, median";
const LATE: &str = "replica lag, 99th percentile";
const SET: &str = "SET NX PX + DEL";
/// How long a round takes.
const ROUND: Duration = Duration::from_millis(500);
/// The pause between two samples, so that the samples add little load.
const PAUSE: Duration = Duration::from_millis(1);
/// The number of pairs that a connection sends before it checks whether the round is over.
const TIMES: usize = 5;

/// Measures all numbers of connections.
pub fn measure(report: &mut Report) {
    // The replica gets a CPU whenever it has work, as if it had its own machine. The primary and its clients share the
    // other CPUs.
    be_client_of(Place::Anywhere);
    let primary = setup(Loaded::Lockward, Place::Anywhere, &[]).start();
    let _replica = start_replica_of(&primary);
    for connections in CONNECTIONS {
        let measured = alternate(ROUNDS, 2, |which| {
            let lag = lag_beside(&primary, [Pair::Lock, Pair::Set][which], connections);
            [lag.median(), lag.quantile(0.99)]
        });
        let [[median, late], [median_of_set, late_of_set]] = &measured[..] else { panic!("two kinds") };
        for (what, ours, theirs) in [(MEDIAN, median, median_of_set), (LATE, late, late_of_set)] {
            let row = Row::figure(what, Unit::Nanoseconds, ours).against(SET, theirs);
            report.row(row.at(connections, "connection"));
        }
    }
    let title = "Replica lag while connections acquire and release, 99th percentile";
    report.plot("replica-lag", title, ["connections", "milliseconds"], LATE, ["Lockward", SET], 1e6);
}

/// The lag in nanoseconds while `connections` connections send pairs. Each connection has one command in flight.
fn lag_beside(primary: &Server, pair: Pair, connections: usize) -> Series {
    let mut clients = Clients::open(primary.port(), connections);
    let batches = pair.batches(primary, connections, 1);
    let mut sampler = primary.client();
    let [take, give] = pair.requests(primary, "lag:key", &owner(0));
    let take = [take, request(&["WAIT", "1", "60000"])].concat();
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                clients.run(&batches, TIMES);
            }
        });
        let mut lag = Series::default();
        let begin = Instant::now();
        while begin.elapsed() < ROUND {
            sampler.send_bytes(&take);
            sampler.reply();
            let granted = Instant::now();
            assert_eq!(sampler.reply().int(), 1, "replicas");
            lag.push(granted.elapsed().as_nanos() as f64);
            sampler.send_bytes(&give);
            sampler.reply();
            thread::sleep(PAUSE);
        }
        stopped.store(true, Ordering::Relaxed);
        lag
    })
}
