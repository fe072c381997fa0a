//! The servers of a world, and the injection of faults.

use crate::queue_order;
use crate::worker_process::Worker;
use lockward_checker::history::NOBODY;
use lockward_checker::recorder::{Recorder, now};
use lockward_tests::{Client, Random};
use rustix::process::Signal;
use std::ops::Range;
use std::thread;
use std::time::Duration;

/// The servers of a world.
pub(crate) trait World {
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

/// Injects faults into servers and workers, and records the faults.
pub(crate) struct Nemesis<'r> {
    pub(crate) random: Random,
    pub(crate) recorder: &'r Recorder,
    pub(crate) workers: Vec<Worker>,
}

impl Nemesis<'_> {
    /// Injects a fault into the servers and records it.
    pub(crate) fn fault(&mut self, name: &str, fault: impl FnOnce(&mut Self)) {
        let start = now();
        fault(self);
        self.recorder.fault(name, None, start);
    }

    /// Performs an operation that clients must not notice. The history has the operation as a fault of [`NOBODY`], so
    /// the operation does not excuse a late reply.
    pub(crate) fn maintenance(&mut self, name: &str, operation: impl FnOnce(&mut Self)) {
        let start = now();
        operation(self);
        self.recorder.fault(name, Some(NOBODY), start);
    }

    /// Sleeps for a random time in this range of milliseconds.
    pub(crate) fn sleep(&mut self, ms: Range<u64>) {
        thread::sleep(Duration::from_millis(self.random.between(ms.start, ms.end)));
    }

    /// Sends the port of the new primary to all clients.
    pub(crate) fn announce_primary(&mut self, port: u16) {
        for worker in &mut self.workers {
            worker.announce_primary(port);
        }
    }

    /// Closes about half of the connections to a server.
    pub(crate) fn cut_connections(&mut self, port: u16) {
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
    pub(crate) fn stop_clients(&mut self) {
        let length = self.random.between(100, 600);
        let worker = self.random.pick(&self.workers).expect("a worker");
        let start = now();
        worker.signal(Signal::STOP);
        thread::sleep(Duration::from_millis(length));
        worker.signal(Signal::CONT);
        // The worker that runs client 0 also tests the order of the queue.
        let prober = Some(queue_order::CLIENT).filter(|_| worker.clients.start == 0);
        for client in worker.clients.clone().chain(prober) {
            self.recorder.fault("stop of a client", Some(client), start);
        }
    }
}
