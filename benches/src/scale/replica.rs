//! Replica lag: the time from a grant until WAIT reports that the replica has applied the grant. Meanwhile other
//! connections acquire and release as fast as they can. The x axis is the number of these connections. SET NX PX + DEL
//! is measured for comparison.

use super::curves::{Point, axes, plot};
use crate::pairs::Pair;
use crate::pipeline::Pipeline;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{owner, request};
use crate::results::Unit;
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub const STAGE: &str = "replica";

const CONNECTIONS: [usize; 5] = [1, 10, 50, 200, 1_000];
const ROUNDS: usize = 5;
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
    let primary = Server::start_with(Loaded::Lockward, Place::Anywhere, &[]);
    let _replica = primary.start_replica();
    for connections in CONNECTIONS {
        let measured = report.alternate(ROUNDS, 2, |which| {
            let (lag, pairs) = lag_beside(&primary, [Pair::Lock, Pair::Set][which], connections);
            [lag.quantile(0.5), lag.quantile(0.99), pairs]
        });
        let measured: [_; 2] = measured.try_into().expect("two kinds of pairs");
        let [[lock_median, lock_late, lock_pairs], [set_median, set_late, set_pairs]] = &measured;
        let point = Point::new(STAGE, connections, "connection");
        let against = "SET NX PX + DEL";
        let median = ("median", "replica lag, median", Unit::Nanoseconds);
        point.compared(report, median, against, [lock_median, set_median]);
        let late = ("late", "replica lag, 99th percentile", Unit::Nanoseconds);
        point.compared(report, late, against, [lock_late, set_late]);
        point.compared(
            report,
            ("pairs", "pairs of the other connections", Unit::Rate),
            against,
            [lock_pairs, set_pairs],
        );
    }
    let axes = axes(
        &format!("{STAGE}-lag"),
        "Replica lag while connections acquire and release",
        "connections",
        "milliseconds",
    );
    let lines = [
        ("99th percentile", "late"),
        ("median", "median"),
        ("SET NX PX + DEL, 99th percentile", "late-against"),
    ];
    plot(report, axes, &lines, 1e6);
}

/// The lag in nanoseconds while `connections` connections send pairs, and the number of these pairs a second. Each
/// connection has one command in flight.
fn lag_beside(primary: &Server, pair: Pair, connections: usize) -> (Series, f64) {
    let mut pipeline = Pipeline::open(primary, connections);
    let batches = pair.batches(primary, connections, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let load = thread::spawn(move || {
        let (begin, mut pairs) = (Instant::now(), 0);
        while !stopped.load(Ordering::Relaxed) {
            pipeline.run(&batches, TIMES);
            pairs += connections * TIMES;
        }
        pairs as f64 / begin.elapsed().as_secs_f64()
    });
    let mut lag = Series::default();
    let mut sampler = primary.connect();
    let [(take, _), (give, _)] = pair.commands(&mut primary.client(), "lag:key", &owner(0));
    let take = [take, request(&["WAIT", "1", "60000"])].concat();
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
    stop.store(true, Ordering::Relaxed);
    (lag, load.join().expect("pairs"))
}
