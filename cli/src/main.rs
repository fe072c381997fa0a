//! `lockward`: the command-line tool. Each subcommand is a module.

mod break_lock;
mod demo;
mod duration;
mod exit_code;
mod failure;
mod info;
mod locks;
mod ls;
mod output;
mod primaries;
mod run;
mod server;
mod text;
mod top;
mod watch;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use failure::Failure;

/// Distributed locks in Redis and Valkey, from the command line
#[derive(Parser)]
#[command(name = "lockward", version)]
struct Cli {
    /// clap copies the values of these options to the subcommand.
    #[command(flatten)]
    _server: primaries::ServerUrl,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Ls(ls::Ls),
    Info(info::Info),
    Break(break_lock::Break),
    Top(top::Top),
    Watch(watch::Watch),
    Demo(demo::Demo),
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, for man -l -
    Man,
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(Cli { command, .. }) => command,
        Err(error) => return print_usage(&error),
    };
    let usual_code = usual_code(matches!(command, Command::Run(_)));
    let outcome = match command {
        Command::Run(run) => run.run(),
        Command::Ls(ls) => ls.run(),
        Command::Info(info) => info.run(),
        Command::Break(break_lock) => break_lock.run(),
        Command::Top(top) => top.run(),
        Command::Watch(watch) => watch.run(),
        Command::Completions { shell } => print(|out| {
            clap_complete::generate(shell, &mut Cli::command(), "lockward", out);
            Ok(())
        }),
        Command::Man => print(manual),
        Command::Demo(demo) => demo.run(),
    };
    outcome.unwrap_or_else(|failure| {
        let code = failure.code.unwrap_or(usual_code);
        // With `run -E 0` a busy lock is no failure, so lockward prints no message: cron(8) would mail it.
        if code != 0 {
            output::complain(&failure.to_string());
        }
        code.into()
    })
}

fn print(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    write(&mut text)?;
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// One manual page with all subcommands.
fn manual(out: &mut Vec<u8>) -> io::Result<()> {
    let mut whole = Cli::command();
    whole.build();
    let page = clap_mangen::Man::new(whole.clone());
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    for command in whole.get_subcommands().filter(|command| command.get_name() != "help") {
        let section = clap_mangen::Man::new(command.clone().disable_help_flag(true));
        writeln!(out, ".SH {}", command.get_name().to_uppercase())?;
        // The sections about one subcommand become subsections of the manual page.
        let mut parts = Vec::new();
        section.render_synopsis_section(&mut parts)?;
        section.render_description_section(&mut parts)?;
        section.render_options_section(&mut parts)?;
        if command.get_after_help().is_some() {
            section.render_extra_section(&mut parts)?;
        }
        let parts = String::from_utf8_lossy(&parts).replace(".SH EXTRA", ".SH \"EXIT CODES\"");
        out.extend_from_slice(parts.replace(".SH ", ".SS ").as_bytes());
    }
    page.render_version_section(out)
}

/// Prints the help text or the usage error of clap.
fn print_usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let partly_parsed = Cli::command().ignore_errors(true).try_get_matches();
    let is_run = partly_parsed.is_ok_and(|matches| matches.subcommand_name() == Some("run"));
    if error.use_stderr() { usual_code(is_run).into() } else { ExitCode::SUCCESS }
}

/// The exit code of a failed subcommand. `run` does not fail with 2, because its command may exit with 2.
fn usual_code(is_run: bool) -> u8 {
    if is_run { exit_code::RUN_FAILED } else { exit_code::ERROR }
}
