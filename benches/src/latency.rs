//! How long clients wait for the reply to a command or for a hand-off. Also, how many commands a second a server executes at
//! each depth of the pipeline.

use crate::handoff::{Costs, Kind, Queues};
use crate::latencies::Latencies;
use crate::pairs::{CONNECTIONS, Pair};
use crate::pipeline::Pipeline;
use crate::placement::{Place, be_client_of};
use crate::plot::{Line, Plot};
use crate::report::Report;
use crate::results::{Row, Unit};
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use std::time::Instant;

/// Depths of the pipeline.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Pairs of commands in a round at one depth.
const PAIRS: usize = 12_800;
const ROUNDS: usize = 15;
/// Pairs of commands in a round, sent one after the other.
const ALONE: usize = 1_000;
/// Waiters in the queues whose hand-offs are timed.
const WAITERS: usize = 50;

/// Measures pairs a second at each depth of the pipeline.
pub fn throughput(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = Server::start_with(Loaded::Lockward, Place::Apart, &[]);
    let mut pipeline = Pipeline::open(&server, CONNECTIONS);
    let kinds = [Pair::Lock, Pair::Set, Pair::Hash];
    let batches = DEPTHS.map(|depth| kinds.map(|pair| pair.batches(&server, CONNECTIONS, depth)));
    let mut seconds = DEPTHS.map(|_| kinds.map(|_| Series::default()));
    for round in 0..=ROUNDS {
        report.progress(round, ROUNDS);
        for (at, depth) in DEPTHS.into_iter().enumerate() {
            for offset in 0..kinds.len() {
                let which = (round + offset) % kinds.len();
                let times = PAIRS / CONNECTIONS / (depth / 2).max(1);
                let begin = Instant::now();
                pipeline.run(&batches[at][which], times);
                let pairs = (CONNECTIONS * times * (depth / 2).max(1)) as f64;
                if round > 0 {
                    // The first round is for warming up.
                    seconds[at][which].push(begin.elapsed().as_nanos() as f64 / pairs);
                }
            }
        }
    }
    for (depth, [lock, set, _]) in DEPTHS.iter().zip(&seconds) {
        let row = Row::ratio(
            &format!("throughput/{depth}"),
            "time of acquire + release",
            lock,
            "SET NX PX + DEL",
            set,
        );
        report.row(row.at(&format!("depth {depth}")));
    }
    let lines = ["LOCK.ACQUIRE + LOCK.RELEASE", "SET NX PX + DEL", "the hash lock in Lua"];
    report.plot(Plot {
        name: "throughput".to_owned(),
        title: format!("Throughput by pipeline depth, {CONNECTIONS} connections"),
        hint: "Higher is better. Server and client process have separate CPUs.".to_owned(),
        x: "pipeline depth".to_owned(),
        y: "thousand pairs a second".to_owned(),
        lines: lines
            .iter()
            .enumerate()
            .map(|(which, name)| Line {
                name: (*name).to_owned(),
                points: DEPTHS
                    .iter()
                    .zip(&seconds)
                    .map(|(depth, series)| (*depth as f64, 1e6 / series[which].median()))
                    .collect(),
            })
            .collect(),
    });
}

/// Measures the distribution of latencies.
pub fn distribution(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = Server::start_with(Loaded::Lockward, Place::Apart, &[]);
    let mut client = server.clients(1);
    let kinds = [Pair::Lock, Pair::Set, Pair::Ping];
    let mut alone = kinds.map(|_| Latencies::default());
    let mut queues = Queues::start(WAITERS, Place::Apart);
    let mut handed = [(Kind::Lock, Costs::default()), (Kind::List, Costs::default())];
    for round in 0..ROUNDS {
        report.progress(round, ROUNDS);
        for (pair, latencies) in kinds.iter().zip(&mut alone) {
            let batch = pair.batch(&server, 0, 1);
            for part in batch.0.iter().cycle().take(2 * ALONE) {
                let sent = Instant::now();
                client.send(0, &part.requests);
                let arrival = client.arrival();
                latencies.record(arrival.at - sent);
                part.expected[0].check(&arrival.reply);
            }
        }
        for (kind, costs) in &mut handed {
            queues.round(*kind, costs);
        }
    }
    let [lock, set, ping] = &alone;
    let [(_, lock_handed), (_, list_handed)] = &handed;
    let all = [
        ("uncontended", "latency of LOCK.ACQUIRE or LOCK.RELEASE, uncontended", lock),
        ("set", "latency of SET NX PX or DEL", set),
        ("ping", "latency of PING", ping),
        ("handoff", "latency from LOCK.RELEASE to the next grant", &lock_handed.latencies),
        ("list", "latency from LPUSH to the next BLPOP", &list_handed.latencies),
    ];
    for (name, what, latencies) in all {
        for (part, short, percent) in [(0.5, "median", "median"), (0.99, "p99", "99th percentile")] {
            let series = Series::once(latencies.quantile(part));
            let name = format!("latency/{name}-{short}");
            report.row(Row::figure(&name, what, Unit::Nanoseconds, &series).at(percent));
        }
    }
}
