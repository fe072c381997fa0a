//! Curves by the number of holders of one semaphore: CPU for an acquisition and a release by another owner, CPU for the
//! commands of a holder, and memory for each holder.

use super::curves::Point;
use crate::modes::{Sending, Work, hold, key, memory_of_holder};
use crate::pipeline::Pipeline;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::numbers;
use crate::results::Unit;
use crate::server::Server;

/// The name of the stage.
pub const STAGE: &str = "holders";

const COUNTS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
const WORKS: [(Work, &str); 3] = [(Work::Pair, "pair"), (Work::Renew, "renewal"), (Work::Again, "again")];
const ROUNDS: usize = 15;

/// Measures all sizes, alternately on one server.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let server = Server::start(&[]);
    let mut client = server.client();
    COUNTS.into_iter().for_each(|holders| hold(&mut client, &key(holders), holders));
    let sending = Sending::OneByOne;
    let mut pipeline = Pipeline::open(&server, sending.connections());
    let mut numbers = numbers();
    let costs = report.alternate(ROUNDS, COUNTS.len(), |which| {
        WORKS.map(|(work, _)| sending.cost(&server, &mut pipeline, work, COUNTS[which], &mut numbers))
    });
    for (holders, costs) in COUNTS.into_iter().zip(&costs) {
        let point = Point::new(STAGE, holders, "holder");
        for ((work, name), cost) in WORKS.iter().zip(costs) {
            let what = format!("server CPU for {}", work.what());
            point.row(report, (name, &what, Unit::Nanoseconds), cost);
        }
        let (memory, _) = memory_of_holder(holders);
        point.row(report, ("memory", "memory for each holder", Unit::Bytes), &memory);
    }
}
