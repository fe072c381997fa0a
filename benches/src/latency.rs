//! How long clients wait for a reply: uncontended commands, one after the other, and hand-offs; and what a server gets
//! done at all, by how many commands are on the way.

use crate::handoff::{Costs, Kind, Lines};
use crate::pairs::{CONNECTIONS, Pair};
use crate::pipeline::Pipeline;
use crate::placement::{Place, be_client_of};
use crate::plot::{Axis, Line, Plot, Scale};
use crate::report::Report;
use crate::results::{Row, Unit};
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Depths of the pipeline.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Pairs of commands in a round at one depth.
const PAIRS: usize = 12_800;
const ROUNDS: usize = 15;
/// Pairs of commands one after the other in a round.
const ALONE: usize = 1_000;
/// Waiters in the lines whose hand-offs are timed.
const WAITERS: usize = 50;

/// Latencies, in nanoseconds, to three digits.
#[derive(Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { histogram: Histogram::new(3).expect("a histogram") }
    }
}

impl Latencies {
    /// When something is about to be sent.
    #[allow(clippy::unused_self, reason = "whoever takes the time records it here")]
    pub fn begin(&self) -> Instant {
        Instant::now()
    }

    /// Adds one.
    pub fn record(&mut self, took: Duration) {
        self.histogram.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)).expect("room for it");
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// What a `part` of them stays below, in nanoseconds.
    pub fn quantile(&self, part: f64) -> f64 {
        self.histogram.value_at_quantile(part) as f64
    }

    /// Up to which percentile there are enough to tell: ten lie above it.
    fn last(&self) -> f64 {
        1.0 - 10.0 / self.count() as f64
    }

    /// As a line over the percentiles, in units of so many nanoseconds.
    pub fn line(&self, name: &str, unit: f64) -> Line {
        let last = -(1.0 - self.last()).log10();
        let parts = (0..=100).map(|step| 1.0 - 10f64.powf(-last * f64::from(step) / 100.0));
        let points = parts.map(|part| (part, self.quantile(part) / unit)).collect();
        Line { name: name.to_owned(), points, marked: false }
    }
}

/// Pairs a second, by the depth of the pipeline.
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
            for turn in 0..kinds.len() {
                let which = (round + turn) % kinds.len();
                let times = PAIRS / CONNECTIONS / (depth / 2).max(1);
                let begin = Instant::now();
                pipeline.run(&batches[at][which], times);
                let pairs = (CONNECTIONS * times * (depth / 2).max(1)) as f64;
                if round > 0 {
                    // The first is for warming up.
                    seconds[at][which].push(begin.elapsed().as_nanos() as f64 / pairs);
                }
            }
        }
    }
    for (depth, [lock, set, _]) in DEPTHS.iter().zip(&seconds) {
        let (name, what) = (format!("throughput/{depth}"), format!("time a pair, pipeline depth {depth}"));
        report.row(Row::ratio(&name, &what, lock, "SET NX PX + DEL", set));
    }
    let lines = ["LOCK.ACQUIRE + LOCK.RELEASE", "SET NX PX + DEL", "the re-entrant hash lock in Lua"];
    report.plot(Plot {
        name: "throughput".to_owned(),
        title: format!("Throughput by the depth of the pipeline, {CONNECTIONS} connections"),
        hint: "Higher is better. One server, one client process, a CPU each.".to_owned(),
        x: Axis { label: "commands on the way on each connection".to_owned(), scale: Scale::Double },
        y: Axis { label: "thousand pairs a second".to_owned(), scale: Scale::Linear },
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
                marked: true,
            })
            .collect(),
    });
}

/// The distribution of latencies.
pub fn distribution(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = Server::start_with(Loaded::Lockward, Place::Apart, &[]);
    let mut client = server.clients(1);
    let kinds = [Pair::Lock, Pair::Set, Pair::Ping];
    let mut alone = kinds.map(|_| Latencies::default());
    let mut lines = Lines::start(WAITERS, Place::Apart);
    let mut handed = [(Kind::Lock, Costs::default()), (Kind::List, Costs::default())];
    for round in 0..ROUNDS {
        report.progress(round, ROUNDS);
        for (pair, latencies) in kinds.iter().zip(&mut alone) {
            let batch = pair.batch(&server, 0, 1);
            for part in batch.0.iter().cycle().take(2 * ALONE) {
                let sent = latencies.begin();
                client.send(0, &part.requests);
                let arrival = client.arrival();
                latencies.record(arrival.at - sent);
                part.expected[0].check(&arrival.reply);
            }
        }
        for (kind, costs) in &mut handed {
            lines.round(*kind, costs);
        }
    }
    let [lock, set, ping] = &alone;
    let [(_, lock_handed), (_, list_handed)] = &handed;
    let all = [
        ("uncontended", "LOCK.ACQUIRE or LOCK.RELEASE, uncontended", lock),
        ("set", "SET NX PX or DEL", set),
        ("ping", "PING", ping),
        ("handoff", "hand-off, LOCK.RELEASE to the next grant", &lock_handed.latencies),
        ("list", "LPUSH to the next BLPOP", &list_handed.latencies),
    ];
    for (name, what, latencies) in all {
        for (part, short, percent) in [(0.5, "median", "median"), (0.99, "p99", "99th percentile")] {
            let series = Series::once(latencies.quantile(part));
            let name = format!("latency/{name}-{short}");
            report.row(Row::figure(
                &name,
                &format!("latency of {what}, {percent}"),
                Unit::Nanoseconds,
                &series,
            ));
        }
    }
    report.plot(Plot {
        name: "latency".to_owned(),
        title: "How long a client waits for its reply".to_owned(),
        hint: format!(
            "Lower is better. One command after the other; hand-offs in lines of {WAITERS} waiters."
        ),
        x: Axis { label: "percentile".to_owned(), scale: Scale::Percentile },
        y: Axis { label: "latency, µs".to_owned(), scale: Scale::Log },
        lines: all.iter().map(|(_, name, latencies)| latencies.line(name, 1e3)).collect(),
    });
}
