//! `lockward demo`: the oversell story, told by a real server.
//!
//! Many clients add one to the same number, each time by GET, a sum of their own and SET. Without a lock two of them
//! read the same number and one update is lost. The story is told four times under the same load: without a lock,
//! with the two home-made locks that teams usually come from, and with the lock commands.

mod contender;
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
use contender::{Contender, LockCommands, NoLock, REPLY_LIMIT, ReentrantHash, SetNx};
use report::Report;
use round::{Client, Load, Score};

/// Show on a real server what each kind of lock does under contention
///
/// Many clients add one to the same number (GET, add 1, SET): first with no lock, then with two home-made Redis
/// locks, then with LOCK.ACQUIRE. The demo uses keys of its own, and deletes them.
#[derive(Args)]
pub(crate) struct Demo {
    /// A server with the Lockward module loaded
    #[arg(long, default_value = "redis://127.0.0.1:6379")]
    url: ConnectionInfo,

    /// Clients that compete, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    clients: u32,

    /// Increments they make together, for each kind of lock
    #[arg(long, value_name = "N", default_value_t = 5_000,
        value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    increments: u64,

    /// Sleep of the home-made locks before they try again
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration::parse)]
    retry: Duration,
}

impl Demo {
    /// Plays all four rounds and prints the table. Fails unless the lock commands led to the exact number.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let load = Load { clients: self.clients, increments: self.increments };
        let server = Server::new(self.url)?;
        let mut control = server.connect(REPLY_LIMIT)?;
        server.require_module(&mut control)?;
        let clients = connect_all(&server, load.clients)?;

        let mut stage = Stage { control, clients, report: Report::new(load), out: io::stdout().lock() };
        writeln!(stage.out, "{}", stage.report.opening(server.address()))?;
        let no_lock = stage.play('a', &NoLock)?;
        let set_nx = stage.play('b', &SetNx::new(self.retry))?;
        let hash = stage.play('c', &ReentrantHash::new(self.retry))?;
        let lockward = stage.play('d', &LockCommands)?;
        writeln!(stage.out, "{}", stage.report.closing(&no_lock, &[set_nx, hash], &lockward))?;
        load.require_exact(&lockward)
    }
}

/// What all rounds share.
struct Stage {
    control: Connection,
    clients: Vec<Client>,
    report: Report,
    out: StdoutLock<'static>,
}

impl Stage {
    fn play(&mut self, letter: char, contender: &dyn Contender) -> Result<Score, Failure> {
        let title = format!("{letter}  {}", contender.name());
        let bar = progress_bar(self.report.load().increments, title.clone());
        let score = round::play(contender, self.report.load(), &mut self.control, &mut self.clients, &bar);
        bar.finish_and_clear();
        let score = score?;
        writeln!(self.out, "{}", self.report.row(&title, &score))?;
        Ok(score)
    }
}

fn connect_all(server: &Server, clients: u32) -> Result<Vec<Client>, Failure> {
    // As an application would name its owners: one UUID for the process, one number for the thread.
    let process = Uuid::new_v4();
    (0..clients)
        .map(|thread| {
            let connection = server.connect(REPLY_LIMIT)?;
            Ok(Client { connection, owner: format!("{process}:{thread}") })
        })
        .collect()
}

/// Drawn on stderr, and only if that is a terminal: the table on stdout stays clean in a pipe.
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
    fn the_defaults_are_the_classic_story() {
        let demo = parse(&[]).unwrap();
        assert_eq!((demo.clients, demo.increments, demo.retry), (50, 5_000, Duration::from_millis(50)));
        assert_eq!(demo.url.addr().to_string(), "127.0.0.1:6379");
    }

    #[test]
    fn arguments_are_read() {
        let demo =
            parse(&["--url", "redis://h:7000", "--clients", "3", "--increments", "30", "--retry", "2s"])
                .unwrap();
        assert_eq!((demo.clients, demo.increments, demo.retry), (3, 30, Duration::from_secs(2)));
        assert_eq!(demo.url.addr().to_string(), "h:7000");
    }

    #[test]
    fn nonsense_is_refused() {
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
