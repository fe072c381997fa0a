//! Worker processes. Each runs some of the clients, and a fault can stop the whole process.

use crate::queue_order;
use crate::rust_client;
use crate::workload_client::WorkloadClient;
use crate::world::WorldName;
use lockward_checker::client::Workload;
use lockward_checker::recorder::Recorder;
use lockward_tests::{ProcessGroup, Random};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::env;
use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
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

/// Runs the clients until standard input ends. Each line of the input is the port of a new primary.
///
/// Every fourth client uses a lock of its own. No client waits for such a lock, so the server may notice late that the
/// lease of the lock has ended. If servers forget tenures, these clients use long leases, so that they can restore their
/// tenures.
///
/// The worker that runs client 0 also tests the order of the queue.
pub(crate) fn run(args: &WorkerArgs) {
    if let Some(url) = &args.url {
        return rust_client::run(args, url);
    }
    let recorder = Recorder::create(&args.file).expect("a file for the history");
    let workload = args.world.workload();
    let (primary, over) = (AtomicU16::new(args.port), AtomicBool::new(false));
    thread::scope(|scope| {
        for number in args.first..args.first + args.clients {
            let random = Random::from_seed(args.seed ^ (u64::from(number) << 32));
            let (recorder, workload, primary, over) = (&recorder, &workload, &primary, &over);
            scope.spawn(move || {
                let lease = if workload.careful { &workload.long_lease } else { &workload.lease };
                let keys = vec![format!("own-{number}")];
                let own_lock = Workload { keys, lease: lease.clone(), ..workload.clone() };
                let workload = if number % 4 == 1 { &own_lock } else { workload };
                let mut client = WorkloadClient::new(number, workload, random, recorder, primary);
                while !over.load(Ordering::Relaxed) {
                    client.act();
                }
                client.finish();
            });
        }
        if args.first == 0 {
            let (recorder, primary, over) = (&recorder, &primary, &over);
            scope.spawn(move || {
                let mut random = Random::from_seed(args.seed ^ u64::MAX);
                for round in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    queue_order::round(recorder, round, primary.load(Ordering::Relaxed), &mut random);
                }
            });
        }
        for line in io::stdin().lock().lines() {
            let port = line.ok().and_then(|line| line.parse().ok()).expect("a port");
            primary.store(port, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    recorder.finish().expect("a whole history");
}
