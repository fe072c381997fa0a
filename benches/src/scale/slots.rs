//! A slot moves to another node. Each lock in the slot has a waiter. The x axis is the number of these locks. The
//! curves are the time of the move, and the longest PING of the node that gives the slot away. Strings with a TTL and
//! BLPOPs on a server without any module are measured for comparison.

use super::curves::Point;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::results::Unit;
use crate::rounds::Series;
use crate::stalls::cases::move_slot;
use crate::stalls::scene::Side;
use lockward_tests::raise_open_files;

pub const STAGE: &str = "slots";

const COUNTS: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 2;

/// The ways to move a slot.
const WAYS: [(bool, &str, &str); 2] =
    [(false, "migrate", "with MIGRATE"), (true, "atomic", "by the server itself")];

/// Measures all sizes in both ways. Leaves out the second way if the server does not support this way.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    raise_open_files(25_000);
    for (by_server, name, words) in WAYS {
        for (done, count) in COUNTS.into_iter().enumerate() {
            report.progress(done, COUNTS.len());
            let mut sides = [(Side::Lockward, [(); 2]), (Side::Plain, [(); 2])]
                .map(|(side, both)| (side, both.map(|()| Series::default())));
            for _ in 0..ROUNDS {
                for (side, [whole, longest]) in &mut sides {
                    let Some(moved) = move_slot(*side, count, by_server) else { return };
                    whole.push(moved.whole * 1e6);
                    longest.push(moved.longest * 1e6);
                }
            }
            // Other load of the machine can only add time.
            let least = sides.map(|(_, both)| both.map(|series| Series::once(series.least())));
            let [[whole, longest], [plain_whole, plain_longest]] = &least;
            let point = Point::new(STAGE, count, "lock");
            let against = "strings and BLPOPs";
            let what = format!("time until no client waits at the old node, {words}");
            let curve = (&*format!("{name}-whole"), &*what, Unit::Nanoseconds);
            point.compared(report, curve, against, [whole, plain_whole]);
            let what = format!("longest PING at the old node, {words}");
            let curve = (&*format!("{name}-longest"), &*what, Unit::Nanoseconds);
            point.compared(report, curve, against, [longest, plain_longest]);
        }
    }
}
