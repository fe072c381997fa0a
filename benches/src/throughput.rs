//! How many pairs of commands a second a server executes, at each pipeline depth.

use crate::pairs::{CONNECTIONS, Pair};
use crate::pipeline::Pipeline;
use crate::placement::{Place, be_client_of};
use crate::plot::{Line, Plot};
use crate::report::{Report, alternate};
use crate::server::{Loaded, setup};
use std::time::Instant;

const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The number of pairs of commands in a round at one depth.
const PAIRS: usize = 12_800;
const ROUNDS: usize = 15;

const KINDS: [(Pair, &str); 3] = [
    (Pair::Lock, "LOCK.ACQUIRE + LOCK.RELEASE"),
    (Pair::Set, "SET NX PX + DEL"),
    (Pair::Hash, "the hash lock in Lua"),
];

pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = setup(Loaded::Lockward, Place::Apart, &[]).start();
    let mut pipeline = Pipeline::open(&server, CONNECTIONS);
    let mut lines = KINDS.map(|(_, name)| Line { name: name.to_owned(), points: Vec::new() });
    for depth in DEPTHS {
        let batches = KINDS.map(|(pair, _)| pair.batches(&server, CONNECTIONS, depth));
        let in_batch = (depth / 2).max(1);
        let times = PAIRS / CONNECTIONS / in_batch;
        let rates = alternate(ROUNDS, KINDS.len(), |kind| {
            let begin = Instant::now();
            pipeline.run(&batches[kind], times);
            [(CONNECTIONS * times * in_batch) as f64 / begin.elapsed().as_secs_f64() / 1e3]
        });
        for (line, [rates]) in lines.iter_mut().zip(rates) {
            line.points.push((depth as f64, rates.median()));
        }
    }
    let title = format!("Throughput by pipeline depth, {CONNECTIONS} connections");
    let plot = Plot::new("throughput", &title, "pipeline depth", "thousand pairs a second", lines);
    let hint = "Higher is better. Server and client process have separate CPUs.".to_owned();
    report.plot(Plot { hint, ..plot });
}
