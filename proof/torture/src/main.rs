//! `torture`: runs clients and faults against real servers, records every call, and checks the history with
//! `lockward-checker`.
//!
//! A [`run`](mod@run) happens in a [`world`]: servers, their faults, and the promises that hold in spite of these
//! faults. The clients run in worker processes ([`worker_process`], [`worker`]), so that a fault can stop a whole
//! process. Each client is a [`workload_client`]. A client sends its calls through a [`recording_client`].
//! [`queue_order`] tests the order of waiters.
//!
//! [`client_run`] runs a world with clients that use `lockward-client` ([`rust_client`]).

mod client_run;
mod queue_order;
mod recording_client;
mod run;
mod rust_client;
mod worker;
mod worker_process;
mod workload_client;
mod world;

use clap::{Parser, ValueEnum};
use lockward_checker::recorder::now;
use run::Plan;
use std::process::{self, ExitCode};
use std::time::Duration;
use std::{env, fs};
use world::WorldName;

/// Runs clients against real servers, injects faults into clients and servers, and checks that the recorded calls
/// break no promise of Lockward.
///
/// LOCKWARD_SERVER is the server program (default: redis-server), LOCKWARD_MODULE the module.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run the clients of one worker process. The value is the task of the worker, as JSON.
    #[arg(long, hide = true)]
    worker: Option<String>,
    /// The length of the run in seconds, for all worlds together.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The world. The default is all worlds, one after another.
    #[arg(long)]
    world: Option<WorldName>,
    /// The seed. The default is a new seed.
    #[arg(long)]
    seed: Option<u64>,
    /// The longest time between two faults, in milliseconds. The shortest time is a sixth of this time.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(6..))]
    pace: u64,
    /// Use `lockward-client` for the clients, and check the times at which it says that a lock is held.
    #[arg(long)]
    through_client: bool,
    /// Succeed only if the check with this name finds a violation. This is for builds that are broken on purpose.
    #[arg(long)]
    expect: Option<String>,
}

fn main() -> ExitCode {
    let Arguments { worker, seconds, world, seed, pace, through_client, expect } = Arguments::parse();
    if let Some(task) = worker {
        worker::run(&serde_json::from_str(&task).expect("the task of a worker"));
        return ExitCode::SUCCESS;
    }
    let all = if through_client { &WorldName::THROUGH_CLIENT[..] } else { WorldName::value_variants() };
    let worlds = world.map_or_else(|| all.to_vec(), |world| vec![world]);
    let share = seconds / u64::try_from(worlds.len()).unwrap_or(1);
    let seed = seed.unwrap_or_else(now);
    let mut passed = true;
    for world in worlds {
        let dir = env::temp_dir().join(format!("lockward-torture-{}-{}", process::id(), world.name()));
        let length = Duration::from_secs(share.max(1));
        let plan = Plan { world, seed, length, pace, dir: dir.clone() };
        let (report, is_right) =
            if through_client { plan.run_through_client() } else { plan.run(expect.as_deref()) };
        println!("{report}");
        if is_right || expect.is_some() {
            let _ = fs::remove_dir_all(&dir);
        } else {
            println!("The history is in {}.", dir.display());
        }
        passed &= is_right;
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
