//! A replica that loses the link to its primary, misses grants, and is then promoted.

use super::name::{MS, QUARANTINE, WorldName};
use super::nemesis::{Nemesis, World};
use lockward_tests::{Link, Server, Setup, eventually};
use std::mem;

/// A primary and two replicas. The link to one replica loses all data. Then the primary dies, and the replica behind
/// this link is promoted. Grants that only the other replica has are lost, although the primary always had a replica in
/// sync.
#[derive(Debug)]
pub(super) struct CutOff {
    world: WorldName,
    primary: Server,
    /// The replica that misses grants and is then promoted.
    stale: Server,
    link: Link,
    /// The replica in sync.
    witness: Server,
}

/// A server with a quarantine as long as the longest lease. The server refuses writes unless a replica has a lag of at
/// most 2 seconds.
pub(super) fn safe_setup() -> Setup {
    let setup = Setup::new().module(&format!("quarantine {}", QUARANTINE / MS));
    setup.config("min-replicas-to-write 1").config("min-replicas-max-lag 2")
}

impl CutOff {
    pub(super) fn start(world: WorldName) -> Self {
        let server = || if world == WorldName::Lossy { Setup::new() } else { safe_setup() }.start();
        let (primary, stale, witness) = (server(), server(), server());
        witness.follow(&primary);
        let link = replicate_through_link(&primary, &stale);
        Self { world, primary, stale, link, witness }
    }

    /// The primary dies while the replica behind the link misses changes, and this replica is promoted. Either the link
    /// loses all data, or the replica is stopped. Changes for a stopped replica wait in its socket, so this replica
    /// misses a change only if the socket is full.
    fn take_over(&mut self, nemesis: &mut Nemesis<'_>, is_frozen: bool) {
        if is_frozen {
            self.stale.freeze();
        } else {
            self.link.swallow();
        }
        nemesis.sleep(50..300);
        self.primary.kill();
        if is_frozen {
            self.stale.thaw();
            let mut client = self.stale.client();
            eventually("the replica sees that its primary is gone", || {
                client.server_info("replication", "master_link_status") == "down"
            });
        }
        self.stale.promote();
        mem::swap(&mut self.primary, &mut self.stale);
        nemesis.announce_primary(self.primary.port());
        self.witness.follow(&self.primary);
        nemesis.sleep(1..300);
        self.stale.start_again();
        self.link = replicate_through_link(&self.primary, &self.stale);
    }
}

/// Makes `replica` a replica of `primary` over a link, and waits until every replica is online.
fn replicate_through_link(primary: &Server, replica: &Server) -> Link {
    let link = Link::to(primary);
    replica.follow_through(&link, primary);
    let mut client = primary.client();
    eventually("every replica is online", || {
        let info = client.call("INFO replication").text();
        info.lines().filter(|line| line.starts_with("slave")).all(|line| line.contains("state=online"))
    });
    link
}

impl World for CutOff {
    fn port(&self) -> u16 {
        self.primary.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        let choice = nemesis.random.between(0, 10);
        if choice == 8 && self.world == WorldName::CutOff {
            nemesis.fault("take-over by a frozen replica", |nemesis| self.take_over(nemesis, true));
        } else if choice < 8 {
            nemesis.fault("take-over by a stale replica", |nemesis| self.take_over(nemesis, false));
        } else {
            nemesis.cut_connections(self.port());
        }
    }
}
