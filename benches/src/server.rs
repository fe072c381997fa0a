//! A server for a measurement, with a copy of the module.

use crate::clients::{Client, Clients};
use crate::cpu::CpuClock;
use crate::placement::Place;
use lockward_tests::{self as tests, Directory, Setup, built_file, eventually};
use std::fs;
use std::path::{Path, PathBuf};

/// The settings of every server. Later lines of redis.conf override these settings.
const SETTINGS: [&str; 5] = [
    "save \"\"",
    "appendonly no",
    "auto-aof-rewrite-percentage 0",
    "repl-diskless-sync yes",
    "repl-diskless-sync-delay 0",
];

/// What a server loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    Lockward,
    /// The module that does nothing. This module shows the cost that every module has.
    Empty,
    Nothing,
}

/// A server. The server ends when this value is dropped, or when the thread that started the server ends.
#[derive(Debug)]
pub struct Server {
    server: tests::Server,
    /// The directory with the copy of the module. Dropping this value deletes the copy.
    _modules: Directory,
}

impl Server {
    /// Starts a server with the module, without persistence, and with these lines of redis.conf.
    pub fn start(config: &[&str]) -> Self {
        Self::start_with(Loaded::Lockward, Place::Together, config)
    }

    /// Starts a server with this module and these lines of redis.conf, at this place.
    pub fn start_with(loaded: Loaded, place: Place, config: &[&str]) -> Self {
        Self::start_under(&[], loaded, place, config)
    }

    /// Starts a server, as [`Server::start_with`] does. The program `wrapper` runs the server. `{dir}` stands for the
    /// server's directory.
    pub fn start_under(wrapper: &[&str], loaded: Loaded, place: Place, config: &[&str]) -> Self {
        let modules = Directory::new();
        let server = Self::setup(wrapper, loaded, place, config, &modules).start();
        Self { server, _modules: modules }
    }

    /// The setup that [`Server::start_under`] starts. The copy of the module is in `modules`.
    pub fn setup(
        wrapper: &[&str],
        loaded: Loaded,
        place: Place,
        config: &[&str],
        modules: &Directory,
    ) -> Setup {
        let confinement = place.confinement();
        // SAFETY: the function only makes system calls.
        let mut setup = unsafe { Setup::measured().under(wrapper).before_exec(move || confinement.enter()) };
        for line in SETTINGS {
            setup = setup.config(line);
        }
        if let Some(module) = loaded.copy_to(modules.path()) {
            setup = setup.config(&format!("loadmodule {}", module.display()));
        }
        for line in config {
            setup = setup.config(line);
        }
        setup
    }

    /// Starts a replica of this server on its own CPU, and waits until the link is up.
    pub fn start_replica(&self) -> Self {
        let primary = format!("replicaof 127.0.0.1 {}", self.port());
        let replica = Self::start_with(Loaded::Lockward, Place::Apart, &[&primary]);
        let mut client = replica.client();
        eventually("the link to the primary", || {
            client.info("replication").contains("master_link_status:up")
        });
        replica
    }

    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    pub const fn port(&self) -> u16 {
        self.server.port()
    }

    /// A connection that waits for each reply.
    pub fn connect(&self) -> tests::Client {
        tests::Client::connect(self.port()).expect("a connection")
    }

    /// A client with a new connection.
    pub fn client(&self) -> Client {
        Client::open(self.port())
    }

    pub fn clients(&self, count: usize) -> Clients {
        Clients::open(self.port(), count)
    }

    pub fn cpu(&self) -> CpuClock {
        CpuClock::of(self.pid())
    }

    /// The server's CPU time for each of `units` units of work, in nanoseconds.
    pub fn cost(&self, units: usize, work: impl FnOnce()) -> f64 {
        let cpu = self.cpu();
        let begin = cpu.settled();
        work();
        (cpu.settled() - begin).as_nanos() as f64 / units as f64
    }

    pub fn dir(&self) -> &Path {
        self.server.dir()
    }

    /// The name and version of the server: `Redis 7.0.15`.
    pub fn version(&self) -> String {
        self.server.version()
    }

    /// Terminates the server and waits until it has ended.
    pub fn end(&mut self) {
        let _ = self.server.terminate();
    }
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

    /// The line of redis.conf that loads this module in addition to another module.
    pub fn line_of_config(self) -> String {
        self.path().map_or_else(String::new, |path| format!("loadmodule {}", path.display()))
    }

    /// Copies the file. Without the copy, a build during the run could replace the module.
    fn copy_to(self, dir: &Path) -> Option<PathBuf> {
        let path = self.path()?;
        let copy = dir.join(path.file_name()?);
        if let Err(error) = fs::copy(&path, &copy) {
            panic!("{} cannot be read ({error}): run `make bench-builds`", path.display());
        }
        Some(copy)
    }
}
