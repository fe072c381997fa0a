//! A primary and its replica, with failovers.

use super::alone::freeze;
use super::cut_off::safe_setup;
use super::nemesis::{Nemesis, World};
use lockward_tests::{Reply, Server, eventually};
use std::mem;

/// A primary and its replica. The primary refuses writes unless the replica has a lag of at most 2 seconds. When the
/// primary dies, all grants that have not reached the replica are lost. The quarantine is as long as the longest lease.
#[derive(Debug)]
pub(super) struct Failover {
    primary: Server,
    replica: Server,
}

impl Failover {
    pub(super) fn start() -> Self {
        let primary = safe_setup().start();
        let replica = safe_setup().start_replica_of(&primary);
        Self { primary, replica }
    }

    /// A planned failover. No grant is lost.
    fn hand_over(&mut self) {
        let mut primary = self.primary.client();
        let answer = primary.call(format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 10000", self.replica.port()));
        assert_eq!(answer, Reply::ok());
        eventually("the failover is done", || {
            primary.server_info("replication", "master_failover_state") == "no-failover"
        });
        if primary.server_info("replication", "role") == "slave" {
            mem::swap(&mut self.primary, &mut self.replica);
        }
    }

    /// The primary dies, and its replica is promoted.
    fn take_over(&mut self, nemesis: &mut Nemesis<'_>) {
        self.primary.kill();
        self.replica.promote();
        mem::swap(&mut self.primary, &mut self.replica);
        nemesis.announce_primary(self.primary.port());
        nemesis.sleep(1..300);
        self.replica.start_again();
        self.replica.follow(&self.primary);
    }
}

impl World for Failover {
    fn port(&self) -> u16 {
        self.primary.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        match nemesis.random.between(0, 10) {
            0..2 => nemesis.fault("hand-over", |_| self.hand_over()),
            2..6 => nemesis.fault("take-over", |nemesis| self.take_over(nemesis)),
            6 => freeze(&self.replica, nemesis),
            7 => nemesis.fault("pause of writes", |nemesis| {
                let ms = nemesis.random.between(20, 300);
                self.primary.client().call(format!("CLIENT PAUSE {ms} WRITE"));
                nemesis.sleep(ms..ms + 1);
            }),
            _ => nemesis.cut_connections(self.port()),
        }
        nemesis.announce_primary(self.primary.port());
    }
}
