//! Worker processes. Each runs some of the clients, and a fault can stop the whole process.

use crate::world::WorldName;
use lockward_tests::ProcessGroup;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::env;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long clients may wait for their last replies after the end of the run.
const LAST_REPLIES: Duration = Duration::from_secs(45);

/// The task of a worker. A worker process gets its task as an argument, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerArgs {
    /// The world, which determines the workload.
    pub(crate) world: WorldName,
    /// The seed of the clients' random choices.
    pub(crate) seed: u64,
    /// The number of the first client.
    pub(crate) first: u32,
    pub(crate) clients: u32,
    /// The port of the primary at the start.
    pub(crate) port: u16,
    /// The URL of the servers, for clients that use `lockward-client`.
    pub(crate) url: Option<String>,
    /// The file for the worker's history.
    pub(crate) file: PathBuf,
}

pub(crate) struct Worker {
    process: ProcessGroup,
    /// The pipe for the ports of new primaries.
    input: Option<ChildStdin>,
    /// The numbers of the worker's clients.
    pub(crate) clients: std::ops::Range<u32>,
    pub(crate) file: PathBuf,
}

impl Worker {
    /// Starts this program again as a worker.
    pub(crate) fn start(args: &WorkerArgs) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.arg("--worker").arg(serde_json::to_string(args).expect("numbers and text"));
        let mut process = ProcessGroup::start(command.stdin(Stdio::piped())).expect("a worker");
        let (input, ..) = process.take_pipes();
        Self { process, input, clients: args.first..args.first + args.clients, file: args.file.clone() }
    }

    /// Sends the port of the new primary.
    pub(crate) fn announce_primary(&mut self, port: u16) {
        if let Some(input) = &mut self.input {
            // If the worker has died, `finish` reports this.
            let _ = writeln!(input, "{port}");
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal.as_raw()).expect("a running worker");
    }

    /// Lets the clients read their last replies and ends the worker. Returns the file of its history.
    pub(crate) fn finish(mut self) -> PathBuf {
        drop(self.input.take());
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.process.ended() {
                break status;
            }
            assert!(begun.elapsed() < LAST_REPLIES, "clients {:?} still wait for a reply", self.clients);
            thread::park_timeout(Duration::from_millis(5));
        };
        assert!(status.success(), "a worker failed: {status}");
        self.file
    }
}
