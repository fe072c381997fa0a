//! The cost of a pair (an acquire and a release) in a cluster, by the number of nodes.
//!
//! In this benchmark all nodes and the clients share one CPU, so the number of pairs a second cannot grow. The CPU time
//! for each pair shows whether a cluster scales: if this time does not depend on the number of nodes, n nodes with one
//! CPU each do n times the work. Only one node works at a time, because nodes that work at the same time would displace
//! each other's data in the caches of the CPU.

use crate::batch::Batch;
use crate::clients::Clients;
use crate::pairs::Pair;
use crate::placement::{Place, be_client_of};
use crate::report::{Report, alternate};
use crate::request::{LONG_LEASE, owner, request};
use crate::results::{Row, Series, Unit};
use crate::server::{Loaded, cost, setup};
use lockward_tests::{Cluster, slot_of};

const NODES: [usize; 3] = [1, 3, 6];
/// The number of connections to each node. Each connection has one command in flight.
const CONNECTIONS: usize = 50;
const ROUNDS: usize = 15;
const EACH: usize = 20;
const SLOTS: usize = 16_384;

/// The number of kinds of work: a pair, SET NX PX + DEL, and a renewal of a lock that the connection's owner holds.
const WORKS: usize = 3;

struct Nodes {
    each: Vec<Node>,
    _cluster: Cluster,
}

/// A node, the connections to it, and the requests of each connection for each kind of work.
struct Node {
    pid: u32,
    clients: Clients,
    batches: [Vec<Batch>; WORKS],
}

impl Nodes {
    fn start(count: usize) -> Self {
        let config = ["cluster-enabled yes", "cluster-node-timeout 15000"];
        let setup = setup(Loaded::Lockward, Place::Together, &config);
        let cluster = Cluster::start_primaries(setup, u16::try_from(count).expect("few nodes"));
        let share = SLOTS.div_ceil(count);
        let each = cluster.nodes().iter().enumerate().map(|(number, node)| {
            let mut control = node.client();
            let mut batches = <[Vec<Batch>; WORKS]>::default();
            let keys = (0..).map(|key: usize| format!("cluster:{key:06}"));
            let keys = keys.filter(|key| usize::from(slot_of(key)) / share == number);
            for (connection, key) in keys.take(CONNECTIONS).enumerate() {
                let owner = owner(connection);
                let held = format!("{{{key}}}:held");
                control.call(["LOCK.ACQUIRE", &held, &owner, "PX", LONG_LEASE]).grant();
                let [lock, set] = [Pair::Lock, Pair::Set].map(|pair| pair.requests(node, &key, &owner));
                let renew = request(&["LOCK.RENEW", &held, &owner, "PX", LONG_LEASE]);
                let works = [lock.to_vec(), set.to_vec(), vec![renew]];
                for (requests, batches) in works.iter().zip(&mut batches) {
                    batches.push(Batch::of(requests, 1));
                }
            }
            Node { pid: node.pid(), clients: Clients::open(node.port(), CONNECTIONS), batches }
        });
        Self { each: each.collect(), _cluster: cluster }
    }

    /// The CPU of a node for a pair or renewal, on average over the nodes, in nanoseconds.
    fn cost(&mut self, work: usize) -> f64 {
        let costs = self.each.iter_mut().map(|Node { pid, clients, batches }| {
            cost(*pid, CONNECTIONS * EACH, || clients.run(&batches[work], EACH))
        });
        costs.sum::<f64>() / self.each.len() as f64
    }
}

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let mut all = NODES.map(Nodes::start);
    let measured = alternate(ROUNDS, NODES.len(), |which| [0, 1, 2].map(|work| all[which].cost(work)));
    for (nodes, [lock, set, renewal]) in NODES.into_iter().zip(&measured) {
        let row = |what, series: &Series| Row::figure(what, Unit::Nanoseconds, series).at(nodes, "node");
        report.row(row("server CPU for a pair in the cluster", lock).against("SET NX PX + DEL", set));
        report.row(row("server CPU for a renewal in the cluster", renewal));
    }
}
