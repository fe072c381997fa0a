//! Curves by the number of holders of one semaphore: CPU for an acquisition and a release by another owner, CPU for the
//! commands of a holder, and memory for each holder.

use super::curves::Point;
use crate::modes::{AGAIN, ONE_BY_ONE, PAIR, RENEW, Work, hold, key};
use crate::pipeline::Pipeline;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::numbers;
use crate::results::Unit;
use crate::rounds::Series;
use crate::server::Server;

pub const STAGE: &str = "holders";

const COUNTS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
const WORKS: [(Work, &str); 3] = [(PAIR, "pair"), (RENEW, "renewal"), (AGAIN, "again")];
const ROUNDS: usize = 15;

/// Measures all sizes, alternately on one server.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let server = Server::start(&[]);
    let mut client = server.client();
    COUNTS.into_iter().for_each(|holders| hold(&mut client, &key(holders), holders));
    let mut pipeline = Pipeline::open(&server, ONE_BY_ONE.connections);
    let mut numbers = numbers();
    let costs = report.alternate(ROUNDS, COUNTS.len(), |which| {
        WORKS
            .each_ref()
            .map(|(work, _)| ONE_BY_ONE.cost(&server, &mut pipeline, work, COUNTS[which], &mut numbers))
    });
    for (holders, costs) in COUNTS.into_iter().zip(&costs) {
        let point = Point::new(STAGE, holders, "holder");
        for ((work, name), cost) in WORKS.iter().zip(costs) {
            let what = format!("server CPU for {}", work.what);
            point.row(report, (name, &what, Unit::Nanoseconds), cost);
        }
        point.row(report, ("memory", "memory for each holder", Unit::Bytes), &memory_of_holder(holders));
    }
}

/// Bytes for each holder.
fn memory_of_holder(holders: usize) -> Series {
    let server = Server::start(&[]);
    let mut client = server.client();
    let before = client.info_number("memory", "used_memory");
    let locks = COUNTS[COUNTS.len() - 1] / holders;
    for lock in 0..locks {
        hold(&mut client, &key(lock), holders);
    }
    // The server frees the large buffer of the old connection.
    drop(client);
    let mut client = server.client();
    let used = client.info_number("memory", "used_memory") - before;
    Series::once(used / (locks * holders) as f64)
}
