//! What a million clients need, computed from the measured figures with the formulas of docs/scale.md.

use super::{cluster, locks, waiters};
use crate::markdown::table;
use crate::plot::whole;
use crate::results::Results;

/// The number of clients in the table. Each client has a lock or waits for a lock.
const CLIENTS: f64 = 1e6;
/// The time between two renewals of a lease, in seconds.
const RENEWED: f64 = 10.0;
/// The part of a CPU that a node should use. The rest is for bursts, for snapshots, and for the clients of a failed
/// node.
const BUSY: f64 = 0.5;
/// The largest number of connections of a node.
const CONNECTIONS: f64 = 50_000.0;
/// The ratio of `maxclients` to the connections. The spare connections are for the clients of a failed node.
const SPARE: f64 = 1.5;

/// The pairs of a client in a minute, and the part of the clients that waits.
const WORKLOADS: [(f64, f64); 5] = [(0.1, 0.001), (1.0, 0.01), (1.0, 0.1), (10.0, 0.05), (60.0, 0.2)];

/// The measured figures in the formulas: bytes, and nanoseconds of CPU.
struct Figures {
    lock: f64,
    connection: f64,
    waiter: f64,
    pair: f64,
    renewal: f64,
    handoff: f64,
    wait: f64,
}

impl Figures {
    /// The figures at the largest measured number of locks, waiters or nodes. `None` if one of the figures was not
    /// measured.
    fn of(results: &Results) -> Option<Self> {
        let last = |stage: &str, curve: &str| {
            let prefix = format!("{stage}/{curve}-");
            let of_curve = results.rows.iter().filter_map(|row| {
                let number: usize = row.name.strip_prefix(&prefix)?.parse().ok()?;
                Some((number, row.measured))
            });
            of_curve.max_by_key(|(number, _)| *number).map(|(_, measured)| measured)
        };
        Some(Self {
            lock: last(locks::STAGE, "memory")?,
            connection: last(waiters::STAGE, "connection")?,
            waiter: last(waiters::STAGE, "memory")?,
            pair: last(cluster::STAGE, "pair")?,
            renewal: last(cluster::STAGE, "renewal")?,
            handoff: last(waiters::STAGE, "each-handoff")?,
            wait: last(waiters::STAGE, "each-wait")?,
        })
    }
}

/// The figures that the formulas use, and the table. `None` if the run has not measured all these figures.
pub fn tables(results: &Results) -> Option<String> {
    let figures = Figures::of(results)?;
    let bytes = |number: f64| format!("{} bytes", whole(number));
    let time = |number: f64| format!("{:.1} µs", number / 1e3);
    let terms = [
        ("LOCK", bytes(figures.lock), "memory for each lock"),
        ("CONNECTION", bytes(figures.connection), "memory of a connection that has been idle for 6 seconds"),
        (
            "WAITER",
            bytes(figures.waiter),
            "memory of a waiter that has been idle for 6 seconds, with its connection",
        ),
        ("PAIR", time(figures.pair), "server CPU for a pair in the cluster"),
        ("RENEWAL", time(figures.renewal), "server CPU for a renewal in the cluster"),
        (
            "HANDOFF",
            time(figures.handoff + figures.wait),
            "server CPU for the start of a wait and a hand-off, each client waits for its own lock",
        ),
    ];
    let terms = terms.map(|(name, measured, place)| vec![format!("`{name}`"), measured, place.to_owned()]);
    let terms = table(&["in the formulas", "measured", "what it is"], 3, terms);
    let needs = WORKLOADS.map(|(pairs, waiting)| figures.needs(pairs, waiting));
    Some(format!("{terms}\n{}", table(&NEEDS, NEEDS.len(), needs)))
}

/// The columns of the table of needs.
const NEEDS: [&str; 9] = [
    "pairs a client a minute",
    "clients that wait",
    "memory of all nodes",
    "CPU of all nodes",
    "connections",
    "nodes",
    "CPU of one node",
    "`maxclients` of one node",
    "`lock.max-waiters-total` of one node",
];

impl Figures {
    fn needs(&self, pairs: f64, waiting: f64) -> Vec<String> {
        let waiters = CLIENTS * waiting;
        let holders = CLIENTS - waiters;
        let a_second = CLIENTS * pairs / 60.0;
        // A client opens a second connection to wait.
        let memory = holders * self.lock + CLIENTS * self.connection + waiters * self.waiter;
        let nanoseconds = a_second * ((1.0 - waiting) * self.pair + waiting * (self.handoff + self.wait))
            + holders / RENEWED * self.renewal;
        let (cpu, connections) = (nanoseconds / 1e9, CLIENTS + waiters);
        let nodes = (cpu / BUSY).max(connections / CONNECTIONS).ceil();
        let rounded = |number: f64| whole((number / 1_000.0).ceil() * 1_000.0);
        let of_node = |number: f64| SPARE * number / nodes;
        vec![
            format!("{pairs}"),
            format!("{} %", waiting * 100.0),
            format!("{:.1} GB", memory / 1e9),
            format!("{cpu:.1} cores"),
            whole(connections),
            whole(nodes),
            format!("{:.0} %", cpu / nodes * 100.0),
            rounded(of_node(connections)),
            rounded(of_node(waiters)),
        ]
    }
}
