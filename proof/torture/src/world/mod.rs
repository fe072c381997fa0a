//! The worlds: the servers, their faults, and the promises that hold in spite of them.

mod alone;
mod clustered;
mod cut_off;
mod failover;
mod sentinels;
mod wiped;

use crate::worker::Worker;
use cut_off::{CutOff, Settings};
use lockward_checker::bounds::{Activity, Bounds};
use lockward_checker::checker;
use lockward_checker::client::Workload;
use lockward_checker::history::{Fault, History, Line, Nanos};
use lockward_checker::random::Random;
use lockward_checker::recorder::{Recorder, now};
use lockward_checker::violation::Violation;
use lockward_tests::Client;
use std::ops::Range;
use std::thread;
use std::time::Duration;

const MS: Nanos = 1_000_000;

/// A world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WorldName {
    /// One server with an AOF. It is killed and restarted, and stopped past leases.
    Alone,
    /// One server whose wall clock is stepped.
    Clocks,
    /// One server without persistence, with a quarantine. It is killed and restarted.
    Wiped,
    /// A primary and its replica, with a quarantine. There are planned failovers, and failovers after the primary's death.
    Failover,
    /// A primary and two replicas, with a quarantine. One replica misses grants and is promoted.
    CutOff,
    /// The same without a quarantine. Grants are lost.
    Lossy,
    /// As `CutOff`, but the replica is stopped, so changes wait in its socket as far as they fit.
    Frozen,
    /// A primary, two replicas and Sentinels, with a quarantine. The primary dies.
    Sentinels,
    /// The same, but the primary is stopped, and continues after another was promoted.
    Sleeping,
    /// A cluster of three primaries with a replica each. Slots move, and primaries fail over as planned.
    Cluster,
}

/// The servers of a world.
pub trait World {
    /// The port of the primary. In a cluster, the port of some node.
    fn port(&self) -> u16;

    /// The URL for `lockward-client`.
    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The ports of all primaries.
    fn ports(&self) -> Vec<u16> {
        vec![self.port()]
    }

    /// Injects one fault, and heals it.
    fn fault(&mut self, nemesis: &mut Nemesis<'_>);
}

impl WorldName {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Alone,
        Self::Clocks,
        Self::Wiped,
        Self::Failover,
        Self::CutOff,
        Self::Lossy,
        Self::Frozen,
        Self::Sentinels,
        Self::Sleeping,
        Self::Cluster,
    ];

    /// The worlds for clients that use `lockward-client`.
    pub const THROUGH_CLIENT: [Self; 4] = [Self::Alone, Self::Wiped, Self::Sentinels, Self::Cluster];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Clocks => "clocks",
            Self::Wiped => "wiped",
            Self::Failover => "failover",
            Self::CutOff => "cut-off",
            Self::Lossy => "lossy",
            Self::Frozen => "frozen",
            Self::Sentinels => "sentinels",
            Self::Sleeping => "sleeping",
            Self::Cluster => "cluster",
        }
    }

    /// Starts its servers.
    #[must_use]
    pub fn start(self) -> Box<dyn World> {
        match self {
            Self::Alone => Box::new(alone::Alone::start()),
            Self::Clocks => Box::new(alone::Clocks::start()),
            Self::Wiped => Box::new(wiped::Wiped::start()),
            Self::Failover => Box::new(failover::Failover::start()),
            Self::CutOff => Box::new(CutOff::start(Settings::Safe)),
            Self::Lossy => Box::new(CutOff::start(Settings::Default)),
            Self::Frozen => Box::new(cut_off::Frozen::start()),
            Self::Sentinels => Box::new(sentinels::Watched::start()),
            Self::Sleeping => Box::new(sentinels::Sleeping::start()),
            Self::Cluster => Box::new(clustered::Clustered::start(&self.workload().keys)),
        }
    }

    /// The workload of its clients.
    #[must_use]
    pub fn workload(self) -> Workload {
        let forgets = self.forgets();
        Workload {
            keys: ["orders", "stock", "mail", "index"].map(str::to_owned).into(),
            lease: 20 * MS..120 * MS,
            long_lease: if forgets { 300 * MS..QUARANTINE } else { 1_500 * MS..3_000 * MS },
            rest: 100 * MS..400 * MS,
            wait: 5 * MS..400 * MS,
            careful: forgets,
            // A failover may lose a release. Without a quarantine the owner would get the old tenure again.
            new_owner_each_tenure: matches!(self, Self::Lossy | Self::Sleeping),
        }
    }

    /// The bounds of its promises. The required activity grows with the length of the run.
    #[must_use]
    pub fn bounds(self, length: Duration) -> Bounds {
        let seconds = usize::try_from(length.as_secs()).unwrap_or(usize::MAX);
        // Failovers by Sentinels take most of the time.
        let seconds = if matches!(self, Self::Sentinels | Self::Sleeping) { seconds / 10 } else { seconds };
        // In a cluster a call may take three requests, and two servers block while a key moves between them.
        let slowdown = if matches!(self, Self::Cluster) { 2 } else { 1 };
        Bounds {
            handoff: slowdown * 500 * MS,
            answer: slowdown * 1_000 * MS,
            settle: if self.forgets() { QUARANTINE + 1_000 * MS } else { 1_000 * MS },
            minimum: Activity {
                grants: 100 * seconds,
                handoffs: 10 * seconds,
                lease_ends: seconds,
                faults: seconds / 4,
                // A careful client writes with a stale token only after a sleep.
                refused_writes: seconds / if self.forgets() { 20 } else { 4 },
            },
            ..Bounds::default()
        }
    }

    /// Checks a history for the promises of this world.
    #[must_use]
    pub fn check(self, history: &History, bounds: &Bounds) -> Vec<Violation> {
        let checks: &[fn(&History, &Bounds) -> Vec<Violation>] = match self {
            Self::Alone | Self::Clocks | Self::Wiped | Self::Cluster => &[checker::check],
            // A replica that missed a re-entry or a release has another count than its primary.
            Self::Failover | Self::CutOff | Self::Frozen => &[
                checker::tenures_never_overlap,
                checker::tokens_grow_and_have_one_owner,
                checker::queue_order_is_grant_order,
                checker::a_freed_lock_reaches_a_waiter,
                checker::every_call_is_answered,
                checker::the_store_accepted_no_stale_write,
                checker::enough_happened,
            ],
            // The Sentinels may promote a replica without a recorded fault.
            Self::Sentinels => &[
                checker::tenures_never_overlap,
                checker::tokens_grow_and_have_one_owner,
                checker::the_store_accepted_no_stale_write,
                checker::enough_happened,
            ],
            Self::Lossy => &[
                checker::tokens_grow_and_have_one_owner,
                checker::the_store_accepted_no_stale_write,
                checker::every_call_is_answered,
                checker::enough_happened,
            ],
            // A primary that continues grants locks until it learns of the failover.
            Self::Sleeping => &[
                checker::each_token_has_one_owner,
                checker::the_store_accepted_no_stale_write,
                checker::every_call_is_answered,
                checker::enough_happened,
            ],
        };
        checks.iter().flat_map(|check| check(history, bounds)).collect()
    }

    /// Whether two owners may hold a lock at once here. A run without such an overlap proves nothing.
    #[must_use]
    pub const fn loses_grants(self) -> bool {
        matches!(self, Self::Lossy)
    }

    /// Whether a replaced primary continues here, and grants locks until it learns of the failover.
    #[must_use]
    pub const fn wakes_primaries(self) -> bool {
        matches!(self, Self::Sleeping)
    }

    /// Whether a server can forget a grant here. Then there is a quarantine, and clients are careful.
    const fn forgets(self) -> bool {
        match self {
            Self::Alone | Self::Clocks | Self::Cluster => false,
            Self::Wiped
            | Self::Failover
            | Self::CutOff
            | Self::Lossy
            | Self::Frozen
            | Self::Sentinels
            | Self::Sleeping => true,
        }
    }
}

