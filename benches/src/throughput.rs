//! How long clients wait for the reply to a command or for a hand-off, and how many commands a second a server executes
//! at each pipeline depth.

use crate::handoff::{Kind, Queues};
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

/// Measures pairs a second at each pipeline depth.
pub fn throughput(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = Server::start_with(Loaded::Lockward, Place::Apart, &[]);
    let mut pipeline = Pipeline::open(&server, CONNECTIONS);
    let kinds = [Pair::Lock, Pair::Set, Pair::Hash];
    let batches = DEPTHS.map(|depth| kinds.map(|pair| pair.batches(&server, CONNECTIONS, depth)));
    let seconds = report.alternate(ROUNDS, DEPTHS.len() * kinds.len(), |which| {
        let (depth, kind) = (which / kinds.len(), which % kinds.len());
        let in_batch = (DEPTHS[depth] / 2).max(1);
        let times = PAIRS / CONNECTIONS / in_batch;
        let begin = Instant::now();
        pipeline.run(&batches[depth][kind], times);
        [begin.elapsed().as_nanos() as f64 / (CONNECTIONS * times * in_batch) as f64]
    });
    let seconds: Vec<Series> = seconds.into_iter().map(|[time]| time).collect();
    let of_depths = || DEPTHS.into_iter().zip(seconds.chunks(kinds.len()));
    for (depth, of_depth) in of_depths() {
        let (name, what) = (format!("throughput/{depth}"), "time of acquire + release");
        let row = Row::ratio(&name, what, &of_depth[0], "SET NX PX + DEL", &of_depth[1]);
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
                points: of_depths()
                    .map(|(depth, of_depth)| (depth as f64, 1e6 / of_depth[which].median()))
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
    let mut handed = [Kind::Lock, Kind::List].map(|kind| (kind, Latencies::default()));
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
        for (kind, latencies) in &mut handed {
            latencies.add(&queues.round(*kind).latencies);
        }
    }
    let [lock, set, ping] = &alone;
    let [(_, lock_handed), (_, list_handed)] = &handed;
    let all = [
        ("uncontended", "latency of LOCK.ACQUIRE or LOCK.RELEASE, uncontended", lock),
        ("set", "latency of SET NX PX or DEL", set),
        ("ping", "latency of PING", ping),
        ("handoff", "latency from LOCK.RELEASE to the next grant", lock_handed),
        ("list", "latency from LPUSH to the next BLPOP", list_handed),
    ];
    for (name, what, latencies) in all {
        for (part, short, percent) in [(0.5, "median", "median"), (0.99, "p99", "99th percentile")] {
            let series = Series::once(latencies.quantile(part));
            let name = format!("latency/{name}-{short}");
            report.row(Row::figure(&name, what, Unit::Nanoseconds, &series).at(percent));
        }
    }
}
