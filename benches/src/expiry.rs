//! How late the end of a lease reaches the first waiter, in a database with many other keys that have a TTL.
//!
//! Late is counted from the moment at which the acquisition was sent, plus the lease: so it includes the way of that command, and
//! of the grant.

use crate::latency::Latencies;
use crate::pipeline::Expected;
use crate::placement::{Place, be_client_of};
use crate::plot::{Axis, Plot, Scale};
use crate::report::Report;
use crate::request::{LEASE, Numbers, owner, request};
use crate::resp::Reply;
use crate::results::{Row, Target, Unit};
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use std::time::{Duration, Instant};

/// Other keys with a TTL, as the titles say.
const OTHERS: usize = 50_000;
/// Locks whose leases end, all of them at work at the same time, each with a holder and a waiter.
const LOCKS: usize = 50;
/// Leases in milliseconds: each from 20 to below this.
const LONGEST: u64 = 200;
const ROUNDS: usize = 16;
const ROUND: Duration = Duration::from_secs(1);
/// How long one waits for Redis to tell of expired keys.
const PATIENCE: Duration = Duration::from_secs(10);
/// Keys that Redis alone is asked about.
const ASKED: usize = 300;

/// Where a lock is.
#[derive(Clone, Copy)]
enum Step {
    /// The holder's acquisition was sent.
    Acquiring { ends: Instant },
    /// The waiter's was sent.
    Waiting { ends: Instant },
    /// The waiter's release was sent.
    Releasing,
    /// No more: the time is over.
    Idle,
}

/// Lock, and Redis alone.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    let server = with_others(Loaded::Lockward);
    let mut all = Latencies::default();
    let (mut medians, mut lates) = (Series::default(), Series::default());
    let mut clients = server.clients(2 * LOCKS);
    let mut numbers = Numbers::default();
    for round in 0..ROUNDS {
        report.progress(round, ROUNDS + 10);
        let mut latencies = Latencies::default();
        leases(&mut clients, &mut numbers, |late| {
            latencies.record(late);
            all.record(late);
        });
        medians.push(latencies.quantile(0.5) / 1e6);
        lates.push(latencies.quantile(0.99) / 1e6);
    }
    let what =
        |which: &str| format!("expired lease to the first waiter, 50,000 other keys with a TTL, {which}");
    for (name, which, part, rounds, limit) in
        [("median", "median", 0.5, medians, 2.0), ("p99", "99th percentile", 0.99, lates, 10.0)]
    {
        let mut row = Row::figure(&format!("expiry/{name}"), &what(which), Unit::Milliseconds, &rounds);
        row.measured = all.quantile(part) / 1e6; // of all rounds together, rather than the median of theirs
        report.row(row.target(Target::AtMost(limit)));
    }
    let (told, untold) = redis_alone();
    let part = 100.0 * untold as f64 / ASKED as f64;
    let row = Row::figure(
        "expiry/redis",
        &format!("of {ASKED} expired keys, those Redis alone told nobody of within {} s", PATIENCE.as_secs()),
        Unit::Percent,
        &Series::once(part),
    );
    report.row(row);
    let mut lines = vec![all.line("LOCK.ACQUIRE BLOCK, first waiter", 1e6)];
    if told.count() > 20 {
        let mut line = told.line("Redis alone: the event `expired` of a key", 1e6);
        // Of all that were asked about, not only of those that it told of.
        for (of_all, _) in &mut line.points {
            *of_all *= 1.0 - part / 100.0;
        }
        lines.push(line);
    }
    report.plot(Plot {
        name: "expiry".to_owned(),
        title: "How late the end of a lease is heard of, beside 50,000 keys with a TTL".to_owned(),
        hint: format!(
            "Lower is better. {} leases; Redis alone told of {:.0} % within {} s.",
            all.count(),
            100.0 - part,
            PATIENCE.as_secs()
        ),
        x: Axis { label: "percentile".to_owned(), scale: Scale::Percentile },
        y: Axis { label: "late by, ms".to_owned(), scale: Scale::Log },
        lines,
    });
}

fn with_others(loaded: Loaded) -> Server {
    let server = Server::start_with(loaded, Place::Apart, &["notify-keyspace-events Ex"]);
    let mut client = server.client();
    let keys: Vec<usize> = (0..OTHERS).collect();
    for keys in keys.chunks(1_000) {
        let set = |key: &usize| request(&["SET", &format!("other:{key:06}"), "x", "PX", LEASE]);
        client.pipeline(&keys.iter().map(set).collect::<Vec<_>>());
    }
    server
}

/// Lets leases end, for the time of a round.
fn leases(clients: &mut crate::clients::Clients, numbers: &mut Numbers, mut late: impl FnMut(Duration)) {
    let key = |lock: usize| format!("expiry:{lock:04}");
    let mut steps = [Step::Idle; LOCKS];
    let over = Instant::now() + ROUND;
    let acquire = |clients: &mut crate::clients::Clients, numbers: &mut Numbers, lock: usize| {
        let lease = 20 + numbers.draw() % (LONGEST - 20);
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
                late(arrival.at.saturating_duration_since(ends));
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
            Step::Idle => panic!("nothing was asked: {:?}", arrival.reply),
        };
    }
}

/// What Redis tells by itself of keys that expire: how late, and of how many it has not told in time.
fn redis_alone() -> (Latencies, usize) {
    let server = with_others(Loaded::Nothing);
    let mut subscriber = server.clients(1);
    subscriber.call(0, &["SUBSCRIBE", "__keyevent@0__:expired"]);
    let mut client = server.client();
    let mut numbers = Numbers::default();
    let mut ends = Vec::new();
    for key in 0..ASKED {
        let ttl = 20 + numbers.draw() % (LONGEST - 20);
        ends.push(Instant::now() + Duration::from_millis(ttl));
        client.call(&["SET", &format!("{key}"), "x", "PX", &ttl.to_string()]);
    }
    let mut late = Latencies::default();
    let over = Instant::now() + PATIENCE;
    while late.count() < ASKED as u64 {
        let left = over.saturating_duration_since(Instant::now());
        let Some(arrival) = subscriber.arrival_within(left) else { break };
        let (Reply::Array(message) | Reply::Push(message)) = &arrival.reply else {
            panic!("{:?}", arrival.reply)
        };
        let key = message
            .last()
            .and_then(Reply::text)
            .and_then(|key| key.parse::<usize>().ok())
            .expect("a key of ours");
        late.record(arrival.at.saturating_duration_since(ends[key]));
    }
    let told = usize::try_from(late.count()).unwrap_or(ASKED);
    (late, ASKED - told)
}
