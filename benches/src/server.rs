//! Servers for measurements.

use crate::cpu::CpuClock;
use crate::placement::Place;
use lockward_tests::{Server, Setup, built_file, eventually};
use std::path::PathBuf;

/// The settings of every server. Later lines of redis.conf override these settings.
const SETTINGS: [&str; 5] = [
    "save \"\"",
    "appendonly no",
    "auto-aof-rewrite-percentage 0",
    "repl-diskless-sync yes",
    "repl-diskless-sync-delay 0",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    Lockward,
    /// The module that does nothing. This module shows the cost that every module has.
    Empty,
    Nothing,
}

impl Loaded {
    /// The file of the module. `LOCKWARD_MODULE` or `LOCKWARD_EMPTY_MODULE` may name the file. The default is the
    /// file that `make bench-builds` builds.
    pub fn path(self) -> Option<PathBuf> {
        match self {
            Self::Lockward => Some(built_file("LOCKWARD_MODULE", "release/liblockward.so")),
            Self::Empty => Some(built_file("LOCKWARD_EMPTY_MODULE", "release/libempty_module.so")),
            Self::Nothing => None,
        }
    }

    pub fn line_of_config(self) -> Option<String> {
        Some(format!("loadmodule {}", self.path()?.display()))
    }
}

/// Starts a server with Lockward on the client's CPU, without persistence, and with these lines of redis.conf.
pub fn start(config: &[&str]) -> Server {
    setup(Loaded::Lockward, Place::Together, config).start()
}

/// The setup of a server with this module and these lines of redis.conf, at this place.
pub fn setup(loaded: Loaded, place: Place, config: &[&str]) -> Setup {
    let confinement = place.confinement();
    // SAFETY: the function only makes system calls.
    let setup = unsafe { Setup::measured().before_exec(move || confinement.enter()) };
    let module = loaded.line_of_config();
    SETTINGS.into_iter().chain(module.as_deref()).chain(config.iter().copied()).fold(setup, Setup::config)
}

/// Starts a replica on its own CPU, and waits until the link is up.
pub fn start_replica_of(primary: &Server) -> Server {
    let primary = format!("replicaof 127.0.0.1 {}", primary.port());
    let replica = setup(Loaded::Lockward, Place::Apart, &[&primary]).start();
    let mut client = replica.client();
    eventually("the link to the primary", || client.server_info("replication", "master_link_status") == "up");
    replica
}

/// The CPU time of a server process for each of `units` units of work, in nanoseconds.
pub fn cost(pid: u32, units: usize, work: impl FnOnce()) -> f64 {
    let cpu = CpuClock::of(pid);
    let begin = cpu.settled();
    work();
    (cpu.settled() - begin).as_nanos() as f64 / units as f64
}
