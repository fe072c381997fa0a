//! The CPU time of a server in an interval. The peer program reports the interval only after its job. So a thread reads
//! the CPU time ten times a second. For the ends of the interval, the meter interpolates between two of these values.

use crate::cpu;
use crate::peers::server::{Kind, Server, commands};
use std::collections::BTreeMap;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A sample: the CPU times and the commands of a server until one instant.
#[derive(Clone, Debug)]
struct Look {
    unix_ms: f64,
    cpu: Duration,
    /// The CPU time of this program and all processes that it has started, including the server and the peer program.
    ours: Duration,
    machine: Duration,
    commands: BTreeMap<String, u64>,
}

/// Samples a server until it is stopped.
#[derive(Debug)]
pub struct Meter {
    /// Sampling ends when this value is dropped.
    running: Sender<()>,
    thread: JoinHandle<Vec<Look>>,
}

/// The CPU time and the commands of an interval.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    /// The CPU time of all processes of the server.
    pub cpu: Duration,
    /// The part of the machine's CPU time that other programs used, from 0 to 1.
    pub others: f64,
    /// How often each command was sent to the server.
    pub commands: BTreeMap<String, f64>,
}

impl Meter {
    pub fn start(server: &Server) -> Self {
        let (running, ended) = mpsc::channel();
        let (pid, kind, port) = (server.pid(), server.kind, server.port);
        let thread = thread::spawn(move || {
            let mut looks = vec![look(pid, kind, port)];
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                looks.push(look(pid, kind, port));
            }
            looks.push(look(pid, kind, port)); // a last sample, so that every interval ends before the last sample
            looks
        });
        Self { running, thread }
    }

    pub fn end(self) -> Looks {
        drop(self.running);
        Looks(self.thread.join().expect("a meter that comes to its end"))
    }
}

#[derive(Clone, Debug)]
pub struct Looks(Vec<Look>);

impl Looks {
    /// The CPU time and the commands between two instants, in milliseconds since 1970.
    pub fn between(&self, from: f64, to: f64) -> Spent {
        let spent = |value: &dyn Fn(&Look) -> f64| self.at(to, value) - self.at(from, value);
        let names = self.0.last().map(|last| last.commands.keys()).into_iter().flatten();
        let commands = names.filter_map(|name| {
            let count = spent(&|look| look.commands.get(name).map_or(0.0, |count| *count as f64));
            (count > 0.0).then(|| (name.clone(), count))
        });
        let foreign = spent(&|look| look.machine.as_secs_f64() - look.ours.as_secs_f64());
        let cpus = thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64);
        Spent {
            commands: commands.collect(),
            others: (foreign * 1e3 / (to - from) / cpus).clamp(0.0, 1.0),
            cpu: Duration::from_secs_f64(spent(&|look| look.cpu.as_secs_f64()).max(0.0)),
        }
    }

    /// A value at an instant, interpolated between two samples.
    fn at(&self, unix_ms: f64, value: &dyn Fn(&Look) -> f64) -> f64 {
        let after = self.0.partition_point(|look| look.unix_ms < unix_ms);
        let (Some(one), Some(other)) = (self.0.get(after.saturating_sub(1)), self.0.get(after)) else {
            return self.0.last().map_or(0.0, value);
        };
        let part = ((unix_ms - one.unix_ms) / (other.unix_ms - one.unix_ms).max(1e-3)).clamp(0.0, 1.0);
        value(one) + part * (value(other) - value(one))
    }
}

fn look(pid: u32, kind: Kind, port: u16) -> Look {
    let commands = commands(kind, port);
    Look {
        unix_ms: unix_ms(),
        cpu: cpu::of_family(pid),
        ours: cpu::of_family(process::id()),
        machine: cpu::of_machine(),
        commands,
    }
}

fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}
