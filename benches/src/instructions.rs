//! Instructions of the server, counted by callgrind. The numbers do not depend on the load of the machine.
//!
//! Callgrind runs the server. At each call of ECHO, callgrind writes the number of instructions since the previous
//! ECHO. This number, less the cost of an ECHO, is the cost of the work between the two ECHOs.
//!
//! The numbers are the same in every run, and almost the same on every machine:
//!
//! - If the client sent while the server runs, the number of events at a wake-up would depend on the client's speed. So
//!   the client sends only while the server sleeps.
//! - The server's cron and the module's timer depend on the clock, and the server's hash tables have random seeds. So
//!   chance_shim.rs stops the clock and makes the seeds constant.
//! - Memory grows in the first rounds, so the first rounds do not count. Of the other rounds, only the round with the
//!   fewest instructions counts.
//!
//! The processor's instruction counter (`perf stat -e instructions:u`) would not need callgrind, but most virtual
//! machines have none.

use crate::cpu::CpuClock;
use crate::placement::Place;
use crate::server::{Loaded, setup};
use lockward_tests::{Client, Reply, Server, compiled, repository};
use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;
use std::{fs, thread};

const ROUNDS: usize = 5;
const WARM_UP: usize = 2;

/// A server whose instructions callgrind counts.
#[derive(Debug)]
pub struct CountedServer {
    pub server: Server,
    control: Client,
    /// The time of the stopped clock, in units of ten milliseconds. The server's clock runs while this number is 0.
    still: Cell<u8>,
    parts: usize,
    /// The instructions between two ECHOs without other work.
    echo: u64,
}

/// How many instructions the server executes for some work.
#[derive(Clone, Debug)]
pub struct Count {
    /// The instructions for one unit of the work.
    pub each: f64,
    pub profile: String,
}

impl CountedServer {
    /// Starts a server with this module and these lines of redis.conf.
    pub fn start(loaded: Loaded, config: &[&str]) -> Self {
        let shim = compiled(&repository().join("benches/chance_shim.rs"));
        let preload = format!("LD_PRELOAD={}", shim.display());
        let callgrind = [
            "env",
            &preload,
            "LOCKWARD_STILL={dir}/still",
            "valgrind",
            "--quiet",
            "--tool=callgrind",
            // A server of scripts/servers is a shell script that runs the program.
            "--trace-children=yes",
            "--dump-before=echoCommand",
            "--callgrind-out-file={dir}/counted.%p",
            "--log-fd=1",
        ];
        let config = [&["enable-debug-command yes", "jemalloc-bg-thread no"], config].concat();
        let server = setup(loaded, Place::Together, &config).under(&callgrind).start();
        let control = server.client();
        let mut counted = Self { server, control, still: Cell::new(0), parts: 0, echo: 0 };
        // In the server's cron, the module notices whether it must replicate changes. While the clock is stopped, the
        // cron does not run. So this thread waits for the cron before it stops the clock.
        thread::sleep(Duration::from_millis(110));
        counted.part();
        counted.pass_time();
        counted.echo = counted.fewest(&mut |_| {}).0;
        counted
    }

    /// Sends requests on a connection, reads `replies` replies, and waits until the server sleeps.
    pub fn exchange(&self, connection: &mut Client, requests: &[u8], replies: usize) {
        connection.send_bytes(requests);
        for _ in 0..replies {
            let reply = connection.reply();
            assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        }
        self.settle();
    }

    pub fn settle(&self) {
        let _ = CpuClock::of(self.server.pid()).settled();
    }

    /// Counts the instructions of a round of `work` that consists of `units` units.
    pub fn count(&mut self, units: usize, mut work: impl FnMut(&Self)) -> Count {
        let (instructions, profile) = self.fewest(&mut work);
        Count { each: (instructions - self.echo) as f64 / units as f64, profile }
    }

    /// Stops the server's clock, or advances the stopped clock by ten milliseconds.
    pub fn pass_time(&self) {
        self.still.set(self.still.get() + 1);
        let file = OpenOptions::new().write(true).open(self.server.dir().join("still"));
        file.and_then(|mut file| file.write_all(&[self.still.get()])).expect("a directory of our own");
    }

    fn fewest(&mut self, work: &mut dyn FnMut(&Self)) -> (u64, String) {
        for _ in 0..WARM_UP {
            work(self);
        }
        self.part();
        let rounds = (0..ROUNDS).map(|_| {
            work(self);
            self.part()
        });
        rounds.min_by_key(|(instructions, _)| *instructions).expect("a round")
    }

    /// How many instructions the server has executed since the last call of this function, and callgrind's profile of
    /// these instructions.
    fn part(&mut self) -> (u64, String) {
        self.settle();
        self.control.call("ECHO part");
        self.settle();
        self.parts += 1;
        let file = self.server.dir().join(format!("counted.{}.{}", self.server.pid(), self.parts));
        let profile =
            fs::read_to_string(&file).expect("what callgrind has counted: does the server show its symbols?");
        fs::remove_file(&file).expect("a directory of our own");
        let total = profile.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
        (total.expect("the total of callgrind"), profile)
    }
}
