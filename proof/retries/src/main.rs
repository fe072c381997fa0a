//! `retries`: whether locks count right under Redis clients as they come, which send commands again when a reply is lost.
//!
//! A [`client`](clients) issues what it is told to through a [`proxy`](lockward_tests::Proxy) that loses requests and
//! replies as the [`faults`] say. Each [`lane`] is an owner, who acquires and releases, and after each step asks the server
//! itself, past the proxy, whether it counts what the client was told. The [`contestant`]s are Lockward, and two controls
//! that must miscount.

mod clients;
mod contestant;
mod driver;
mod faults;
mod lane;
mod table;
mod trial;

use clap::Parser;
use clients::CLIENTS;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use trial::Finding;

/// Lets Redis clients as they come acquire and release locks, while a proxy loses requests and replies, and holds what they
/// were told against what the server counts.
///
/// LOCKWARD_SERVER names the server program (redis-server), LOCKWARD_MODULE the module.
#[derive(Debug, Parser)]
struct Arguments {
    /// The clients; without any, all.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(CLIENTS.map(|client| client.name)))]
    clients: Vec<String>,
    /// How many faults hit each lock, with each client.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    faults: u64,
    /// The seed; without it, a new one.
    #[arg(long)]
    seed: Option<u64>,
    /// Writes what was found into retries.md of this directory.
    #[arg(long)]
    docs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { clients, faults, seed, docs } = Arguments::parse();
    let seed = seed.unwrap_or_else(new_seed);
    println!("Seed {seed}.");
    let begun = Instant::now();
    // Each with a server and a proxy of its own, side by side: they wait more than they work.
    let findings: Vec<Finding> = thread::scope(|scope| {
        let chosen = CLIENTS
            .iter()
            .filter(|client| clients.is_empty() || clients.iter().any(|name| name == client.name));
        let trials: Vec<_> =
            chosen.map(|client| scope.spawn(move || trial::hold(client, faults, seed))).collect();
        trials.into_iter().map(|trial| trial.join().expect("a trial that is held to its end")).collect()
    });
    let table = table::of(&findings, seed);
    println!("{table}");
    println!("{} s.", begun.elapsed().as_secs());
    if let Some(docs) = docs {
        table::write(&docs.join("retries.md"), &table);
    }
    let failures: Vec<String> = findings.iter().flat_map(Finding::failures).collect();
    for failure in &failures {
        println!("{failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
