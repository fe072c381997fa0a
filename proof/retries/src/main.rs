//! `retries`: tests the hold counts of locks with Redis clients that repeat commands after a lost reply.
//!
//! Each [client](clients) sends its commands through a [proxy](lockward_tests::Proxy). The module [`faults`] decides
//! which requests and replies the proxy loses. Each [`actor`] is an owner that acquires and releases locks. After each
//! command the actor compares the reply with the hold count, which it reads from the server without the proxy. The
//! [kinds of lock](lock_kind) are Lockward with HOLDS, and Lockward without HOLDS, which must miscount.

mod actor;
mod clients;
mod driver;
mod experiment;
mod faults;
mod lock_kind;
mod table;

use clap::Parser;
use clients::CLIENTS;
use experiment::Finding;
use std::process::ExitCode;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Lets Redis clients with default settings acquire and release locks while a proxy loses requests and replies.
/// Compares the replies that the clients get with the hold counts on the server.
///
/// LOCKWARD_SERVER names the server program (default: redis-server). LOCKWARD_MODULE names the module.
#[derive(Debug, Parser)]
struct Arguments {
    /// The clients. The default is all clients.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(CLIENTS.map(|client| client.name)))]
    clients: Vec<String>,
    /// The number of faults for each client and kind of lock.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    faults: u64,
    /// The seed. The default is a new seed.
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let Arguments { clients, faults, seed } = Arguments::parse();
    let seed = seed.unwrap_or_else(new_seed);
    println!("Seed {seed}.");
    let begun = Instant::now();
    // The clients run at the same time, because each client mostly waits. Each client has its own server and proxy.
    let findings: Vec<Finding> = thread::scope(|scope| {
        let chosen = CLIENTS
            .iter()
            .filter(|client| clients.is_empty() || clients.iter().any(|name| name == client.name));
        let experiments: Vec<_> =
            chosen.map(|client| scope.spawn(move || experiment::run(client, faults, seed))).collect();
        experiments
            .into_iter()
            .map(|experiment| experiment.join().expect("an experiment that ends"))
            .collect()
    });
    println!("{}", table::of(&findings, seed));
    println!("{} s.", begun.elapsed().as_secs());
    let failures: Vec<String> = findings.iter().flat_map(Finding::failures).collect();
    for failure in &failures {
        println!("{failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
