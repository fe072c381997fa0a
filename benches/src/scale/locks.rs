//! Curves by the number of locks of a server: CPU for each pair and renewal, memory, snapshots and their loading.
//! Strings with a TTL are measured for comparison.

use super::curves::{Curve, Point, axes, has_memory, plot};
use crate::clients::Client;
use crate::pairs::{CONNECTIONS, DEPTH, Pair};
use crate::pipeline::{Batch, Expected, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LONG_LEASE, numbers, owner, request};
use crate::results::Unit;
use crate::rounds::Series;
use crate::server::Server;
use lockward_tests::Random;
use std::thread;
use std::time::{Duration, Instant};

pub const STAGE: &str = "locks";

const COUNTS: [usize; 5] = [1, 1_000, 100_000, 1_000_000, 10_000_000];
/// With fewer locks than this, memory and loading are not measured: the clients' buffers take more memory than the
/// locks, and the start of a server takes more time than the loading.
const WORTH_LOADING: usize = 100_000;
const ROUNDS: usize = 15;
/// The number of pairs that a connection sends in a round. The number of renewals is twice this number.
const EACH: usize = 160;
/// The number of snapshots of each size. There is only one snapshot of the largest size: this snapshot takes long, so
/// its noise is small.
const SNAPSHOTS: usize = 3;
/// The number of lookups in one request. The lookups advance a rehash.
const WALK: usize = 10_000;
/// The memory for a lock on one server and a string on the other server, in bytes.
const HELD: f64 = 400.0;
/// Memory for a lock on the server that loads the snapshot, in bytes.
const LOADED: f64 = 220.0;
/// The pause between two checks for the end of a snapshot.
const POLLED: Duration = Duration::from_millis(2);

/// What the keys of a server are: locks, or strings with a TTL.
#[derive(Debug)]
struct Kept {
    /// The request that takes a key for an owner.
    take: fn(&str, &str) -> Vec<u8>,
    renew: fn(&str, &str) -> (Vec<u8>, Expected),
    pair: Pair,
}

const LOCKS: Kept = Kept {
    take: |key, owner| request(&["LOCK.ACQUIRE", key, owner, "PX", LONG_LEASE]),
    renew: |key, owner| (request(&["LOCK.RENEW", key, owner, "PX", LONG_LEASE]), Expected::Token),
    pair: Pair::Lock,
};
const STRINGS: Kept = Kept {
    take: |key, owner| request(&["SET", key, owner, "PX", LONG_LEASE]),
    renew: |key, _| (request(&["PEXPIRE", key, LONG_LEASE]), Expected::Number(1)),
    pair: Pair::Set,
};

