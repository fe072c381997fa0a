//! The servers of a world, and the injection of faults.

use super::name::MS;
use crate::worker_process::Worker;
use lockward_checker::history::{Fault, Line, NOBODY, Nanos};
use lockward_checker::random::Random;
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::Client;
use std::ops::Range;
use std::thread;
use std::time::Duration;

/// The servers of a world.
pub trait World {
    /// The port of the primary. In a cluster, the port of any node.
    fn port(&self) -> u16;

    /// The URL for `lockward-client`.
    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The ports of all primaries.
    fn ports(&self) -> Vec<u16> {
        vec![self.port()]
    }

    /// Injects one fault and heals it.
    fn fault(&mut self, nemesis: &mut Nemesis<'_>);
}

/// Injects faults and records them.
#[derive(Debug)]
pub struct Nemesis<'r> {
    /// The random choices.
    pub random: Random,
    recorder: &'r Recorder,
    workers: Vec<Worker>,
}

impl<'r> Nemesis<'r> {
    /// Creates the nemesis of these workers and their servers.
    #[must_use]
    pub fn new(random: Random, recorder: &'r Recorder, workers: Vec<Worker>) -> Self {
        Self { random, recorder, workers }
    }

    /// The recorder of the faults.
    #[must_use]
    pub const fn recorder(&self) -> &'r Recorder {
        self.recorder
    }

    /// Injects a fault into the servers and records it.
    pub fn fault<T>(&mut self, name: &str, fault: impl FnOnce(&mut Self) -> T) -> T {
        let start = now();
        let done = fault(self);
        self.record(name, None, start);
        done
    }

    /// Performs an operation that clients must not notice. The history has the operation as a fault of [`NOBODY`], so
    /// the operation excuses no late reply.
    pub fn maintenance<T>(&mut self, name: &str, operation: impl FnOnce(&mut Self) -> T) -> T {
        let start = now();
        let done = operation(self);
        self.record(name, Some(NOBODY), start);
        done
    }

    fn record(&self, name: &str, client: Option<u32>, start: Nanos) {
        self.recorder.record(&Line::Fault(Fault { name: name.to_owned(), client, start, end: now() }));
    }

    /// Sleeps for a random time in this range of milliseconds.
    pub fn sleep(&mut self, ms: Range<u64>) {
        let until = now() + self.random.between(ms.start, ms.end) * MS;
        while now() < until {
            thread::park_timeout(Duration::from_nanos(until.saturating_sub(now())));
        }
    }

    /// Sends the port of the new primary to all clients.
    pub fn announce_primary(&mut self, port: u16) {
        for worker in &mut self.workers {
            worker.announce_primary(port);
        }
    }

    /// Closes about half of the connections to a server.
    pub fn cut_connections(&mut self, port: u16) {
        self.fault("cut", |nemesis| {
            let Ok(mut client) = Client::connect(port) else { return };
            let Ok(list) = client.try_call("CLIENT LIST TYPE normal") else { return };
            for line in list.text().lines() {
                let id = line.split(' ').find_map(|field| field.strip_prefix("id="));
                if let Some(id) = id.filter(|_| nemesis.random.percent(50)) {
                    let _ = client.try_call(["CLIENT", "KILL", "ID", id]);
                }
            }
        });
    }

    /// Stops one worker process for longer than most leases.
    pub fn stop_clients(&mut self) {
        let Some(worker) = usize::try_from(self.random.number()).ok().map(|at| at % self.workers.len())
        else {
            return;
        };
        let start = now();
        self.workers[worker].stop();
        self.sleep(100..600);
        self.workers[worker].resume();
        for client in self.workers[worker].clients.clone() {
            self.record("stop of a client", Some(client), start);
        }
        if self.workers[worker].clients.start == 0 {
            self.record("stop of a client", Some(u32::MAX), start);
        }
    }

    /// Returns the workers after the last fault.
    #[must_use]
    pub fn into_workers(self) -> Vec<Worker> {
        self.workers
    }
}
