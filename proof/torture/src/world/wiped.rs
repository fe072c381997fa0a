//! One server without persistence.

use super::alone::freeze;
use super::name::{MS, QUARANTINE};
use super::nemesis::{Nemesis, World};
use lockward_tests::{Server, Setup};

/// A server that forgets everything in a restart. The quarantine is as long as the longest lease.
#[derive(Debug)]
pub(super) struct Wiped {
    server: Server,
}

impl Wiped {
    pub(super) fn start() -> Self {
        Self { server: Setup::new().module(&format!("quarantine {}", QUARANTINE / MS)).start() }
    }
}

impl World for Wiped {
    fn port(&self) -> u16 {
        self.server.port()
    }

    fn fault(&mut self, nemesis: &mut Nemesis<'_>) {
        match nemesis.random.between(0, 5) {
            0..3 => nemesis.fault("kill and wipe", |_| self.server.kill_and_start_again()),
            3 => freeze(&self.server, nemesis),
            _ => nemesis.cut_connections(self.port()),
        }
    }
}
