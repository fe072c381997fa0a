//! The experiment with one client.

use crate::actor::Actor;
use crate::clients::Client;
use crate::driver::Driver;
use crate::faults::{FaultCounts, Faults};
use crate::lock_kind::LockKind;
use lockward_tests::{Proxy, Random, Reply, Server};
use std::iter;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The number of miscounts that the program prints.
const PRINTED: usize = 5;

/// The result for one client.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) client: &'static Client,
    pub(crate) version: String,
    /// The server and its version.
    pub(crate) server: String,
    /// The counts and the miscounts of each kind of lock.
    pub(crate) kinds: [(FaultCounts, Vec<String>); LockKind::ALL.len()],
    /// The locks with HOLDS that remain after the run.
    remaining: Vec<String>,
}

impl Finding {
    /// The reasons why the run fails: miscounts and remaining locks with HOLDS, no miscount without HOLDS, and a
    /// wrong [`Client::sends_again`].
    pub(crate) fn failures(&self) -> Vec<String> {
        let name = self.client.name;
        let [(counts, lockward), (_, without_holds)] = &self.kinds;
        let left = self.remaining.iter().map(|key| format!("{key} remains"));
        let wrong: Vec<String> = lockward.iter().cloned().chain(left).collect();
        let mut failures: Vec<String> =
            wrong.iter().take(PRINTED).map(|what| format!("{name}: {what}")).collect();
        if wrong.len() > PRINTED {
            failures.push(format!("{name}: and {} more", wrong.len() - PRINTED));
        }
        if without_holds.is_empty() {
            failures.push(format!("{name}: the control without HOLDS does not miscount"));
        }
        if self.client.sends_again != (counts.sent_again > 0) {
            failures.push(format!("{name} should repeat commands itself: {}", self.client.sends_again));
        }
        failures
    }
}

/// How many owners of each kind of lock wait or do not wait ([`Actor::waits`]), for a usual or a long time
/// ([`Actor::long`]). Together they issue up to 28 commands at the same time.
const OWNERS: [(bool, bool, usize); 4] =
    [(false, false, 12), (true, false, 12), (false, true, 2), (true, true, 2)];

/// Tests one client on one server, with all kinds of lock at the same time.
pub(crate) fn run(client: &'static Client, goal: u64, seed: u64) -> Finding {
    let server = Server::start();
    // If the client limits the wait for a reply, this time is longer than the limit.
    let long = client.patience.unwrap_or(Duration::from_secs(3)) + Duration::from_secs(1);
    let owners = OWNERS
        .into_iter()
        .flat_map(|(waits, is_long, owners)| iter::repeat_n((waits, is_long.then_some(long)), owners));
    let actors: Vec<_> = LockKind::ALL
        .into_iter()
        .flat_map(|kind| owners.clone().map(move |(waits, long)| (kind, waits, long)))
        .collect();
    let mut seeds = Random::from_seed(seed);
    let traffic = actors.iter().map(|&(kind, waits, long)| (kind, seeds.number(), long.filter(|_| !waits)));
    let faults = Arc::new(Faults::new(traffic, goal));
    let proxy = Proxy::start(server.port(), {
        let faults = Arc::clone(&faults);
        move |request| faults.fate_of(request)
    });
    let driver = Driver::start(client.name, client.program, proxy.port());
    let mut miscounts = [const { Vec::new() }; LockKind::ALL.len()];
    thread::scope(|scope| {
        let playing: Vec<_> = actors
            .iter()
            .enumerate()
            .map(|(number, &(kind, waits, long))| {
                let random = Random::from_seed(seeds.number());
                let (driver, faults, server) = (&driver, &*faults, server.client());
                let actor = Actor { number, kind, waits, long, driver, faults, server, random };
                (kind, scope.spawn(move || actor.run()))
            })
            .collect();
        for (kind, actor) in playing {
            miscounts[kind as usize].extend(actor.join().expect("an actor that plays to its end"));
        }
    });
    let pattern = format!("{}:*", LockKind::WithHolds.prefix());
    let remaining = server.client().call(["KEYS", &pattern]).items().iter().map(Reply::text).collect();
    let version = driver.version.clone();
    let kinds = LockKind::ALL.map(|kind| (faults.counts(kind), mem::take(&mut miscounts[kind as usize])));
    Finding { client, version, server: server.version(), kinds, remaining }
}
