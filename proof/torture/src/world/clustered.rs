//! A cluster whose slots move.

use super::nemesis::{Nemesis, World};
use crate::queue_order;
use lockward_tests::{Cluster, Server, Setup, slot_of};

/// Three primaries with a replica each. The slots of the locks move by CLUSTER MIGRATESLOTS, or by MIGRATE in the steps
/// of redis-cli, with random pauses between the steps. Sometimes there is a planned failover of a primary to its
/// replica. No grant is lost.
#[derive(Debug)]
pub(super) struct Clustered {
    cluster: Cluster,
    slots: Vec<u16>,
    /// Whether the servers have CLUSTER MIGRATESLOTS.
    moves_whole_slots: bool,
}

impl Clustered {
    pub(super) fn start(keys: &[String]) -> Self {
        // Replicas must not take over by themselves, because on a slow machine a live primary may seem dead, and its
        // failover could lose grants.
        let setup =
            Setup::new().config("cluster-replica-no-failover yes").config("cluster-node-timeout 3000");
        let keys = keys.iter().map(String::as_str).chain([queue_order::KEY]);
        let cluster = Cluster::start_with(setup);
        let moves_whole_slots = cluster.nodes()[0].has_command("cluster|migrateslots");
        Self { cluster, slots: keys.map(slot_of).collect(), moves_whole_slots }
    }

    /// Moves the slot of a lock to another primary. Clients may see redirections. If one command moves the whole slot,
    /// clients may also notice a pause of writes.
    fn move_slot(&self, nemesis: &mut Nemesis<'_>) {
        let slot = nemesis.random.one_of(&self.slots);
        let owner = self.cluster.owner(slot).port();
        let mut others = self.cluster.primaries();
        others.retain(|node| node.port() != owner);
        let to = nemesis.random.one_of(&others);
        if self.moves_whole_slots && nemesis.random.percent(50) {
            // The servers pause writes at the end of CLUSTER MIGRATESLOTS. Clients may notice the pause, so the history
            // records a fault.
            nemesis.fault("move of a whole slot", |_| _ = self.cluster.migrate_slot(slot, to));
            return;
        }
        nemesis.maintenance("move of a slot", |nemesis| {
            let moving = self.cluster.begin_to_move(slot, to).replacing();
            nemesis.sleep(0..30);
            moving.carry_all();
            nemesis.sleep(0..30);
            moving.end();
        });
    }

    /// A planned failover of a primary to its replica.
    fn hand_over(&self, nemesis: &mut Nemesis<'_>) {
        let primaries = self.cluster.primaries();
        let primary = nemesis.random.one_of(&primaries);
        let replica = self.cluster.replica_of(primary);
        replica.see_in_sync_with(primary);
        self.cluster.hand_over_to(replica);
        primary.see_in_sync_with(replica);
    }

    fn one(&self, nemesis: &mut Nemesis<'_>) -> &Server {
        nemesis.random.pick(self.cluster.nodes()).expect("a node")
    }
}

impl World for Clustered {
    fn port(&self) -> u16 {
        self.cluster.nodes()[0].port()
    }

    fn url(&self) -> String {
        let nodes = self.cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port()));
        format!("redis+cluster://{}", nodes.collect::<Vec<_>>().join(","))
    }

    fn ports(&self) -> Vec<u16> {
        self.cluster.primaries().into_iter().map(Server::port).collect()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        for _ in 0..nemesis.random.between(5, 20) {
            self.move_slot(nemesis);
        }
        match nemesis.random.between(0, 10) {
            0..3 => nemesis.fault("hand-over", |nemesis| self.hand_over(nemesis)),
            3..5 => nemesis.stop_clients(),
            5..7 => {
                let port = self.one(nemesis).port();
                nemesis.cut_connections(port);
            }
            _ => {}
        }
    }
}