/// The quarantine of the worlds that have one. No lease is longer.
const QUARANTINE: Nanos = 900 * MS;

/// Injects faults and records them.
#[derive(Debug)]
pub struct Nemesis<'r> {
    /// The random choices.
    pub random: Random,
    recorder: &'r Recorder,
    workers: Vec<Worker>,
}

impl<'r> Nemesis<'r> {
    /// A nemesis of these workers.
    #[must_use]
    pub fn new(random: Random, recorder: &'r Recorder, workers: Vec<Worker>) -> Self {
        Self { random, recorder, workers }
    }

    /// The recorder of the faults.
    #[must_use]
    pub const fn recorder(&self) -> &'r Recorder {
        self.recorder
    }

    /// Injects a fault into the servers and records it.
    pub fn fault<T>(&mut self, name: &str, fault: impl FnOnce(&mut Self) -> T) -> T {
        let start = now();
        let done = fault(self);
        self.record(name, None, start);
        done
    }

    /// The same for an operation that clients must not notice. It is recorded as a fault to no client, so it excuses no late reply.
    pub fn maintenance<T>(&mut self, name: &str, operation: impl FnOnce(&mut Self) -> T) -> T {
        const NOBODY: u32 = u32::MAX - 1;
        let start = now();
        let done = operation(self);
        self.record(name, Some(NOBODY), start);
        done
    }

    fn record(&self, name: &str, client: Option<u32>, start: Nanos) {
        self.recorder.record(&Line::Fault(Fault { name: name.to_owned(), client, start, end: now() }));
    }

    /// Sleeps for some milliseconds.
    pub fn sleep(&mut self, ms: Range<u64>) {
        let until = now() + self.random.between(ms.start, ms.end) * MS;
        while now() < until {
            thread::park_timeout(Duration::from_nanos(until.saturating_sub(now())));
        }
    }

    /// Sends the port of the new primary to the clients.
    pub fn announce_primary(&mut self, port: u16) {
        for worker in &mut self.workers {
            worker.announce_primary(port);
        }
    }

    /// Closes about half of the connections to a server.
    pub fn cut_connections(&mut self, port: u16) {
        self.fault("cut", |nemesis| {
            let Ok(mut client) = Client::connect(port) else { return };
            let Ok(list) = client.try_call("CLIENT LIST TYPE normal") else { return };
            for line in list.text().lines() {
                let id = line.split(' ').find_map(|field| field.strip_prefix("id="));
                if let Some(id) = id.filter(|_| nemesis.random.percent(50)) {
                    let _ = client.try_call(["CLIENT", "KILL", "ID", id]);
                }
            }
        });
    }

    /// Stops one worker process for longer than most leases.
    pub fn stop_clients(&mut self) {
        let Some(worker) = usize::try_from(self.random.number()).ok().map(|at| at % self.workers.len())
        else {
            return;
        };
        let start = now();
        self.workers[worker].stop();
        self.sleep(100..600);
        self.workers[worker].resume();
        for client in self.workers[worker].clients.clone() {
            self.record("stop of a client", Some(client), start);
        }
        if self.workers[worker].clients.start == 0 {
            self.record("stop of a client", Some(u32::MAX), start);
        }
    }

    /// The workers, after the last fault.
    #[must_use]
    pub fn into_workers(self) -> Vec<Worker> {
        self.workers
    }
}
