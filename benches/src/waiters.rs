//! Measures a server with different numbers of waiting clients: the CPU time of a wait and of a hand-off, and the
//! memory. Either all clients wait for one lock, or each client waits for its own lock. For comparison, the stage also
//! measures BLPOPs that LPUSH serves.

use crate::placement::{Place, be_client_of};
use crate::queues::{Kind, Queues, QueuesThread, SPARE_FILES, Shape};
use crate::report::{Report, alternate};
use crate::results::{Row, Series, Unit};
use lockward_tests::raise_open_files;

const COUNTS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 50_000];
/// With fewer clients than this, memory is not measured: the noise would be larger than the memory of the clients.
const WORTH_WEIGHING: usize = 1_000;
const ROUNDS: usize = 15;
/// The shapes of the curves, each with its name and a description.
const SHAPES: [(Shape, &str, &str); 2] = [
    (Shape::One, "one", "all clients wait for one lock"),
    (Shape::Each, "each", "each client waits for its own lock"),
];

/// Measures both shapes. The system limits how many files a process may open, and so the number of waiters. The last
/// number of waiters is at most the largest possible multiple of 1,000.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let most = COUNTS[COUNTS.len() - 1];
    let files = usize::try_from(raise_open_files((most + SPARE_FILES) as u64)).unwrap_or(most);
    let possible = files.saturating_sub(SPARE_FILES) / 1_000 * 1_000;
    for (shape, name, words) in SHAPES {
        // Each kind of wait has its own server.
        let workers = [Kind::Lock, Kind::List]
            .map(|kind| QueuesThread::start(move || Queues::start(shape, kind, Place::Together, most)));
        let mut before = 0;
        for count in COUNTS.map(|count| count.min(possible)) {
            if count == before {
                continue;
            }
            let row = |what: &str, unit, series: &Series| Row::figure(what, unit, series).at(count, "waiter");
            let is_weighed = shape == Shape::Each && count >= WORTH_WEIGHING;
            if let [none, connected, waiting] = grow(&workers, count, is_weighed)[..] {
                let each = |used: f64| Series::once((used - none) / (count - before) as f64);
                let what = "memory of a connection that has been idle for 6 seconds";
                report.row(row(what, Unit::Bytes, &each(connected)));
                let what = "memory of a waiter that has been idle for 6 seconds, with its connection";
                report.row(row(what, Unit::Bytes, &each(waiting)));
            }
            before = count;
            let costs = alternate(ROUNDS, workers.len(), |which| workers[which].run(Queues::round));
            let works = [("a hand-off", "LPUSH to BLPOP"), ("the start of a wait", "BLPOP")];
            for (number, (work, against)) in works.into_iter().enumerate() {
                let what = format!("server CPU for {work}, {words}");
                let [lock, list] = [&costs[0][number], &costs[1][number]];
                report.row(row(&what, Unit::Nanoseconds, lock).against(against, list));
            }
        }
        let curve = format!("server CPU for a hand-off, {words}");
        let (name, title) = (format!("waiters-{name}"), curve.replacen('s', "S", 1));
        let axes = ["clients that wait", "microseconds, one by one"];
        report.plot(&name, &title, axes, &curve, ["hand-off", "LPUSH to BLPOP"], 1e3);
        workers.into_iter().for_each(QueuesThread::end);
    }
}

/// Connects clients to each server, up to `count`, and lets them wait. If `is_weighed` is set, returns three
/// measurements of the first server's memory, in bytes: before the new clients connect, when they have connected, and
/// while they wait.
fn grow(workers: &[QueuesThread], count: usize, is_weighed: bool) -> Vec<f64> {
    let mut memory = Vec::new();
    let mut weigh = || memory.extend(is_weighed.then(|| workers[0].run(Queues::settled_memory)));
    weigh();
    workers.iter().for_each(|worker| worker.run(move |queues| queues.connect(count)));
    weigh();
    workers.iter().for_each(|worker| worker.run(move |queues| queues.wait(count)));
    weigh();
    memory
}
