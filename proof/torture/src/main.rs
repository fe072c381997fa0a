//! `torture`: clients and faults against real servers.

use clap::ValueEnum;
use clap::{Args, Parser, Subcommand};
use lockward_checker::violation::Check;
use lockward_torture::restore;
use lockward_torture::run::Plan;
use lockward_torture::worker;
use lockward_torture::world::WorldName;
use std::env;
use std::fs;
use std::process::{self, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Runs clients against real servers, injects faults into both, and checks that the recorded calls break no promise
/// of Lockward.
///
/// LOCKWARD_SERVER is the server program (default: redis-server), LOCKWARD_MODULE the module.
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
    /// Runs some of the clients of a run.
    #[command(hide = true)]
    Worker {
        /// The task of the worker, as JSON.
        args: String,
    },
    /// Runs rounds in which a server forgets tenures and the holders restore them.
    Restore(Restore),
}

#[derive(Debug, Args)]
struct Restore {
    /// The number of rounds.
    #[arg(long, default_value_t = 24)]
    rounds: u32,
    /// The seed. The default is a new seed.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Debug, Args)]
struct Run {
    /// The length of the run in seconds, for all worlds together.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The world. The default is all worlds, one after another.
    #[arg(long)]
    world: Option<WorldName>,
    /// The seed. The default is a new seed.
    #[arg(long)]
    seed: Option<u64>,
    /// The longest time between two faults, in milliseconds. The shortest time is a sixth of it.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(6..))]
    pace: u64,
    /// Use `lockward-client` for the clients, and check the times at which it says that a lock is held.
    #[arg(long)]
    through_client: bool,
    /// The number of clients.
    #[arg(long, default_value_t = 32)]
    clients: u32,
    /// Succeed only if this check finds a violation. This is for builds that are broken on purpose.
    #[arg(long)]
    expect: Option<Check>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match &cli.command {
        Some(Command::Worker { args }) => {
            worker::run(&serde_json::from_str(args).expect("the arguments of a worker"));
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
    let all = if through_client {
        WorldName::THROUGH_CLIENT.to_vec()
    } else {
        WorldName::value_variants().to_vec()
    };
    let worlds = world.map_or(all, |world| vec![world]);
    let share = seconds / u64::try_from(worlds.len()).unwrap_or(1);
    let seed = seed.unwrap_or_else(new_seed);
    let mut passed = true;
    for world in worlds {
        let dir = env::temp_dir().join(format!("lockward-torture-{}-{}", process::id(), world.name()));
        let length = Duration::from_secs(share.max(1));
        let plan = Plan { world, seed, length, pace, clients, workers: 4, dir: dir.clone() };
        if through_client {
            let report = plan.run_through_client();
            passed &= report.is_ok();
            println!("{}", report.unwrap_or_else(|report| report));
            if passed {
                let _ = fs::remove_dir_all(&dir);
            }
            continue;
        }
        let outcome = plan.run();
        println!("{outcome}");
        passed &= match expect {
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
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
