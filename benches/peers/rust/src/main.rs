//! Peer programs of `make bench-peers` in Rust: plain commands, and Lockward's Rust client. benches/peers/README.md
//! says what a peer program is.

#![allow(clippy::expect_used, clippy::panic, reason = "a peer program that fails prints the reason and ends")]

mod commands;
mod job_run;
mod library;

use clap::ValueEnum;
use commands::Commands;
use job_run::JobRun;
use lockward_bench::peers::job::{Answer, Job};
use std::env;
use tokio::runtime::Runtime;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [peer, job, address, numbers @ ..] = &arguments[..] else { panic!("see benches/peers/README.md") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().expect("a number")).collect();
    let &[clients, begin, seconds] = &numbers[..] else { panic!("see benches/peers/README.md") };
    let (job, clients) = (Job::from_str(job, false).expect("a job"), clients as usize);
    let commands = match &**peer {
        "lockward-rust" => None,
        "set-delex" => Some(Commands::Delex),
        "set-delifeq" => Some(Commands::Delifeq),
        _ => Some(Commands::Lockward),
    };
    let job_run = JobRun::new(job, begin, seconds);
    let (version, notes, tenures_us) = match commands {
        None => {
            let runtime = Runtime::new().expect("a runtime");
            let tenures = runtime.block_on(library::run_clients(address, job_run, clients));
            (env!("CARGO_PKG_VERSION"), library::NOTES, tenures)
        }
        Some(commands) => {
            let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
            (commands.version(), commands.notes(), commands.run_clients(port, job_run, clients))
        }
    };
    let answer = Answer { version: version.to_owned(), notes: notes.to_owned(), tenures_us, gave_up: 0 };
    println!("{}", serde_json::to_string(&answer).expect("plain numbers"));
}
