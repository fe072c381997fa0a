//! The time from the end of a lease to the grant of the first waiter, in a database with many other keys that have a
//! TTL.
//!
//! The client computes the end of the lease: the time when it sent the acquisition, plus the lease. So the measured
//! time includes the transfer of the acquisition to the server and of the grant to the waiter.

use crate::clients::Clients;
use crate::pipeline::Expected;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, numbers, owner, request};
use crate::results::{Row, Target, Unit};
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use lockward_tests::Random;
use std::time::{Duration, Instant};

/// The number of other keys with a TTL. The titles of the figures contain this number too.
const OTHERS: usize = 50_000;
/// The number of locks that are in use at the same time, each with a holder and a waiter.
const LOCKS: usize = 50;
/// Leases are random, from 20 milliseconds up to this number of milliseconds.
const LONGEST: u64 = 200;
const ROUNDS: usize = 16;
const ROUND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
enum Step {
    /// The holder has sent its acquisition.
    Acquiring { ends: Instant },
    /// The waiter has sent its acquisition.
    Waiting { ends: Instant },
    /// The waiter has sent its release.
    Releasing,
    /// The round is over: the clients send no more requests.
    Idle,
}

pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = with_others();
    let mut all = Series::default();
    let (mut medians, mut lates) = (Series::default(), Series::default());
    let mut clients = server.clients(2 * LOCKS);
    let mut numbers = numbers();
    for round in 0..ROUNDS {
        report.progress(round, ROUNDS);
        let late = leases(&mut clients, &mut numbers);
        medians.push(late.median());
        lates.push(late.quantile(0.99));
        all.extend(late);
    }
    let what = |which: &str| {
        format!(
            "time from the end of a lease to the grant of the first waiter, 50,000 other keys with a TTL, {which}"
        )
    };
    for (name, which, part, rounds, limit) in
        [("median", "median", 0.5, medians, 2.0), ("p99", "99th percentile", 0.99, lates, 10.0)]
    {
        let mut row = Row::figure(&format!("expiry/{name}"), &what(which), Unit::Milliseconds, &rounds);
        // The figure is the quantile of all rounds together, not the median of the quantiles of the rounds.
        row.measured = all.quantile(part);
        report.row(row.target(Target::AtMost(limit)));
    }
}

fn with_others() -> Server {
    let server = Server::start_with(Loaded::Lockward, Place::Apart, &[]);
    server.client().fill(0..OTHERS, |key| request(&["SET", &format!("other:{key:06}"), "x", "PX", LEASE]));
    server
}

/// Acquires locks and lets their leases end, until the round is over. Returns the time from the end of each lease to
/// the next grant, in milliseconds.
fn leases(clients: &mut Clients, numbers: &mut Random) -> Series {
    let mut late = Series::default();
    let key = |lock: usize| format!("expiry:{lock:04}");
    let mut steps = [Step::Idle; LOCKS];
    let over = Instant::now() + ROUND;
    let acquire = |clients: &mut Clients, numbers: &mut Random, lock: usize| {
        let lease = 20 + numbers.number() % (LONGEST - 20);
        let bytes = request(&["LOCK.ACQUIRE", &key(lock), &owner(lock), "PX", &lease.to_string()]);
        let ends = Instant::now() + Duration::from_millis(lease);
        clients.send(lock, &bytes);
        Step::Acquiring { ends }
    };
    for (lock, step) in steps.iter_mut().enumerate() {
        *step = acquire(clients, numbers, lock);
    }
    let mut idle = 0;
    while idle < LOCKS {
        let arrival = clients.arrival();
        let lock = arrival.who % LOCKS;
        let waiter = lock + LOCKS;
        steps[lock] = match steps[lock] {
            Step::Acquiring { ends } => {
                Expected::Grant.check(&arrival.reply);
                let owner = owner(waiter);
                clients
                    .send(waiter, &request(&["LOCK.ACQUIRE", &key(lock), &owner, "PX", LEASE, "BLOCK", "0"]));
                Step::Waiting { ends }
            }
            Step::Waiting { ends } => {
                Expected::Grant.check(&arrival.reply);
                late.push(arrival.at.saturating_duration_since(ends).as_secs_f64() * 1e3);
                clients.send(waiter, &request(&["LOCK.RELEASE", &key(lock), &owner(waiter)]));
                Step::Releasing
            }
            Step::Releasing => {
                Expected::Number(0).check(&arrival.reply);
                if Instant::now() < over {
                    acquire(clients, numbers, lock)
                } else {
                    idle += 1;
                    Step::Idle
                }
            }
            Step::Idle => panic!("a reply without a request: {:?}", arrival.reply),
        };
    }
    late
}
