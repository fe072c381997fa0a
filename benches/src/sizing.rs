//! What a million clients need, computed from the measured figures with the formulas of docs/scale.md.

use crate::results::{Row, Unit, whole};
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

/// The terms of the formulas: the name, the curves whose figures are added up, the unit, and what the term is.
const TERMS: [(&str, &[&str], Unit, &str); 6] = [
    ("LOCK", &["locks/memory"], Unit::Bytes, "memory for each lock"),
    (
        "CONNECTION",
        &["waiters/connection"],
        Unit::Bytes,
        "memory of a connection that has been idle for 6 seconds",
    ),
    (
        "WAITER",
        &["waiters/memory"],
        Unit::Bytes,
        "memory of a waiter that has been idle for 6 seconds, with its connection",
    ),
    ("PAIR", &["cluster/pair"], Unit::Nanoseconds, "server CPU for a pair in the cluster"),
    (
        "RENEWAL",
        &["cluster/renewal"],
        Unit::Nanoseconds,
        "server CPU for a renewal in the cluster of 6 nodes",
    ),
    (
        "HANDOFF",
        &["waiters/each-handoff", "waiters/each-wait"],
        Unit::Nanoseconds,
        "server CPU for the start of a wait and a hand-off, each client waits for its own lock",
    ),
];

/// The figure at the largest measured number of locks, waiters or nodes. `None` if the curve was not measured.
fn last(rows: &[Row], curve: &str) -> Option<f64> {
    rows.iter().rfind(|row| row.name == curve).map(|row| row.measured)
}

/// The figures that the formulas use, and the table. `None` if the run has not measured all these figures.
pub fn tables(rows: &[Row]) -> Option<String> {
    let figure = |curves: &[&str]| curves.iter().map(|curve| last(rows, curve)).sum::<Option<f64>>();
    let figures: Vec<f64> = TERMS.iter().map(|(_, curves, ..)| figure(curves)).collect::<Option<_>>()?;
    let terms = TERMS.iter().zip(&figures).map(|((name, _, unit, what), figure)| {
        let is_time = *unit == Unit::Nanoseconds;
        let shown = if is_time { format!("{:.1} µs", figure / 1e3) } else { unit.show(*figure) };
        vec![format!("`{name}`"), shown, (*what).to_owned()]
    });
    let terms = table(&["in the formulas", "measured", "what it is"], terms);
    let needs = WORKLOADS.iter().map(|(pairs, waiting)| needs(&figures, *pairs, *waiting));
    Some(format!("{terms}\n{}", table(&NEEDS, needs)))
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

/// What a workload needs. `figures` has the figures of [`TERMS`].
fn needs(figures: &[f64], pairs: f64, waiting: f64) -> Vec<String> {
    let &[lock, connection, waiter, pair, renewal, handoff] = figures else { return Vec::new() };
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
