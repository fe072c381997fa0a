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
use std::process::ExitCode;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use trial::Plan;

/// Lets Redis clients as they come acquire and release locks, while a proxy loses requests and replies, and holds what they
/// were told against what the server counts.
///
/// LOCKWARD_SERVER names the server program (redis-server), LOCKWARD_MODULE the module.
#[derive(Debug, Parser)]
struct Arguments {
    /// The clients; without any, all.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(CLIENTS.map(|client| client.name)))]
    clients: Vec<String>,
    /// How many faults hit commands of Lockward, for each client.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    faults: u64,
    /// How many faults hit commands of each control, for each client.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..))]
    control_faults: u64,
    /// The seed; without it, a new one.
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let Arguments { clients, faults, control_faults, seed } = Arguments::parse();
    let seed = seed.unwrap_or_else(new_seed);
    let plan = Plan { faults, control_faults, seed };
    let begun = Instant::now();
    // Each with a server and a proxy of its own, side by side: they wait more than they work.
    let findings: Vec<_> = thread::scope(|scope| {
        let chosen =
            CLIENTS.iter().filter(|client| clients.is_empty() || clients.contains(&client.name.into()));
        let trials: Vec<_> = chosen.map(|client| scope.spawn(move || trial::hold(client, plan))).collect();
        trials
            .into_iter()
            .map(|trial| trial.join().unwrap_or_else(|_| panic!("a trial has failed: see above")))
            .collect()
    });
    println!("{}", table::of(&findings));
    println!("Seed {seed}; {} s.", begun.elapsed().as_secs());
    let mut as_promised = true;
    for finding in &findings {
        for fault in finding.failures() {
            println!("{fault}");
            as_promised = false;
        }
    }
    if as_promised { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
