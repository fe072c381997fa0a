//! What a server spends while a job counts.

use crate::cpu;
use crate::peers::server::{Server, commands};
use std::process;
use std::thread;
use std::time::{Duration, SystemTime};

#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// The CPU time of all processes of the server, in seconds.
    pub cpu: f64,
    /// The CPU time of other programs than this program, the server and the peer program, in seconds.
    pub others: f64,
    /// The number of commands that the server has received.
    pub commands: f64,
}

impl Spent {
    /// Runs a peer program. Returns its result, and what is spent in the time that counts.
    pub fn beside<T>(
        run: impl FnOnce() -> T,
        server: &Server,
        begin: SystemTime,
        counted: Duration,
    ) -> (T, Self) {
        thread::scope(|scope| {
            let spent = scope.spawn(|| Self::during(server, begin, counted));
            (run(), spent.join().expect("what is spent"))
        })
    }

    fn during(server: &Server, begin: SystemTime, counted: Duration) -> Self {
        thread::sleep(begin.duration_since(SystemTime::now()).unwrap_or_default());
        let before = Self::until_now(server);
        thread::sleep(counted);
        let after = Self::until_now(server);
        Self {
            cpu: after.cpu - before.cpu,
            others: after.others - before.others,
            commands: after.commands - before.commands,
        }
    }

    fn until_now(server: &Server) -> Self {
        let cpu = cpu::of_family(server.pid()).as_secs_f64();
        let others = cpu::of_machine().as_secs_f64() - cpu::of_family(process::id()).as_secs_f64();
        Self { cpu, others, commands: commands(server.kind, server.port) }
    }
}
