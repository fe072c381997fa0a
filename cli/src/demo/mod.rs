//! `lockward demo`: lost updates, shown on a real server.
//!
//! Many clients add one to the same number, with GET, an addition and SET. Without a lock, two of them read the same number and
//! one update is lost. There are four rounds with the same load: without a lock, with two common home-made locks, and with the
//! lock commands.

mod lock_kind;
mod paused;
mod report;
mod round;

use std::io::{self, StdoutLock, Write};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use redis::{Connection, ConnectionInfo};
use uuid::Uuid;

use crate::duration;
use crate::failure::Failure;
use crate::server::Server;
use lock_kind::{Client, LockCommands, LockKind, NoLock, REPLY_LIMIT, ReentrantHash, SetNx};
use report::Report;
use round::{Load, RoundResult};

/// Compare kinds of lock under contention, on a real server
///
/// Many clients add one to the same number (GET, add 1, SET): first without a lock, then with two home-made Redis
/// locks, then with LOCK.ACQUIRE. The demo uses its own keys and deletes them.
#[derive(Args)]
pub(crate) struct Demo {
    /// A server with the Lockward module loaded
    #[arg(long, default_value = "redis://127.0.0.1:6379")]
    url: ConnectionInfo,

    /// How many clients compete, each on its own connection
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    clients: u32,

    /// How many increments they make together, for each kind of lock
    #[arg(long, value_name = "N", default_value_t = 5_000,
        value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    increments: u64,

    /// How long clients sleep before they try a home-made lock again
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration::parse)]
    retry: Duration,

    /// Show a holder that is stopped past its lease instead: its late write with SET, and with LOCK.GUARD
    #[arg(long, conflicts_with_all = ["clients", "increments", "retry"])]
    paused: bool,
}

impl Demo {
    /// Runs the four rounds and prints the table, or shows a holder that is stopped. Fails if the lock commands lost an update.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let load = Load { clients: self.clients, increments: self.increments };
        let server = Server::new(self.url)?;
        let mut control = server.connect(REPLY_LIMIT)?;
        server.require_module(&mut control)?;
        if self.paused {
            return paused::run(&server);
        }
        let clients = connect_all(&server, load.clients)?;

        let mut stage = Stage { control, clients, report: Report::new(load), out: io::stdout().lock() };
        writeln!(stage.out, "{}", stage.report.opening(server.address()))?;
        let no_lock = stage.run('a', &NoLock)?;
        let set_nx = stage.run('b', &SetNx::new(self.retry))?;
        let hash = stage.run('c', &ReentrantHash::new(self.retry))?;
        let lockward = stage.run('d', &LockCommands)?;
        writeln!(stage.out, "{}", stage.report.closing(&no_lock, &[set_nx, hash], &lockward))?;
        load.require_exact(&lockward)
    }
}

/// The state that all rounds share.
struct Stage {
    control: Connection,
    clients: Vec<Client>,
    report: Report,
    out: StdoutLock<'static>,
}

impl Stage {
    fn run(&mut self, letter: char, kind: &dyn LockKind) -> Result<RoundResult, Failure> {
        let title = format!("{letter}  {}", kind.name());
        let bar = progress_bar(self.report.load().increments, title.clone());
        let result = round::run(kind, self.report.load(), &mut self.control, &mut self.clients, &bar);
        bar.finish_and_clear();
        let result = result?;
        writeln!(self.out, "{}", self.report.row(&title, &result))?;
        Ok(result)
    }
}

fn connect_all(server: &Server, clients: u32) -> Result<Vec<Client>, Failure> {
    // The convention for owners: a UUID for the process, and a number for the thread.
    let process = Uuid::new_v4();
    (0..clients)
        .map(|thread| {
            let connection = server.connect(REPLY_LIMIT)?;
            Ok(Client { connection, owner: format!("{process}:{thread}") })
        })
        .collect()
}

/// A progress bar on stderr, only if stderr is a terminal.
fn progress_bar(increments: u64, title: String) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:25} [{bar:33}] {human_pos} of {human_len}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    ProgressBar::new(increments).with_style(style).with_message(title)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        demo: Demo,
    }

    fn parse(arguments: &[&str]) -> Result<Demo, clap::Error> {
        Line::try_parse_from([&["demo"], arguments].concat()).map(|line| line.demo)
    }

    #[test]
    fn arguments_have_defaults() {
        let demo = parse(&[]).unwrap();
        assert_eq!((demo.clients, demo.increments, demo.retry), (50, 5_000, Duration::from_millis(50)));
        assert_eq!(demo.url.addr().to_string(), "127.0.0.1:6379");
    }

    #[test]
    fn arguments_are_parsed() {
        let demo =
            parse(&["--url", "redis://h:7000", "--clients", "3", "--increments", "30", "--retry", "2s"])
                .unwrap();
        assert_eq!((demo.clients, demo.increments, demo.retry), (3, 30, Duration::from_secs(2)));
        assert_eq!(demo.url.addr().to_string(), "h:7000");
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for arguments in [
            ["--url", "here"],
            ["--clients", "1"],
            ["--clients", "1001"],
            ["--increments", "0"],
            ["--retry", "50"],
        ] {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
    }
}
