//! A primary, two replicas and three Sentinels.

use super::nemesis::{Nemesis, World};
use lockward_tests::{Sentinels, Server, Setup};

/// The servers and the Sentinels. Clients use the primary that the Sentinels name.
///
/// A replaced primary accepts writes until it notices that it has lost its replicas. The primary notices the loss
/// within 2 seconds, because it allows a lag of 1 second and checks the lag each second. The quarantine is longer than
/// 2 seconds plus a lease.
#[derive(Debug)]
pub(super) struct Watched {
    servers: [Server; 3],
    sentinels: Sentinels,
    primary: u16,
}

impl Watched {
    pub(super) fn start() -> Self {
        let setup = || Setup::new().module("quarantine 4000").config("min-replicas-to-write 1");
        let start = || setup().config("min-replicas-max-lag 1").start();
        let servers = [start(), start(), start()];
        servers[1].follow(&servers[0]);
        servers[2].follow(&servers[0]);
        let sentinels = Sentinels::watch(&servers[0], 2);
        let primary = servers[0].port();
        Self { servers, sentinels, primary }
    }

    /// Kills the primary, waits until the Sentinels have promoted another server, and starts the killed server again.
    fn fail_over(&mut self, nemesis: &mut Nemesis<'_>) {
        // On a slow machine the Sentinels may have promoted a replica in the meantime, without a fault of this run.
        self.primary = self.sentinels.see_all_follow(&self.servers, |port| nemesis.announce_primary(port));
        let failed = self.servers.iter_mut().find(|server| server.port() == self.primary);
        let failed = failed.expect("a server of this world");
        failed.kill();
        nemesis.announce_primary(self.sentinels.see_failover_from(self.primary));
        failed.start_again();
        self.primary = self.sentinels.see_all_follow(&self.servers, |port| nemesis.announce_primary(port));
    }
}

impl World for Watched {
    fn port(&self) -> u16 {
        self.primary
    }

    fn url(&self) -> String {
        self.sentinels.url()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        match nemesis.random.between(0, 10) {
            0..6 => nemesis.fault("death of the primary", |nemesis| self.fail_over(nemesis)),
            _ => nemesis.cut_connections(self.port()),
        }
    }
}
