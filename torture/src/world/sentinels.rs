//! A primary, two replicas, and the three Sentinels that watch them.

use super::cut_off::Settings;
use super::{Nemesis, World};
use lockward_tests::{Sentinels, Server};

/// The servers, set up as is safe, and the Sentinels. Clients are sent where the Sentinels say.
#[derive(Debug)]
pub(super) struct Watched {
    /// The primary is the first.
    servers: [Server; 3],
    sentinels: Sentinels,
}

impl Watched {
    pub(super) fn start() -> Self {
        let start = || Settings::Safe.setup().config("repl-timeout 5").start();
        let servers = [start(), start(), start()];
        servers[1].follow(&servers[0]);
        servers[2].follow(&servers[0]);
        let sentinels = Sentinels::watch(&servers[0], 2);
        Self { servers, sentinels }
    }

    /// The primary is gone, and the Sentinels promote another.
    fn see_failover(&mut self, nemesis: &mut Nemesis<'_>) {
        let port = self.sentinels.see_failover_from(self.port());
        nemesis.tell(port);
        let next = self.servers.iter().position(|server| server.port() == port).expect("one of ours");
        self.servers.swap(0, next);
    }

    /// The server that was the primary is back, and the Sentinels make it a replica.
    fn see_replicas(&self) {
        let [primary, others @ ..] = &self.servers;
        for other in others {
            self.sentinels.see_replica(other, primary);
        }
    }
}

impl World for Watched {
    fn port(&self) -> u16 {
        self.servers[0].port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        match nemesis.random.between(0, 10) {
            0..6 => nemesis.fault("death of the primary", |nemesis| {
                self.servers[0].kill();
                self.see_failover(nemesis);
                let dead = self.servers.iter_mut().find(|server| !server.is_running()).expect("the dead one");
                dead.start_again();
                self.see_replicas();
            }),
            _ => nemesis.cut_connections(self.port()),
        }
    }
}

/// The same; but the primary only stands still, and knows nothing of what happened when it goes on.
#[derive(Debug)]
pub(super) struct Sleeping(Watched);

impl Sleeping {
    pub(super) fn start() -> Self {
        Self(Watched::start())
    }
}

impl World for Sleeping {
    fn port(&self) -> u16 {
        self.0.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        nemesis.fault("sleep of the primary", |nemesis| {
            let sleeper = self.0.port();
            self.0.servers[0].freeze();
            self.0.see_failover(nemesis);
            // Past the quarantine: others may hold now what the sleeper knows as held.
            nemesis.pass(100..1_500);
            let sleeper = self.0.servers.iter().find(|server| server.port() == sleeper).expect("the sleeper");
            sleeper.thaw();
            self.0.see_replicas();
        });
    }
}
