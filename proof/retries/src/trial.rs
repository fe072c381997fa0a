//! One client's trial.

use crate::clients::Client;
use crate::contestant::Contestant;
use crate::driver::Driver;
use crate::faults::{Faults, Tally};
use crate::lane::{Habit, Lane};
use lockward_tests::{Proxy, Random, Reply, Server};
use std::iter;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How many miscounts are told of in words.
const TOLD: usize = 5;

/// What was found with one client.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) client: &'static Client,
    pub(crate) version: String,
    /// The server and its version.
    pub(crate) server: String,
    /// For each contestant what was done, and the miscounts.
    pub(crate) contestants: [(Tally, Vec<String>); Contestant::ALL.len()],
    /// The locks of Lockward that were left behind.
    left: Vec<String>,
}

impl Finding {
    /// What is not as promised.
    pub(crate) fn failures(&self) -> Vec<String> {
        let name = self.client.name;
        let [(_, lockward), controls @ ..] = &self.contestants;
        let left = self.left.iter().map(|key| format!("{key} is left behind"));
        let wrong: Vec<String> = lockward.iter().cloned().chain(left).collect();
        let mut failures: Vec<String> =
            wrong.iter().take(TOLD).map(|what| format!("{name}: {what}")).collect();
        if wrong.len() > TOLD {
            failures.push(format!("{name}: and {} more", wrong.len() - TOLD));
        }
        for ((_, miscounts), contestant) in controls.iter().zip([Contestant::WithoutHolds, Contestant::Hash])
        {
            if miscounts.is_empty() {
                failures.push(format!("{name}: the control {} does not miscount", contestant.prefix()));
            }
        }
        if self.client.sends_again != (self.contestants[0].0.sent_again > 0) {
            failures.push(format!("{name} is said to send again by itself: {}", self.client.sends_again));
        }
        failures
    }
}

/// The owners of each contestant, for 28 commands at a time.
const OWNERS: [(Habit, usize); 4] =
    [(Habit::Takes, 12), (Habit::Waits, 12), (Habit::MeetsSilence, 2), (Habit::Outlasts, 2)];

/// Lets the client play all contestants at the same time, on a server of its own.
pub(crate) fn hold(client: &'static Client, goal: u64, seed: u64) -> Finding {
    let server = Server::start();
    let habits = OWNERS.iter().flat_map(|&(habit, owners)| iter::repeat_n(habit, owners));
    let lanes: Vec<(Contestant, Habit)> = Contestant::ALL
        .into_iter()
        .flat_map(|contestant| habits.clone().map(move |habit| (contestant, habit)))
        .filter(|(contestant, habit)| contestant.can_wait() || !habit.waits())
        .collect();
    let mut seeds = Random::from_seed(seed);
    // Longer than the client waits for a reply, where it does not wait without limit.
    let long = client.patience.unwrap_or(Duration::from_secs(3)) + Duration::from_secs(1);
    let faults = Arc::new(Faults::new(
        lanes.iter().map(|&(contestant, habit)| {
            (contestant, seeds.number(), (habit == Habit::MeetsSilence).then_some(long))
        }),
        goal,
    ));
    let proxy = Proxy::start(server.port(), {
        let faults = Arc::clone(&faults);
        move |request| faults.fate_of(request)
    });
    let driver = Driver::start(client.name, client.program, proxy.port());
    let mut miscounts = [const { Vec::new() }; Contestant::ALL.len()];
    thread::scope(|scope| {
        let playing: Vec<_> = lanes
            .iter()
            .enumerate()
            .map(|(number, &(contestant, habit))| {
                let random = Random::from_seed(seeds.number());
                let (driver, faults, server) = (&driver, &*faults, server.client());
                let lane = Lane { number, contestant, habit, long, driver, faults, server, random };
                (contestant, scope.spawn(move || lane.play()))
            })
            .collect();
        for (contestant, lane) in playing {
            miscounts[contestant as usize].extend(lane.join().expect("a lane that plays to its end"));
        }
    });
    let pattern = format!("{}:*", Contestant::Lockward.prefix());
    let left = server.client().call(["KEYS", &pattern]).items().iter().map(Reply::text).collect();
    let version = driver.version.clone();
    let contestants = Contestant::ALL
        .map(|contestant| (faults.tally(contestant), mem::take(&mut miscounts[contestant as usize])));
    Finding { client, version, server: server.version(), contestants, left }
}
