//! The worlds: which servers there are, what may happen to them, and what is promised all the same.

mod alone;
mod clustered;
mod cut_off;
mod failover;
mod sentinels;
mod wiped;

use crate::worker::Worker;
use cut_off::{CutOff, Settings};
use lockward_checker::violation::Violation;
use lockward_checker::bounds::{Bounds, Activity};
use lockward_checker::checker;
use lockward_checker::client::Workload;
use lockward_checker::history::{Fault, History, Line, Nanos};
use lockward_checker::random::Random;
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::Client;
use std::ops::Range;
use std::thread;
use std::time::Duration;

const MS: Nanos = 1_000_000;

/// A world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WorldName {
    /// One server that keeps an AOF: it is killed and started again, and stands still past leases.
    Alone,
    /// One server whose wall clock is stepped.
    Clocks,
    /// One server that forgets everything when it is killed, with a quarantine.
    Wiped,
    /// A primary and its replica, with a quarantine: planned failovers, and such where the primary dies.
    Failover,
    /// A primary and two replicas with a quarantine: one of them misses grants, and is promoted.
    CutOff,
    /// The same without a quarantine: grants are lost.
    Lossy,
    /// As `CutOff`, but the replica stands still: what is sent to it waits in its socket, as far as it fits there.
    Frozen,
    /// A primary and two replicas with a quarantine, watched by Sentinels: the primary dies.
    Sentinels,
    /// The same, but the primary stands still, and goes on when another has taken its place.
    Sleeping,
    /// A cluster of three primaries and a replica each: slots move, and primaries hand over in order.
    Cluster,
}

/// The servers of a world.
pub trait World {
    /// On which port the locks are now.
    fn port(&self) -> u16;

    /// How `lockward-client` is told of them.
    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The ports of all servers that have locks of their own now.
    fn ports(&self) -> Vec<u16> {
        vec![self.port()]
    }

    /// Does one thing to the servers, and undoes it as far as the world goes on without.
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

    /// Those where a client finds its own way.
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

    /// How its clients behave.
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
            // A release that is lost leaves a tenure, and where there is no quarantine its owner finds it again.
            new_owner_each_tenure: matches!(self, Self::Lossy | Self::Sleeping),
        }
    }

    /// The bounds of its promises; how much is to happen grows with the length of the run.
    #[must_use]
    pub fn bounds(self, length: Duration) -> Bounds {
        let seconds = usize::try_from(length.as_secs()).unwrap_or(usize::MAX);
        // For most of the time Sentinels find out, elect and wait.
        let seconds = if matches!(self, Self::Sentinels | Self::Sleeping) { seconds / 10 } else { seconds };
        // In a cluster a call may take three requests, and two servers stand still while a key moves between them.
        let slowly = if matches!(self, Self::Cluster) { 2 } else { 1 };
        Bounds {
            handoff: slowly * 500 * MS,
            answer: slowly * 1_000 * MS,
            settle: if self.forgets() { QUARANTINE + 1_000 * MS } else { 1_000 * MS },
            minimum: Activity {
                grants: 100 * seconds,
                handoffs: 10 * seconds,
                lease_ends: seconds,
                faults: seconds / 4,
                // A careful client shows a stale token only where it has slept.
                refused_writes: seconds / if self.forgets() { 20 } else { 4 },
            },
            ..Bounds::default()
        }
    }

    /// Holds a history against what this world promises.
    #[must_use]
    pub fn check(self, history: &History, bounds: &Bounds) -> Vec<Violation> {
        let checks: &[fn(&History, &Bounds) -> Vec<Violation>] = match self {
            Self::Alone | Self::Clocks | Self::Wiped | Self::Cluster => &[checker::check],
            // A replica that missed a re-entry or a release counts otherwise than its primary told.
            Self::Failover | Self::CutOff | Self::Frozen => &[
                checker::tenures_never_overlap,
                checker::tokens_rise_and_have_one_owner,
                checker::queue_order_is_grant_order,
                checker::a_freed_lock_reaches_a_waiter,
                checker::every_call_is_answered,
                checker::the_store_accepted_no_stale_write,
                checker::enough_happened,
            ],
            // The Sentinels may promote by themselves, when no fault is noted.
            Self::Sentinels => &[
                checker::tenures_never_overlap,
                checker::tokens_rise_and_have_one_owner,
                checker::the_store_accepted_no_stale_write,
                checker::enough_happened,
            ],
            Self::Lossy => &[
                checker::tokens_rise_and_have_one_owner,
                checker::the_store_accepted_no_stale_write,
                checker::every_call_is_answered,
                checker::enough_happened,
            ],
            // A primary that wakes grants locks until it hears that it is none.
            Self::Sleeping => &[
                checker::each_token_has_one_owner,
                checker::the_store_accepted_no_stale_write,
                checker::every_call_is_answered,
                checker::enough_happened,
            ],
        };
        checks.iter().flat_map(|check| check(history, bounds)).collect()
    }

    /// Whether two may hold a lock at once here, and a run in which that does not happen shows nothing.
    #[must_use]
    pub const fn loses_grants(self) -> bool {
        matches!(self, Self::Lossy)
    }

    /// Whether a primary wakes here that has been replaced, and grants until it hears of that.
    #[must_use]
    pub const fn wakes_primaries(self) -> bool {
        matches!(self, Self::Sleeping)
    }

    /// Whether a grant can be forgotten here, so that there is a quarantine and clients are careful.
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

/// The quarantine where there is one. No lease is longer.
const QUARANTINE: Nanos = 900 * MS;

/// What does the faults, and writes them down.
#[derive(Debug)]
pub struct Nemesis<'r> {
    /// Its luck.
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

    /// Where it writes down what it does.
    #[must_use]
    pub const fn recorder(&self) -> &'r Recorder {
        self.recorder
    }

    /// Does a fault to the servers and writes it down.
    pub fn fault<T>(&mut self, name: &str, fault: impl FnOnce(&mut Self) -> T) -> T {
        let start = now();
        let done = fault(self);
        self.record(name, None, start);
        done
    }

    /// The same, for what must not be noticed: it excuses nobody who waits.
    pub fn maintenance<T>(&mut self, name: &str, routine: impl FnOnce(&mut Self) -> T) -> T {
        const NOBODY: u32 = u32::MAX - 1;
        let start = now();
        let done = routine(self);
        self.record(name, Some(NOBODY), start);
        done
    }

    fn record(&self, name: &str, client: Option<u32>, start: Nanos) {
        self.recorder.record(&Line::Fault(Fault { name: name.to_owned(), client, start, end: now() }));
    }

    /// Lets some milliseconds go by.
    pub fn sleep(&mut self, ms: Range<u64>) {
        let until = now() + self.random.between(ms.start, ms.end) * MS;
        while now() < until {
            thread::park_timeout(Duration::from_nanos(until.saturating_sub(now())));
        }
    }

    /// Tells the clients on which port the locks are now.
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

    /// Stops some of the clients, as processes, for longer than most leases.
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

    /// The workers, when all is done.
    #[must_use]
    pub fn into_workers(self) -> Vec<Worker> {
        self.workers
    }
}
