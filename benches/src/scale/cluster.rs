//! Pairs in a cluster, by the number of nodes.
//!
//! In this benchmark all nodes and the clients share one CPU, so the number of pairs a second cannot grow. The CPU time
//! for each pair shows whether a cluster scales: if this time does not depend on the number of nodes, n nodes with one
//! CPU each do n times the work. Only one node works at a time, because nodes that work at the same time would displace
//! each other's data in the caches of the CPU.

use super::curves::Point;
use crate::clients::{Client, Clients};
use crate::cpu::CpuClock;
use crate::pairs::Pair;
use crate::pipeline::{Batch, Expected, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LONG_LEASE, owner, request};
use crate::results::Unit;
use crate::rounds::Series;
use crate::server::{Loaded, Server};
use lockward_tests::{Cluster, Directory, slot_of};
use std::net::Ipv4Addr;
use std::time::Duration;

pub const STAGE: &str = "cluster";

const NODES: [usize; 3] = [1, 3, 6];
/// The number of connections to each node. Each connection has one command in flight.
const CONNECTIONS: usize = 50;
const ROUNDS: usize = 15;
/// The number of pairs or renewals that a connection sends in a round.
const EACH: usize = 20;
const SLOTS: usize = 16_384;

/// What each connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Pair(Pair),
    /// The owner of the connection renews the lease of a lock that it holds.
    Renewal,
}

const WORKS: [Work; 3] = [Work::Pair(Pair::Lock), Work::Pair(Pair::Set), Work::Renewal];

/// A cluster, and the connections to its nodes.
struct Nodes {
    each: Vec<Node>,
    _cluster: Cluster,
    /// The directory with the copy of the module. Dropping this value deletes the copy.
    _modules: Directory,
}

/// A node, the connections to it, and the requests of each connection.
struct Node {
    cpu: CpuClock,
    pipeline: Pipeline,
    batches: [Vec<Batch>; WORKS.len()],
}

impl Nodes {
    fn start(count: usize) -> Self {
        let modules = Directory::new();
        let config = ["cluster-enabled yes", "cluster-node-timeout 15000"];
        let setup = Server::setup(&[], Loaded::Lockward, Place::Together, &config, &modules);
        let cluster = Cluster::start_primaries(setup, u16::try_from(count).expect("few nodes"));
        let share = SLOTS.div_ceil(count);
        let each = cluster.nodes().iter().enumerate().map(|(number, node)| {
            let mut own = Clients::none();
            let mut control = Client::open(node.port());
            let mut batches = WORKS.map(|_| Vec::new());
            let keys = (0..).map(|key: usize| format!("cluster:{key:06}"));
            let keys = keys.filter(|key| usize::from(slot_of(key)) / share == number);
            for (connection, key) in keys.take(CONNECTIONS).enumerate() {
                own.connect(Ipv4Addr::LOCALHOST, node.port());
                let owner = owner(connection);
                let held = format!("{{{key}}}:held");
                control.call(&["LOCK.ACQUIRE", &held, &owner, "PX", LONG_LEASE]);
                for (work, batches) in WORKS.into_iter().zip(&mut batches) {
                    let commands = match work {
                        Work::Pair(pair) => pair.commands(&mut control, &key, &owner).to_vec(),
                        Work::Renewal => {
                            let renew = request(&["LOCK.RENEW", &held, &owner, "PX", LONG_LEASE]);
                            vec![(renew, Expected::Token)]
                        }
                    };
                    batches.push(Batch::of(&commands, 1));
                }
            }
            Node { cpu: CpuClock::of(node.pid()), pipeline: Pipeline::over(own), batches }
        });
        let each = each.collect();
        Self { each, _cluster: cluster, _modules: modules }
    }

    /// The CPU of a node for a pair or renewal, on average over the nodes, in nanoseconds.
    fn cost(&mut self, work: usize) -> f64 {
        let spent: Duration = self.each.iter_mut().map(|node| node.spent(work)).sum();
        spent.as_nanos() as f64 / (self.each.len() * CONNECTIONS * EACH) as f64
    }
}

impl Node {
    fn spent(&mut self, work: usize) -> Duration {
        let begin = self.cpu.settled();
        self.pipeline.run(&self.batches[work], EACH);
        self.cpu.settled() - begin
    }
}

/// Measures all numbers of nodes, alternately.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let mut all = NODES.map(Nodes::start);
    let measured = report.alternate(ROUNDS, NODES.len(), |which| {
        let nodes = &mut all[which];
        [nodes.cost(0), nodes.cost(1), nodes.cost(2)]
    });
    for (nodes, [lock, set, renewal]) in NODES.into_iter().zip(&measured) {
        let point = Point::new(STAGE, nodes, "node");
        let pair = ("pair", "server CPU for a pair", Unit::Nanoseconds);
        point.compared(report, pair, "SET NX PX + DEL", [lock, set]);
        point.row(report, ("renewal", "server CPU for a renewal", Unit::Nanoseconds), renewal);
        let possible = Series::once(nodes as f64 * 1e9 / lock.median());
        let what = "pairs if each node had its own CPU, computed";
        point.row(report, ("possible", what, Unit::Rate), &possible);
    }
}
