//! Worlds with one server.

use super::name::{MS, QUARANTINE, WorldName};
use super::nemesis::{Nemesis, World};
use lockward_tests::{Server, Setup, WallClock};
use std::time::Duration;

/// The server of one of these worlds:
///
/// - `Alone`: the server syncs its AOF before each reply.
/// - `Wiped`: the server forgets everything in a restart. The quarantine is as long as the longest lease.
/// - `Clocks`: the world sets the wall clock of the server. The server is never restarted, because nothing is promised
///   after a restart with an earlier clock.
#[derive(Debug)]
pub(super) struct Alone {
    world: WorldName,
    server: Server,
    clock: WallClock,
}

impl Alone {
    pub(super) fn start(world: WorldName) -> Self {
        let clock = WallClock::new();
        let setup = match world {
            WorldName::Clocks => Setup::new().clock(&clock),
            WorldName::Wiped => Setup::new().module(&format!("quarantine {}", QUARANTINE / MS)),
            _ => Setup::new().config("appendonly yes").config("appendfsync always"),
        };
        Self { world, server: setup.start(), clock }
    }
}

impl World for Alone {
    fn port(&self) -> u16 {
        self.server.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        let step = [500, 5_000, 60_000, 3_600_000, 86_400_000];
        let step = Duration::from_millis(nemesis.random.one_of(&step));
        match (self.world, nemesis.random.between(0, 10)) {
            (_, 9) | (WorldName::Wiped, 8) => nemesis.cut_connections(self.port()),
            (WorldName::Wiped, 0..=5) => {
                nemesis.fault("kill and wipe", |_| self.server.kill_and_start_again())
            }
            (_, 7 | 8) if self.world != WorldName::Wiped => nemesis.stop_clients(),
            (WorldName::Clocks, 0..=2) => nemesis.fault("clock forward", |_| self.clock.forward(step)),
            (WorldName::Clocks, 3..=5) => nemesis.fault("clock back", |_| self.clock.back(step)),
            (WorldName::Alone, 0..=2) => nemesis.fault("kill", |_| self.server.kill_and_start_again()),
            (WorldName::Alone, 6) => nemesis.fault("rewrite", |_| {
                // The reply is ignored: the server replies with an error if a rewrite is already running.
                self.server.client().call("BGREWRITEAOF");
            }),
            _ => freeze(&self.server, nemesis),
        }
    }
}

/// Stops a server (SIGSTOP) for a while, often for longer than a lease.
pub(super) fn freeze(server: &Server, nemesis: &mut Nemesis<'_>) {
    nemesis.fault("freeze", |nemesis| {
        server.freeze();
        nemesis.sleep(5..400);
        server.thaw();
    });
}
