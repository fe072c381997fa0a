//! The CPU time of a server in an interval. The peer program reports the interval only after its job. So a thread reads
//! the CPU time ten times a second. For the ends of the interval, the meter interpolates between two of these values.

use crate::cpu;
use crate::peers::server::{Server, commands};
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The resources that the server has used until an instant, or during an interval.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// The CPU time of all processes of the server, in seconds.
    pub cpu: f64,
    /// The CPU time of other programs than this program, the server and the peer program, in seconds.
    pub others: f64,
    /// The number of commands that the server has received.
    pub commands: f64,
}

/// Samples a server until it is stopped.
#[derive(Debug)]
pub struct Meter {
    /// Sampling ends when this value is dropped.
    running: Sender<()>,
    thread: JoinHandle<Samples>,
}

/// Samples, each with its time in milliseconds since 1970.
type Samples = Vec<(f64, Spent)>;

impl Meter {
    pub fn start(server: &Server) -> Self {
        let (running, ended) = mpsc::channel();
        let (pid, kind, port) = (server.pid(), server.kind, server.port);
        let look = move || {
            let commands = commands(kind, port);
            let cpu = cpu::of_family(pid).as_secs_f64();
            let others = cpu::of_machine().as_secs_f64() - cpu::of_family(process::id()).as_secs_f64();
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (since.as_secs_f64() * 1e3, Spent { cpu, others, commands })
        };
        let thread = thread::spawn(move || {
            let mut samples = vec![look()];
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                samples.push(look());
            }
            samples.push(look()); // a last sample, so that every interval ends before the last sample
            samples
        });
        Self { running, thread }
    }

    pub fn end(self) -> Samples {
        drop(self.running);
        self.thread.join().expect("a meter that comes to its end")
    }
}

/// What was spent between two instants, in milliseconds since 1970.
pub fn between(samples: &Samples, from: f64, to: f64) -> Spent {
    let spent = |value: fn(&Spent) -> f64| (at(samples, to, value) - at(samples, from, value)).max(0.0);
    Spent {
        cpu: spent(|spent| spent.cpu),
        others: spent(|spent| spent.others),
        commands: spent(|spent| spent.commands),
    }
}

/// A value at an instant, interpolated between two samples.
fn at(samples: &Samples, unix_ms: f64, value: fn(&Spent) -> f64) -> f64 {
    let after = samples.partition_point(|(at, _)| *at < unix_ms).clamp(1, samples.len() - 1);
    let [(from, one), (to, other)] = [samples[after - 1], samples[after]];
    let part = ((unix_ms - from) / (to - from).max(1e-3)).clamp(0.0, 1.0);
    value(&one) + part * (value(&other) - value(&one))
}