/// The figures that are measured at each number of locks: the curve, and what the figure is compared with.
const FIGURES: [(Curve<'_>, &str); 5] = [
    (("pair", "server CPU for a pair", Unit::Nanoseconds), "SET NX PX + DEL"),
    (("renewal", "server CPU for a renewal", Unit::Nanoseconds), "PEXPIRE"),
    (("memory", "memory for each lock", Unit::Bytes), "strings with a TTL"),
    (("save", "time of BGSAVE", Unit::Nanoseconds), "strings with a TTL"),
    (("load", "CPU to load the RDB file", Unit::Nanoseconds), "strings with a TTL"),
];
/// The measurements in the order of [`FIGURES`].
type Measured = [Series; FIGURES.len()];

/// A server that is filled step by step.
struct Store {
    kept: &'static Kept,
    server: Server,
    control: Client,
    pipeline: Pipeline,
    numbers: Random,
    empty: f64,
    count: usize,
}

impl Store {
    fn start(kept: &'static Kept) -> Self {
        // The child process that saves the snapshot has the priority of the server, but runs on the other CPU.
        let cpus = format!("bgsave_cpulist {}", Place::Apart.cpu());
        let server = Server::start(&[&cpus]);
        let pipeline = Pipeline::open(&server, CONNECTIONS);
        let mut control = server.client();
        let empty = control.info_number("memory", "used_memory");
        Self { kept, server, control, pipeline, numbers: numbers(), empty, count: 0 }
    }

    fn fill(&mut self, count: usize) {
        let kept = self.kept;
        self.control.fill(self.count..count, |number| (kept.take)(&key(number), &owner(number)));
        self.count = count;
        // A new control connection frees the large buffer of the old connection.
        self.control = self.server.client();
        // The server rehashes a growing table in steps, one at each lookup. These lookups complete the rehash.
        let first = key(0);
        let walk = [&["EXISTS"][..], &[&*first; WALK]].concat();
        let walks = if count > WALK { count / WALK } else { 0 };
        (0..walks).for_each(|_| drop(self.control.call(&walk)));
        self.control = self.server.client();
    }

    /// Bytes for each key.
    fn memory(&mut self) -> f64 {
        (self.control.info_number("memory", "used_memory") - self.empty) / self.count as f64
    }

    /// The CPU for a pair on a free lock.
    fn pair(&mut self) -> f64 {
        self.cost(EACH, |store| {
            let number = store.numbers.number() as usize % 100_000_000;
            let key = format!("free:{number:08}");
            store.kept.pair.commands(&mut store.control, &key, &owner(number)).to_vec()
        })
    }

    /// The CPU for a renewal.
    fn renewal(&mut self) -> f64 {
        self.cost(2 * EACH, |store| {
            let number = store.numbers.number() as usize % store.count;
            vec![(store.kept.renew)(&key(number), &owner(number))]
        })
    }

    fn cost(&mut self, each: usize, commands: impl Fn(&mut Self) -> Vec<(Vec<u8>, Expected)>) -> f64 {
        let batch =
            |store: &mut Self| Batch::of(&(0..each).flat_map(|_| commands(store)).collect::<Vec<_>>(), DEPTH);
        let batches: Vec<Batch> = (0..CONNECTIONS).map(|_| batch(self)).collect();
        let Self { server, pipeline, .. } = self;
        server.cost(CONNECTIONS * each, || pipeline.run(&batches, 1))
    }

    /// Saves a snapshot in a child process, and loads it into another server.
    fn snapshot(&mut self, measured: &mut Measured) {
        let [.., save, load] = measured;
        let begin = Instant::now();
        self.control.call(&["BGSAVE"]);
        while self.control.info_number("persistence", "rdb_bgsave_in_progress") > 0.0 {
            thread::sleep(POLLED);
        }
        if self.count > 1 {
            save.push(begin.elapsed().as_nanos() as f64);
        }
        if self.count >= WORTH_LOADING {
            let spent = |config: &[&str]| Server::start(config).cpu().settled().as_nanos() as f64;
            let nothing = spent(&[]);
            load.push(spent(&[&format!("dir {}", self.server.dir().display())]) - nothing);
        }
    }
}

fn key(number: usize) -> String {
    format!("lock:{number:08}")
}

/// Measures all sizes that fit into the machine's memory.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let mut stores = [&LOCKS, &STRINGS].map(Store::start);
    for (done, count) in COUNTS.into_iter().enumerate() {
        report.progress(done, COUNTS.len());
        let needed = (count - stores[0].count) as f64 * HELD + count as f64 * LOADED;
        if !has_memory(report, needed, &format!("{count} locks")) {
            break;
        }
        let mut measured = <[Measured; 2]>::default();
        for (store, measured) in stores.iter_mut().zip(&mut measured) {
            store.fill(count);
            if count >= WORTH_LOADING {
                measured[2].push(store.memory());
            }
        }
        let costs =
            report.alternate(ROUNDS, stores.len(), |which| [stores[which].pair(), stores[which].renewal()]);
        for (measured, [pair, renewal]) in measured.iter_mut().zip(costs) {
            (measured[0], measured[1]) = (pair, renewal);
        }
        let snapshots = if count == COUNTS[COUNTS.len() - 1] { 1 } else { SNAPSHOTS };
        for _ in 0..snapshots {
            for (store, measured) in stores.iter_mut().zip(&mut measured) {
                store.snapshot(measured);
            }
        }
        let point = Point::new(STAGE, count, "lock");
        let [locks, strings] = &measured;
        for ((curve, against), sides) in FIGURES.iter().zip(locks.iter().zip(strings)) {
            if sides.0.rounds() > 0 {
                point.compared(report, *curve, against, [sides.0, sides.1]);
            }
        }
    }
    add_plots(report);
}

fn add_plots(report: &mut Report) {
    let x = "locks that are held, or strings with a TTL";
    let axes = |name: &str, title: &str, y: &str| axes(&format!("{STAGE}-{name}"), title, x, y);
    let pair = axes("pair", "Server CPU for a pair by the number of locks", "microseconds, pipelined");
    plot(report, pair, &[("acquire + release", "pair"), ("SET NX PX + DEL", "pair-against")], 1e3);
    let load = axes("load", "Loading a snapshot by the number of locks", "seconds of CPU");
    plot(report, load, &[("locks", "load"), ("strings with a TTL", "load-against")], 1e9);
}
