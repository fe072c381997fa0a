//! The time from the end of a lease to the grant of the first waiter, in a database with many other keys that have a
//! TTL.
//!
//! The client computes the end of the lease: the time when it sent the acquisition, plus the lease. So the measured
//! time includes the transfer of the acquisition to the server and of the grant to the waiter.

use crate::clients::Clients;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, fill, numbers, owner, request};
use crate::results::{Row, Series, Unit};
use crate::server::{Loaded, setup};
use std::time::{Duration, Instant};

/// The number of other keys with a TTL. The titles of the figures contain this number too.
const OTHERS: usize = 50_000;
/// The number of locks that are in use at the same time, each with a holder and a waiter.
const LOCKS: usize = 50;
const ROUNDS: usize = 64;

pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = setup(Loaded::Lockward, Place::Apart, &[]).start();
    let other = |key| request(&["SET", &format!("other:{key:06}"), "x", "PX", LEASE]);
    fill(&mut server.client(), 0..OTHERS, other);
    let mut clients = Clients::open(server.port(), LOCKS);
    let mut numbers = numbers();
    let [mut all, mut medians, mut lates] = <[Series; 3]>::default();
    for _ in 0..ROUNDS {
        // Leases last for 20 to 200 milliseconds.
        let leases: Vec<u64> = (0..LOCKS).map(|_| 20 + numbers.number() % 180).collect();
        let late = grants_after(&mut clients, &leases);
        medians.push(late.median());
        lates.push(late.quantile(0.99));
        all.extend(late);
    }
    let what = "time from the end of a lease to the grant of the first waiter, 50,000 other keys with a TTL";
    for (which, part, rounds, limit) in
        [("median", 0.5, medians, 2.0), ("99th percentile", 0.99, lates, 10.0)]
    {
        let mut row = Row::figure(&format!("{what}, {which}"), Unit::Milliseconds, &rounds);
        // The figure is the quantile of all rounds together, not the median of the quantiles of the rounds.
        row.measured = all.quantile(part);
        report.row(row.at_most(limit));
    }
}

/// Each connection acquires a lock for one of these leases, in milliseconds, and then waits for this lock as another
/// owner. Returns the time from the end of each lease to the grant, in milliseconds.
fn grants_after(clients: &mut Clients, leases: &[u64]) -> Series {
    let key = |lock: usize| format!("expiry:{lock:04}");
    let mut ends = Vec::new();
    for (lock, lease) in leases.iter().enumerate() {
        let acquire = request(&["LOCK.ACQUIRE", &key(lock), "holder", "PX", &lease.to_string()]);
        let wait = request(&["LOCK.ACQUIRE", &key(lock), &owner(lock), "PX", LEASE, "BLOCK", "0"]);
        ends.push(Instant::now() + Duration::from_millis(*lease));
        clients.send(lock, &[acquire, wait].concat());
    }
    let mut holds = vec![false; leases.len()];
    let mut late = Series::default();
    for _ in 0..2 * leases.len() {
        let arrival = clients.arrival();
        arrival.reply.grant();
        if holds[arrival.who] {
            late.push(arrival.at.saturating_duration_since(ends[arrival.who]).as_secs_f64() * 1e3);
        }
        holds[arrival.who] = true;
    }
    for lock in 0..leases.len() {
        clients.call(lock, &["LOCK.RELEASE", &key(lock), &owner(lock)]);
    }
    late
}
