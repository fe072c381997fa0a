//! The work of a worker process.

use crate::queue_order;
use crate::rust_client;
use crate::worker_process::WorkerArgs;
use crate::workload_client::WorkloadClient;
use lockward_checker::client::Workload;
use lockward_checker::recorder::Recorder;
use lockward_tests::Random;
use std::io::{self, BufRead as _};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;

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
