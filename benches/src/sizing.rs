//! What a million clients need, computed from the measured figures with the formulas of docs/scale.md.

use crate::results::{Row, whole};
use crate::table::table;

/// The number of clients in the table. Each client holds a lock or waits for a lock.
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

/// The terms of the formulas. A term is the sum of one or two figures at the largest number of locks, waiters or nodes.
const TERMS: [(&str, &[&str]); 6] = [
    ("LOCK", &["memory for each lock"]),
    ("CONNECTION", &["memory of a connection that has been idle for 6 seconds"]),
    ("WAITER", &["memory of a waiter that has been idle for 6 seconds, with its connection"]),
    ("PAIR", &["server CPU for a pair in the cluster"]),
    ("RENEWAL", &["server CPU for a renewal in the cluster"]),
    (
        "HANDOFF",
        &[
            "server CPU for the start of a wait, each client waits for its own lock",
            "server CPU for a hand-off, each client waits for its own lock",
        ],
    ),
];

/// The terms, and what the workloads need. `None` if the run has not measured all figures.
pub fn tables(rows: &[&Row]) -> Option<String> {
    let mut terms = Vec::new();
    let mut numbers = Vec::new();
    for (name, curves) in TERMS {
        let figures = curves.iter().map(|curve| rows.iter().copied().rfind(|row| row.what == *curve));
        let figures: Vec<&Row> = figures.collect::<Option<_>>()?;
        let number = figures.iter().map(|row| row.measured).sum();
        terms.push(vec![format!("`{name}`"), figures[0].unit.show(number), curves.join(" + ")]);
        numbers.push(number);
    }
    let terms = table(&["in the formulas", "measured", "what it is"], terms);
    let needs = WORKLOADS.iter().map(|(pairs, waiting)| needs(&numbers, *pairs, *waiting));
    Some(format!("{terms}\n{}", table(&NEEDS, needs)))
}

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

/// What a workload needs. `terms` has the numbers of [`TERMS`].
fn needs(terms: &[f64], pairs: f64, waiting: f64) -> Vec<String> {
    let &[lock, connection, waiter, pair, renewal, handoff] = terms else { return Vec::new() };
    let waiters = CLIENTS * waiting;
    let holders = CLIENTS - waiters;
    let a_second = CLIENTS * pairs / 60.0;
    // A client opens a second connection to wait.
    let memory = holders * lock + CLIENTS * connection + waiters * waiter;
    let nanoseconds = a_second * ((1.0 - waiting) * pair + waiting * handoff) + holders / RENEWED * renewal;
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
