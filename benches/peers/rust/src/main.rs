//! Peer programs of `make bench-peers` in Rust: plain commands, and Lockward's Rust client. benches/peers/README.md
//! says what a peer program is.

#![allow(clippy::expect_used, clippy::panic, reason = "a peer program that fails prints the reason and ends")]

mod commands;
mod job_run;
mod library;

use clap::Parser;
use commands::Commands;
use job_run::JobRun;
use lockward_bench::peers::job::{Answer, Job};
use lockward_tests::Client;
use std::sync::Arc;
use tokio::runtime::Runtime;

#[derive(Debug, Parser)]
struct Arguments {
    peer: String,
    job: Job,
    /// Where the server listens, as 127.0.0.1:PORT.
    address: String,
    #[arg(long)]
    clients: usize,
    #[arg(long)]
    seconds: u64,
}

fn main() {
    let arguments = Arguments::parse();
    let answer = match arguments.peer.as_str() {
        "lockward-rust" => use_library(arguments),
        "set-delex" => use_commands(Commands::Delex, arguments),
        "set-delifeq" => use_commands(Commands::Delifeq, arguments),
        _ => use_commands(Commands::Lockward, arguments),
    };
    println!("{}", serde_json::to_string(&answer).expect("plain numbers"));
}

fn use_commands(commands: Commands, arguments: Arguments) -> Answer {
    let port = arguments.address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let connections = (0..arguments.clients).map(|_| Client::connect(port).expect("a connection")).collect();
    let job_run = JobRun::new(arguments.job, arguments.seconds);
    let times = commands.run_clients(connections, &job_run);
    job_run.answer(commands.version(), commands.notes(), times)
}

fn use_library(arguments: Arguments) -> Answer {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = library::connect(&arguments.address).await;
        let job_run = Arc::new(JobRun::new(arguments.job, arguments.seconds));
        let times = library::run_clients(&client, &job_run, arguments.clients).await;
        job_run.answer(env!("CARGO_PKG_VERSION"), library::NOTES, times)
    })
}
