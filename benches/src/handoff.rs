//! Hand-offs: a lock is released and granted to the next waiter. A hand-off is compared with an LPUSH that wakes the
//! next BLPOP. The former holder does not wait again during the measurement.

use crate::placement::{Place, be_client_of};
use crate::queues::{Kind, Queues, QueuesThread, allow_waiters};
use crate::report::{Report, compare};
use crate::results::{Row, whole};

const SIZES: [usize; 2] = [2, 10_000];
const ROUNDS: usize = 16;

/// Measures locks and lists, in queues of each size. In production, clients usually do not run on the server's machine,
/// so client and server have separate CPUs here.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    allow_waiters(SIZES[1]);
    let workers = SIZES.map(|waiters| {
        [Kind::Lock, Kind::List]
            .map(|kind| QueuesThread::start(move || Queues::waiting(kind, Place::Apart, waiters)))
    });
    let [short, short_list, long, long_list] = compare(ROUNDS, |which| {
        let [handoff, _] = workers[which / 2][which % 2].run(Queues::round);
        handoff
    });
    let [at_short, at_long] =
        SIZES.map(|waiters| format!("hand-off, separate CPUs, {} waiters", whole(waiters as f64)));
    let against = "an LPUSH that wakes a client in BLPOP";
    report.row(Row::ratio(&at_short, &short, against, &short_list).at_most(1.1));
    report.row(Row::ratio(&at_long, &long, against, &long_list).at_most(1.1));
    report.row(Row::ratio(&at_long, &long, "the same with 2 waiters", &short).at_most(1.2));
    workers.into_iter().flatten().for_each(QueuesThread::end);
}
