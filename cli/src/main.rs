//! `lockward`: the command-line tool. One module a subcommand; this file only tells them apart.

mod demo;
mod duration;
mod failure;
mod server;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Distributed locks in Redis, from the command line.
#[derive(Parser)]
#[command(name = "lockward", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(demo) => demo.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lockward: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_declared_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
