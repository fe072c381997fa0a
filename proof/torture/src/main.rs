//! `torture`: clients on real servers, with faults meanwhile.

use clap::{Args, Parser, Subcommand, ValueEnum};
use lockward_checker::violation::Check;
use lockward_torture::restore;
use lockward_torture::run::Plan;
use lockward_torture::worker::{self, WorkerArgs};
use lockward_torture::world::WorldName;
use std::env;
use std::fs;
use std::process::{self, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Runs clients against real servers, does faults to both meanwhile, and holds everything that was seen against what
/// Lockward promises.
///
/// LOCKWARD_SERVER names the server program (redis-server), LOCKWARD_MODULE the module.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Plays some of the clients of a run.
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Lets servers forget, in rounds, and holders come back with their tokens.
    Restore(Restore),
}

#[derive(Debug, Args)]
struct Restore {
    /// How many rounds.
    #[arg(long, default_value_t = 24)]
    rounds: u32,
    /// The seed; without it, a new one.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Debug, Args)]
struct Run {
    /// For how long, all worlds together.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The world; without it, all of them one after the other.
    #[arg(long)]
    world: Option<WorldName>,
    /// The seed; without it, a new one.
    #[arg(long)]
    seed: Option<u64>,
    /// The longest time between two faults, in milliseconds; the shortest is a sixth of it.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(6..))]
    pace: u64,
    /// Let the clients go through `lockward-client`, and judge what it lets them believe.
    #[arg(long)]
    through_client: bool,
    /// How many clients.
    #[arg(long, default_value_t = 32)]
    clients: u32,
    /// Succeed only if this check raises a violation: for builds that are broken on purpose.
    #[arg(long)]
    expect: Option<Expected>,
}

/// The checks that a broken build can be expected to fail.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Expected {
    Overlap,
    Tokens,
    Counts,
    Queue,
    Promptness,
    Answers,
    Store,
}

impl Expected {
    const fn check(self) -> Check {
        match self {
            Self::Overlap => Check::Overlap,
            Self::Tokens => Check::Tokens,
            Self::Counts => Check::Counts,
            Self::Queue => Check::Queue,
            Self::Promptness => Check::Promptness,
            Self::Answers => Check::Answers,
            Self::Store => Check::Store,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match &cli.command {
        Some(Command::Worker(args)) => {
            worker::play(args);
            ExitCode::SUCCESS
        }
        Some(Command::Restore(restore)) => restore_in_rounds(restore),
        None => run(&cli.run),
    }
}

fn restore_in_rounds(&Restore { rounds, seed }: &Restore) -> ExitCode {
    let file = env::temp_dir().join(format!("lockward-restore-{}.json", process::id()));
    let report = restore::run(rounds, seed.unwrap_or_else(new_seed), &file);
    println!("{report}");
    if !report.violations.is_empty() {
        return ExitCode::FAILURE;
    }
    let _ = fs::remove_file(&file);
    ExitCode::SUCCESS
}

fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn run(&Run { seconds, world, seed, pace, clients, through_client, expect }: &Run) -> ExitCode {
    let all = if through_client { WorldName::THROUGH_CLIENT.to_vec() } else { WorldName::ALL.to_vec() };
    let worlds = world.map_or(all, |world| vec![world]);
    let share = seconds / u64::try_from(worlds.len()).unwrap_or(1);
    let seed = seed.unwrap_or_else(new_seed);
    let mut as_wished = true;
    for world in worlds {
        let dir = env::temp_dir().join(format!("lockward-torture-{}-{}", process::id(), world.name()));
        let length = Duration::from_secs(share.max(1));
        let plan = Plan { world, seed, length, pace, clients, workers: 4, dir: dir.clone() };
        if through_client {
            let told = plan.run_through_client();
            as_wished &= told.is_ok();
            println!("{}", told.unwrap_or_else(|told| told));
            if as_wished {
                let _ = fs::remove_dir_all(&dir);
            }
            continue;
        }
        let outcome = plan.run();
        println!("{outcome}");
        as_wished &= match expect.map(Expected::check) {
            None => outcome.violations.is_empty() && (outcome.overlaps > 0 || !world.loses_grants()),
            Some(check) => match outcome.caught_after(check) {
                Some((after, answers)) => {
                    println!("Caught by {check:?} after {:.1} s and {answers} answers.", after.as_secs_f64());
                    true
                }
                None => {
                    println!("NOT CAUGHT by {check:?}.");
                    false
                }
            },
        };
        if outcome.violations.is_empty() || expect.is_some() {
            let _ = fs::remove_dir_all(&dir);
        } else {
            println!("The history is in {}.", dir.display());
        }
    }
    if as_wished { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
