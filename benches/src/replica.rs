//! Replica lag: the time from a grant until WAIT reports that the replica has applied the grant. Meanwhile other
//! connections acquire and release as fast as they can. The x axis is the number of these connections. SET NX PX + DEL
//! is measured for comparison.

use crate::pairs::Pair;
use crate::pipeline::Pipeline;
use crate::placement::{Place, be_client_of};
use crate::plot::{Line, Plot};
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
    let mut lines = ["99th percentile", "median", "SET NX PX + DEL, 99th percentile"]
        .map(|name| Line { name: name.to_owned(), points: Vec::new() });
    for connections in CONNECTIONS {
        let measured = alternate(ROUNDS, 2, |which| {
            let (lag, pairs) = lag_beside(&primary, [Pair::Lock, Pair::Set][which], connections);
            [lag.median(), lag.quantile(0.99), pairs]
        });
        let [[median, late, pairs], [_, late_of_set, _]] = &measured[..] else { panic!("two kinds") };
        for (line, series) in lines.iter_mut().zip([late, median, late_of_set]) {
            line.points.push((connections as f64, series.median() / 1e6));
        }
        for (what, unit, series) in [
            ("replica lag, median", Unit::Nanoseconds, median),
            ("replica lag, 99th percentile", Unit::Nanoseconds, late),
            ("pairs of the other connections", Unit::Rate, pairs),
        ] {
            report.row(Row::figure(what, unit, series).at(connections, "connection"));
        }
    }
    let title = "Replica lag while connections acquire and release";
    report.plot(Plot::new("replica-lag", title, "connections", "milliseconds", lines));
}

/// The lag in nanoseconds while `connections` connections send pairs, and the number of these pairs a second. Each
/// connection has one command in flight.
fn lag_beside(primary: &Server, pair: Pair, connections: usize) -> (Series, f64) {
    let mut pipeline = Pipeline::open(primary, connections);
    let batches = pair.batches(primary, connections, 1);
    let mut sampler = primary.client();
    let [(take, _), (give, _)] = pair.commands(primary, "lag:key", &owner(0));
    let take = [take, request(&["WAIT", "1", "60000"])].concat();
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (begin, mut pairs) = (Instant::now(), 0);
            while !stopped.load(Ordering::Relaxed) {
                pipeline.run(&batches, TIMES);
                pairs += connections * TIMES;
            }
            pairs as f64 / begin.elapsed().as_secs_f64()
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
        (lag, load.join().expect("pairs"))
    })
}
