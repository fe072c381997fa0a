//! How many pairs of commands a second a server executes, at each pipeline depth.

use crate::pairs::{CONNECTIONS, Pair};
use crate::pipeline::Pipeline;
use crate::placement::{Place, be_client_of};
use crate::plot::{Line, Plot};
use crate::report::Report;
use crate::server::{Loaded, Server};
use std::time::Instant;

const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The number of pairs of commands in a round at one depth.
const PAIRS: usize = 12_800;
const ROUNDS: usize = 15;

pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = Server::start_with(Loaded::Lockward, Place::Apart, &[]);
    let mut pipeline = Pipeline::open(&server, CONNECTIONS);
    let kinds = [
        (Pair::Lock, "LOCK.ACQUIRE + LOCK.RELEASE"),
        (Pair::Set, "SET NX PX + DEL"),
        (Pair::Hash, "the hash lock in Lua"),
    ];
    let batches = DEPTHS.map(|depth| kinds.map(|(pair, _)| pair.batches(&server, CONNECTIONS, depth)));
    let rates = report.alternate(ROUNDS, DEPTHS.len() * kinds.len(), |which| {
        let (depth, kind) = (which / kinds.len(), which % kinds.len());
        let in_batch = (DEPTHS[depth] / 2).max(1);
        let times = PAIRS / CONNECTIONS / in_batch;
        let begin = Instant::now();
        pipeline.run(&batches[depth][kind], times);
        [(CONNECTIONS * times * in_batch) as f64 / begin.elapsed().as_secs_f64() / 1e3]
    });
    let line = |(kind, (_, name)): (usize, (Pair, &str))| {
        let rates = rates.iter().skip(kind).step_by(kinds.len()).map(|[rates]| rates.median());
        let points = DEPTHS.into_iter().map(|depth| depth as f64).zip(rates).collect();
        Line { name: name.to_owned(), points }
    };
    report.plot(Plot {
        name: "throughput".to_owned(),
        title: format!("Throughput by pipeline depth, {CONNECTIONS} connections"),
        hint: "Higher is better. Server and client process have separate CPUs.".to_owned(),
        x: "pipeline depth".to_owned(),
        y: "thousand pairs a second".to_owned(),
        lines: kinds.into_iter().enumerate().map(line).collect(),
    });
}
