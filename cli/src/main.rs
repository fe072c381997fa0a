//! `lockward`: the command-line tool. One module a subcommand; this file only tells them apart.

mod breaking;
mod demo;
mod duration;
mod failure;
mod info;
mod json;
mod list;
mod locks;
mod primaries;
mod run;
mod server;
mod text;
mod top;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Distributed locks in Redis and Valkey, from the command line
#[derive(Parser)]
#[command(name = "lockward", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Ls(list::List),
    Info(info::Info),
    Break(breaking::Break),
    Top(top::Top),
    Demo(demo::Demo),
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(Cli { command }) => command,
        Err(error) => return explain(&error),
    };
    let outcome = match command {
        Command::Run(run) => run.run(),
        Command::Ls(list) => list.run(),
        Command::Info(info) => info.run(),
        Command::Break(breaking) => breaking.run(),
        Command::Top(top) => top.run(),
        Command::Demo(demo) => demo.run().map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("lockward: {failure}");
        failure.code().into()
    })
}

/// What clap has to say, help among it. Under `run`, 2 would be taken for the command's own exit code.
fn explain(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let is_run = std::env::args_os().nth(1).is_some_and(|first| first == "run");
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if is_run => run::FAILED.into(),
        _ => 2.into(),
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
