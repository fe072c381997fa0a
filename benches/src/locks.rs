//! Measures a server with different numbers of locks: the CPU time of a pair and of a renewal, the memory, and how long
//! the server saves and loads a snapshot. Strings with a TTL are measured for comparison.

use crate::batch::Batch;
use crate::clients::Clients;
use crate::cpu::CpuClock;
use crate::pairs::{CONNECTIONS, DEPTH, Pair};
use crate::placement::{Place, be_client_of};
use crate::report::{Report, compare};
use crate::request::{LONG_LEASE, exchange, fill, numbers, owner, request, used_memory};
use crate::results::{Row, Series, Unit};
use crate::server::{cost, start};
use lockward_tests::{Client, Random, Server};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

const COUNTS: [usize; 5] = [1, 1_000, 100_000, 1_000_000, 10_000_000];
/// With fewer locks than this, memory and loading are not measured: the clients' buffers take more memory than the
/// locks, and the start of a server takes more time than the loading.
const WORTH_LOADING: usize = 100_000;
const ROUNDS: usize = 15;
const EACH: usize = 160;
const SNAPSHOTS: usize = 3;
/// The number of lookups in one request. The lookups advance a rehash.
const WALK: usize = 10_000;
/// The memory for a lock and a string, and for the lock on the server that loads the snapshot, in bytes.
const MEMORY: f64 = 620.0;
/// How long to wait between two checks whether the snapshot is complete.
const POLLED: Duration = Duration::from_millis(2);

/// A server that is filled step by step, with locks or with strings that have a TTL.
struct Store {
    pair: Pair,
    server: Server,
    control: Client,
    clients: Clients,
    numbers: Random,
    empty: f64,
    count: usize,
}

impl Store {
    fn start(pair: Pair) -> Self {
        // The child process that saves the snapshot has the priority of the server, but runs on the other CPU.
        let cpus = format!("bgsave_cpulist {}", Place::Apart.cpu());
        let server = start(&[&cpus]);
        let clients = Clients::open(server.port(), CONNECTIONS);
        let mut control = server.client();
        let empty = used_memory(&mut control);
        Self { pair, server, control, clients, numbers: numbers(), empty, count: 0 }
    }

    fn fill(&mut self, count: usize) {
        let take: &[&str] = if self.pair == Pair::Lock { &["LOCK.ACQUIRE"] } else { &["SET"] };
        fill(&mut self.control, self.count..count, |number| {
            request(&[take, &[&*key(number), &owner(number), "PX", LONG_LEASE]].concat())
        });
        self.count = count;
        // The server rehashes a growing table in steps, one at each lookup. These lookups complete the rehash.
        let walk = [vec!["EXISTS".to_owned()], vec![key(0); WALK]].concat();
        (0..count / WALK).for_each(|_| _ = self.control.call(&walk[..]));
        // A new control connection frees the large buffer of the old connection.
        self.control = self.server.client();
    }

    /// Bytes for each key.
    fn memory(&mut self) -> f64 {
        (used_memory(&mut self.control) - self.empty) / self.count as f64
    }

    fn pair(&mut self) -> f64 {
        self.cost(|store| {
            let number = store.numbers.number() as usize % 100_000_000;
            store.pair.requests(&store.server, &format!("free:{number:08}"), &owner(number)).to_vec()
        })
    }

    fn renewal(&mut self) -> f64 {
        self.cost(|store| {
            let number = store.numbers.number() as usize % store.count;
            vec![request(&["LOCK.RENEW", &key(number), &owner(number), "PX", LONG_LEASE])]
        })
    }

    fn cost(&mut self, requests: impl Fn(&mut Self) -> Vec<Vec<u8>>) -> f64 {
        let batches: Vec<Batch> = (0..CONNECTIONS)
            .map(|_| Batch::of(&(0..EACH).flat_map(|_| requests(self)).collect::<Vec<_>>(), DEPTH))
            .collect();
        cost(self.server.pid(), CONNECTIONS * EACH, || self.clients.run(&batches, 1))
    }

    fn snapshots(&mut self, measure: fn(&mut Self) -> f64) -> Series {
        let mut series = Series::default();
        (0..SNAPSHOTS).for_each(|_| series.push(measure(self)));
        series
    }

    /// Saves a snapshot in a child process. Returns how long this takes, in nanoseconds.
    fn save(&mut self) -> f64 {
        let begin = Instant::now();
        exchange(&mut self.control, &[request(&["BGSAVE"])]);
        while self.control.stat("persistence", "rdb_bgsave_in_progress") > 0 {
            thread::sleep(POLLED);
        }
        begin.elapsed().as_nanos() as f64
    }

    /// The CPU time for loading the snapshot into another server, in nanoseconds.
    fn load(&mut self) -> f64 {
        let spent = |config: &[&str]| CpuClock::of(start(config).pid()).settled().as_nanos() as f64;
        let nothing = spent(&[]);
        spent(&[&format!("dir {}", self.server.dir().display())]) - nothing
    }
}

fn key(number: usize) -> String {
    format!("lock:{number:08}")
}

/// Measures all sizes that fit into the machine's memory.
pub fn measure(report: &mut Report) {
    const PAIR: &str = "server CPU for a pair";
    const LOAD: &str = "CPU to load the RDB file";
    const STRINGS: &str = "strings with a TTL";
    be_client_of(Place::Together);
    let mut stores = [Pair::Lock, Pair::Set].map(Store::start);
    for count in COUNTS {
        let (needed, left) = (count as f64 * MEMORY, available_memory());
        if needed > left {
            let [needed, left] = [needed, left].map(|bytes| bytes / 1e9);
            eprintln!("        {count} locks need {needed:.1} GB, but only {left:.1} GB are available");
            break;
        }
        stores.iter_mut().for_each(|store| store.fill(count));
        let row = |what, unit, ours: &Series| Row::figure(what, unit, ours).at(count, "lock");
        let time = Unit::Nanoseconds;
        let [lock, set] = compare(ROUNDS, |which| stores[which].pair());
        report.row(row(PAIR, time, &lock).against("SET NX PX + DEL", &set));
        let [renewal] = compare(ROUNDS, |_| stores[0].renewal());
        report.row(row("server CPU for a renewal", time, &renewal));
        let [lock, string] = [0, 1].map(|which| stores[which].snapshots(Store::save));
        report.row(row("time of BGSAVE", time, &lock).against(STRINGS, &string));
        if count < WORTH_LOADING {
            continue;
        }
        let memory = Series::once(stores[0].memory());
        report.row(row("memory for each lock", Unit::Bytes, &memory));
        let [lock, string] = [0, 1].map(|which| stores[which].snapshots(Store::load));
        report.row(row(LOAD, time, &lock).against(STRINGS, &string));
    }
    let x = "locks that are held, or strings with a TTL";
    let title = "Server CPU for a pair by the number of locks";
    let names = ["acquire + release", "SET NX PX + DEL"];
    report.plot("locks-pair", title, [x, "microseconds, pipelined"], PAIR, names, 1e3);
    let title = "Loading a snapshot by the number of locks";
    report.plot("locks-load", title, [x, "seconds of CPU"], LOAD, ["locks", STRINGS], 1e9);
}

/// The memory that this machine has left, in bytes.
fn available_memory() -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let left = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix(" kB"));
    left.and_then(|left| left.trim().parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}
