//! Measures what Lockward costs on a real server, compared with the locks that it replaces: `make bench`. Measures how
//! the cost grows: `make bench-scale`.

use clap::Parser;
use lockward_bench::placement::{Place, be_client_of};
use lockward_bench::report::Report;
use lockward_bench::results::Row;
use lockward_bench::{
    cluster, expiry, handoff, holders, locks, memory, pairs, pubsub, replica, server, slots, stalls, waiters,
};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// A stage: its name, what it measures, and the function that measures it.
type Stage = (&'static str, &'static str, fn(&mut Report));

/// The stages of docs/performance.md.
const COSTS: [Stage; 8] = [
    ("pairs", "acquire + release without AOF or replica", pairs::plain),
    ("aof", "acquire + release with an AOF", pairs::aof),
    ("replica", "acquire + release with a replica", pairs::replica),
    ("handoff", "hand-offs, compared with an LPUSH that wakes a client in BLPOP", handoff::measure),
    ("pubsub", "hand-offs, compared with pub/sub wake-up and Lua", pubsub::measure),
    ("expiry", "expired leases among many keys with a TTL", expiry::measure),
    ("memory", "memory of locks and of waiting clients", memory::measure),
    ("stalls", "how long other clients wait at worst", stalls::measure),
];

/// The stages of docs/scale.md.
const CURVES: [Stage; 6] = [
    ("locks", "pairs, memory, snapshots and their loading, by the number of locks", locks::measure),
    ("waiters", "hand-offs and memory, by the number of waiters", waiters::measure),
    ("holders", "pairs and memory, by the number of holders of one semaphore", holders::measure),
    ("replica", "replica lag, by the number of connections that acquire and release", replica::measure),
    ("cluster", "pairs in a cluster, by the number of nodes", cluster::measure),
    ("slots", "a slot that moves, by the number of its locks", slots::measure),
];

/// Measures what Lockward costs the server, compared with the locks that it replaces. Fails if a target is missed by
/// more than noise.
///
/// LOCKWARD_SERVER names the server (default: redis-server). LOCKWARD_MODULE names the module (default:
/// target/release/liblockward.so).
#[derive(Debug, Parser)]
struct Arguments {
    /// The stages to run. The default is all stages.
    stages: Vec<String>,
    /// Measure how the cost grows with the number of locks, waiters, holders and nodes.
    #[arg(long)]
    scale: bool,
    /// The directory for the results and plots.
    #[arg(long, default_value = "target/bench")]
    into: PathBuf,
}

fn main() -> io::Result<ExitCode> {
    let Arguments { stages: asked, scale, into } = Arguments::parse();
    let stages: &[Stage] = if scale { &CURVES } else { &COSTS };
    if let Some(unknown) = asked.iter().find(|asked| stages.iter().all(|(name, ..)| asked != name)) {
        let names: Vec<&str> = stages.iter().map(|(name, ..)| *name).collect();
        eprintln!("There is no stage {unknown}. The stages are {}.", names.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    be_client_of(Place::Apart);
    let version = server::start(&[]).version();
    let mut report = Report::default();
    eprintln!("{version}");
    for (name, about, measure) in stages {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            report.stage(name, about);
            measure(&mut report);
        }
    }
    report.write(&version, &into)?;
    let missed: Vec<String> = report.rows().filter(|row| row.is_missed()).map(Row::line).collect();
    if missed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("These figures miss their targets, or are too noisy:\n{}", missed.join("\n"));
    Ok(ExitCode::FAILURE)
}
