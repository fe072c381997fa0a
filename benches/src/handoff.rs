//! Hand-offs: a lock is released and granted to the next waiter. A hand-off is compared with an LPUSH that wakes the
//! next BLPOP. The former holder does not wait again during the measurement.

use crate::open_files::{QueuesThread, allow_waiters};
use crate::placement::{Place, be_client_of};
use crate::queues::{Kind, Queues};
use crate::report::Report;
use crate::results::{Row, Target, whole};
use crate::rounds::Series;

/// The numbers of waiters.
const SIZES: [usize; 3] = [2, 1_000, 10_000];
const ROUNDS: usize = 16;

/// Measures locks and lists, in queues of each size. In production, clients usually do not run on the server's machine,
/// so client and server have separate CPUs here.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    allow_waiters(SIZES[SIZES.len() - 1]);
    let workers = SIZES.map(|waiters| {
        [Kind::Lock, Kind::List]
            .map(|kind| QueuesThread::start(move || Queues::waiting(kind, Place::Apart, waiters)))
    });
    let costs: [Series; 2 * SIZES.len()] =
        report.compare(ROUNDS, |which| workers[which / 2][which % 2].run(Queues::round).handoff);
    let at = SIZES.map(|waiters| format!("{} waiters", whole(waiters as f64)));
    let what = "hand-off, separate CPUs";
    for ((waiters, at), sides) in SIZES.iter().zip(&at).zip(costs.chunks(2)) {
        let name = format!("handoff/{waiters}");
        let row = Row::ratio(&name, what, &sides[0], "an LPUSH that wakes a client in BLPOP", &sides[1]);
        report.row(row.at(at).target(Target::AtMost(1.1)));
    }
    let [shortest, .., longest] = &at;
    let (what, [short, _, .., long, _]) = (format!("{what}, {longest}"), &costs);
    let row = Row::ratio("handoff/flat", &what, long, &format!("the same with {shortest}"), short);
    report.row(row.target(Target::AtMost(1.2)));
    workers.into_iter().flatten().for_each(QueuesThread::end);
}
