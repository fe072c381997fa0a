//! Curves by the number of waiting clients: CPU for a wait and for a hand-off, and memory. Either all clients wait for
//! one lock, or each client waits for its own lock. For comparison, the stage also measures BLPOPs that LPUSH serves.

use super::curves::{Point, axes, has_memory, plot};
use crate::open_files::{QueuesThread, SPARE_FILES};
use crate::placement::{Place, be_client_of};
use crate::queues::{Costs, Kind, Queues, Shape};
use crate::report::Report;
use crate::results::Unit;
use crate::rounds::Series;
use lockward_tests::raise_open_files;

pub const STAGE: &str = "waiters";

const COUNTS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 50_000];
/// With fewer clients than this, memory is not measured: the noise would be larger than the memory of the clients.
const WORTH_WEIGHING: usize = 1_000;
const ROUNDS: usize = 15;
/// Memory of one waiter of each kind, in the servers and in this program, in bytes.
const BYTES: f64 = 300_000.0;
/// The shapes of the curves, each with its name and a description.
const SHAPES: [(Shape, &str, &str); 2] = [
    (Shape::One, "one", "all clients wait for one lock"),
    (Shape::Each, "each", "each client waits for its own lock"),
];

/// The numbers of waiters to measure. The system limits how many files a process may open. If this limit is too low for
/// the largest of [`COUNTS`], the last number is the largest possible multiple of 1,000.
fn counts(report: &Report) -> Vec<usize> {
    let most = COUNTS[COUNTS.len() - 1];
    let files = raise_open_files((most + SPARE_FILES) as u64);
    let possible = usize::try_from(files).unwrap_or(most).saturating_sub(SPARE_FILES) / 1_000 * 1_000;
    let mut counts: Vec<usize> = COUNTS.into_iter().filter(|count| *count <= possible).collect();
    if possible < most {
        report.say(&format!(
            "        a process may have only {files} open files: the curve ends before {most} waiters"
        ));
        if counts.last().is_some_and(|last| *last < possible) {
            counts.push(possible);
        }
    }
    counts
}

/// Measures both shapes, up to the number of waiters for which the machine has memory and files.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let counts = counts(report);
    for (shape, name, words) in SHAPES {
        // Each kind of wait has its own server.
        let workers = [Kind::Lock, Kind::List].map(|kind| {
            QueuesThread::start(move || Queues::start(shape, kind, Place::Together, COUNTS[COUNTS.len() - 1]))
        });
        let mut before = 0;
        for (done, &count) in counts.iter().enumerate() {
            report.progress(done, counts.len());
            if !has_memory(report, (count - before) as f64 * BYTES, &format!("{count} waiters")) {
                break;
            }
            let point = Point::new(STAGE, count, "waiter");
            let is_weighed = shape == Shape::Each && count >= WORTH_WEIGHING;
            let memory = grow(&workers, count, is_weighed);
            if let [none, connected, waiting] = memory[..] {
                let each = |used: f64| Series::once((used - none) / (count - before) as f64);
                let what = "memory of a connection that has been idle for 6 seconds";
                point.row(report, ("connection", what, Unit::Bytes), &each(connected));
                let what = "memory of a waiter that has been idle for 6 seconds, with its connection";
                point.row(report, ("memory", what, Unit::Bytes), &each(waiting));
            }
            let costs = report.alternate(ROUNDS, workers.len(), |which| {
                let Costs { handoff, wait } = workers[which].run(Queues::round);
                [handoff, wait]
            });
            let [lock, list]: [_; 2] = costs.try_into().expect("two kinds of wait");
            let works =
                [("handoff", "a hand-off", "LPUSH to BLPOP"), ("wait", "the start of a wait", "BLPOP")];
            for (number, (curve, work, against)) in works.into_iter().enumerate() {
                let what = format!("server CPU for {work}, {words}");
                let curve = (&*format!("{name}-{curve}"), &*what, Unit::Nanoseconds);
                point.compared(report, curve, against, [&lock[number], &list[number]]);
            }
            before = count;
        }
        let title = format!("Server CPU for a hand-off, {words}");
        let axes = axes(&format!("{STAGE}-{name}"), &title, "clients that wait", "microseconds, one by one");
        let curves = ["handoff", "handoff-against"].map(|curve| format!("{name}-{curve}"));
        plot(report, axes, &[("hand-off", &curves[0]), ("LPUSH to BLPOP", &curves[1])], 1e3);
        workers.into_iter().for_each(QueuesThread::end);
    }
}

/// Connects clients to each server, up to `count`, and lets them wait. If `is_weighed` is set, returns three
/// measurements of the first server's memory, in bytes: before the new clients connect, when they have connected, and
/// while they wait.
fn grow(workers: &[QueuesThread], count: usize, is_weighed: bool) -> Vec<f64> {
    let mut memory = Vec::new();
    let mut weigh = || {
        if is_weighed {
            memory.push(workers[0].run(Queues::settled_memory));
        }
    };
    weigh();
    workers.iter().for_each(|worker| worker.run(move |queues| queues.connect(count)));
    weigh();
    workers.iter().for_each(|worker| worker.run(move |queues| queues.wait(count)));
    weigh();
    memory
}
