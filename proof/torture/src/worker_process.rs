//! Worker processes. Each runs some of the clients, and a fault can stop the whole process.

use crate::world::WorldName;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::env;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long clients may wait for their last replies after the end of the run.
const LAST_REPLIES: Duration = Duration::from_secs(45);

/// The task of a worker. A worker process gets its task as an argument, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerArgs {
    /// The world, which determines the workload.
    pub world: WorldName,
    /// The seed of the clients' random choices.
    pub seed: u64,
    /// The number of the first client.
    pub first: u32,
    /// The number of clients.
    pub clients: u32,
    /// The port of the store.
    pub store: u16,
    /// The port of the primary at the start.
    pub port: u16,
    /// The URL of the servers, for clients that use `lockward-client`.
    pub url: Option<String>,
    /// The file for the worker's history.
    pub file: PathBuf,
}

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    args: Option<ChildStdin>,
    /// The numbers of the worker's clients.
    pub clients: std::ops::Range<u32>,
    /// The file of the worker's history.
    pub file: PathBuf,
}

impl Worker {
    /// Starts this program again as a worker.
    ///
    /// # Panics
    /// If the process does not start.
    #[must_use]
    pub fn start(args: &WorkerArgs) -> Self {
        let program = env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .arg("worker")
            .arg(serde_json::to_string(args).expect("numbers and text"))
            .stdin(Stdio::piped())
            .spawn()
            .expect("a worker");
        let clients = args.first..args.first + args.clients;
        Self { args: child.stdin.take(), child, clients, file: args.file.clone() }
    }

    /// Sends the port of the new primary.
    pub fn announce_primary(&mut self, port: u16) {
        if let Some(args) = &mut self.args {
            // If the worker has died, `finish` reports this.
            let _ = writeln!(args, "{port}");
        }
    }

    /// Stops the process (SIGSTOP).
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the process (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("a running worker");
    }

    /// Lets the clients read their last replies and ends the worker. Returns the file of its history.
    ///
    /// # Panics
    /// If the worker has failed, or does not end in time.
    pub fn finish(mut self) -> PathBuf {
        drop(self.args.take());
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a worker") {
                break status;
            }
            assert!(begun.elapsed() < LAST_REPLIES, "clients {:?} still wait for a reply", self.clients);
            thread::park_timeout(Duration::from_millis(5));
        };
        assert!(status.success(), "a worker failed: {status}");
        self.file.clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
