//! The experiment with one client.

use crate::actor::{Actor, Behavior};
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
    /// The locks of Lockward that remain after the run.
    remaining: Vec<String>,
}

impl Finding {
    /// The reasons why the run fails: miscounts and remaining locks of Lockward, controls without a miscount, and a
    /// wrong [`Client::sends_again`].
    pub(crate) fn failures(&self) -> Vec<String> {
        let name = self.client.name;
        let [(_, lockward), controls @ ..] = &self.kinds;
        let left = self.remaining.iter().map(|key| format!("{key} remains"));
        let wrong: Vec<String> = lockward.iter().cloned().chain(left).collect();
        let mut failures: Vec<String> =
            wrong.iter().take(PRINTED).map(|what| format!("{name}: {what}")).collect();
        if wrong.len() > PRINTED {
            failures.push(format!("{name}: and {} more", wrong.len() - PRINTED));
        }
        for ((_, miscounts), kind) in controls.iter().zip([LockKind::WithoutHolds, LockKind::Hash]) {
            if miscounts.is_empty() {
                failures.push(format!("{name}: the control {} does not miscount", kind.prefix()));
            }
        }
        if self.client.sends_again != (self.kinds[0].0.sent_again > 0) {
            failures.push(format!("{name} should repeat commands itself: {}", self.client.sends_again));
        }
        failures
    }
}

/// The owners of each kind of lock. Together they issue up to 28 commands at the same time.
const OWNERS: [(Behavior, usize); 4] =
    [(Behavior::Acquires, 12), (Behavior::Waits, 12), (Behavior::MeetsSilence, 2), (Behavior::WaitsLong, 2)];

/// Tests one client on one server, with all kinds of lock at the same time.
pub(crate) fn run(client: &'static Client, goal: u64, seed: u64) -> Finding {
    let server = Server::start();
    let behaviors = OWNERS.iter().flat_map(|&(behavior, owners)| iter::repeat_n(behavior, owners));
    let actors: Vec<(LockKind, Behavior)> = LockKind::ALL
        .into_iter()
        .flat_map(|kind| behaviors.clone().map(move |behavior| (kind, behavior)))
        .filter(|(kind, behavior)| kind.can_wait() || !behavior.waits())
        .collect();
    let mut seeds = Random::from_seed(seed);
    // If the client limits the wait for a reply, this time is longer than the limit.
    let long = client.patience.unwrap_or(Duration::from_secs(3)) + Duration::from_secs(1);
    let faults = Arc::new(Faults::new(
        actors.iter().map(|&(kind, behavior)| {
            (kind, seeds.number(), (behavior == Behavior::MeetsSilence).then_some(long))
        }),
        goal,
    ));
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
            .map(|(number, &(kind, behavior))| {
                let random = Random::from_seed(seeds.number());
                let (driver, faults, server) = (&driver, &*faults, server.client());
                let actor = Actor { number, kind, behavior, long, driver, faults, server, random };
                (kind, scope.spawn(move || actor.run()))
            })
            .collect();
        for (kind, actor) in playing {
            miscounts[kind as usize].extend(actor.join().expect("an actor that plays to its end"));
        }
    });
    let pattern = format!("{}:*", LockKind::Lockward.prefix());
    let remaining = server.client().call(["KEYS", &pattern]).items().iter().map(Reply::text).collect();
    let version = driver.version.clone();
    let kinds = LockKind::ALL.map(|kind| (faults.counts(kind), mem::take(&mut miscounts[kind as usize])));
    Finding { client, version, server: server.version(), kinds, remaining }
}
