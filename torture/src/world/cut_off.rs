//! A replica that is cut off from its primary, misses grants, and is promoted.

use super::{MS, Nemesis, QUARANTINE, World};
use crate::wire::{Break, Wire};
use lockward_tests::{Reply, Server, Setup, eventually};
use std::mem;

/// A primary and two replicas. The link to one of them loses what is sent; then the primary dies, and that one takes its
/// place. Grants that only the other has heard of are lost, though the primary had a replica all the time.
#[derive(Debug)]
pub(super) struct CutOff {
    settings: Settings,
    how: Break,
    primary: Server,
    /// The replica that will miss grants, and its link.
    stale: Server,
    wire: Wire,
    /// The replica in sync.
    witness: Server,
}

/// How the servers are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settings {
    /// As they come.
    Default,
    /// A quarantine that covers every lease, and no write without a replica.
    Safe,
}

impl Settings {
    pub(super) fn setup(self) -> Setup {
        match self {
            Self::Default => Setup::new(),
            Self::Safe => Setup::new()
                .module(&format!("quarantine {}", QUARANTINE / MS))
                .config("min-replicas-to-write 1")
                .config("min-replicas-max-lag 2"),
        }
    }
}

impl CutOff {
    pub(super) fn start(settings: Settings, how: Break) -> Self {
        let primary = settings.setup().start();
        let (stale, witness) = (settings.setup().start(), settings.setup().start());
        witness.follow(&primary);
        let wire = Wire::between(&primary, &stale, how);
        Self { settings, how, primary, stale, wire, witness }
    }

    fn take_over(&mut self, nemesis: &mut Nemesis<'_>) {
        self.wire.lose();
        nemesis.pass(50..300);
        self.primary.kill();
        self.promote(nemesis);
    }

    /// The control: what is sent to a replica that stands still waits in its socket.
    fn take_over_from_frozen(&mut self, nemesis: &mut Nemesis<'_>) {
        self.stale.freeze();
        nemesis.pass(50..300);
        self.primary.kill();
        self.stale.thaw();
        let mut client = self.stale.client();
        eventually("the replica sees that its primary is gone", || {
            client.server_info("replication", "master_link_status") == "down"
        });
        self.promote(nemesis);
    }

    fn promote(&mut self, nemesis: &mut Nemesis<'_>) {
        assert_eq!(self.stale.client().call("REPLICAOF NO ONE"), Reply::ok());
        mem::swap(&mut self.primary, &mut self.stale);
        nemesis.tell(self.primary.port());
        self.witness.follow(&self.primary);
        nemesis.pass(1..300);
        self.stale.start_again();
        self.wire = Wire::between(&self.primary, &self.stale, self.how);
    }
}

impl World for CutOff {
    fn port(&self) -> u16 {
        self.primary.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        match nemesis.random.between(0, 10) {
            0..8 => nemesis.fault("take-over by a stale replica", |nemesis| self.take_over(nemesis)),
            8 if self.settings == Settings::Safe => {
                nemesis.fault("take-over by a frozen replica", |nemesis| self.take_over_from_frozen(nemesis));
            }
            _ => nemesis.cut_connections(self.port()),
        }
    }
}

/// The same, but what is sent to the replica only waits in its socket: nothing is lost, without any quarantine.
#[derive(Debug)]
pub(super) struct Frozen(CutOff);

impl Frozen {
    pub(super) fn start() -> Self {
        Self(CutOff::start(Settings::Default, Break::Link))
    }
}

impl World for Frozen {
    fn port(&self) -> u16 {
        self.0.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        nemesis.fault("take-over by a frozen replica", |nemesis| self.0.take_over_from_frozen(nemesis));
    }
}
