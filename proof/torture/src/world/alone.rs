//! Worlds with one server that forgets nothing.

use super::nemesis::{Nemesis, World};
use lockward_tests::{Server, Setup, WallClock};
use std::time::Duration;

/// One server with an AOF that is synced before each reply. The faults kill and restart the server.
#[derive(Debug)]
pub(super) struct Alone {
    server: Server,
}

impl Alone {
    pub(super) fn start() -> Self {
        let setup = Setup::new().config("appendonly yes").config("appendfsync always");
        Self { server: setup.start() }
    }
}

impl World for Alone {
    fn port(&self) -> u16 {
        self.server.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        match nemesis.random.between(0, 10) {
            0..3 => nemesis.fault("kill", |_| self.server.kill_and_start_again()),
            3..6 => freeze(&self.server, nemesis),
            6 => nemesis.fault("rewrite", |_| {
                // The reply is ignored: the server replies with an error if a rewrite is already running.
                self.server.client().call("BGREWRITEAOF");
            }),
            7..9 => nemesis.stop_clients(),
            _ => nemesis.cut_connections(self.port()),
        }
    }
}

/// One server whose wall clock is stepped. The server is never restarted, because nothing is promised after a restart
/// with an earlier clock.
#[derive(Debug)]
pub(super) struct Clocks {
    server: Server,
    clock: WallClock,
}

impl Clocks {
    pub(super) fn start() -> Self {
        let clock = WallClock::new();
        Self { server: Setup::new().clock(&clock).start(), clock }
    }
}

impl World for Clocks {
    fn port(&self) -> u16 {
        self.server.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        let step = [500, 5_000, 60_000, 3_600_000, 86_400_000];
        let step = Duration::from_millis(*nemesis.random.one_of(&step).expect("a step"));
        match nemesis.random.between(0, 10) {
            0..3 => nemesis.fault("clock forward", |_| self.clock.forward(step)),
            3..6 => nemesis.fault("clock back", |_| self.clock.back(step)),
            6 => freeze(&self.server, nemesis),
            7..9 => nemesis.stop_clients(),
            _ => nemesis.cut_connections(self.port()),
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
