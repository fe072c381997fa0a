//! One suite for the clients of all languages. README.md describes the suite and its workers.
//!
//! `conformance --reference [--defect NAME]` is itself a worker: a reference client in Rust. `--self-test` checks
//! that the scenarios find each defect that `--defect` builds into the reference client.

mod defects;
mod log;
mod reference;
mod runner;
mod scenarios;
mod script;
mod scripted_server;
mod self_test;
mod stage;
mod wait_turns;
mod worker;

use std::{env, process};

const USAGE: &str = "\
usage: conformance [--only PATTERN] [--jobs N] [--long] -- WORKER [ARGUMENT]...
       conformance [--only PATTERN] --list
       conformance --self-test";

fn main() {
    let mut arguments = env::args().skip(1).peekable();
    let mut options =
        runner::Options { only: Vec::new(), jobs: 12, is_long: false, is_quiet: false, worker: Vec::new() };
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--only" => options.only.push(arguments.next().unwrap_or_else(|| usage())),
            "--jobs" => {
                options.jobs = arguments.next().and_then(|jobs| jobs.parse().ok()).unwrap_or_else(|| usage());
            }
            "--long" => options.is_long = true,
            "--list" => return runner::list(&options),
            "--self-test" => process::exit(self_test::run(&options)),
            "--reference" => return reference::serve(arguments.collect()),
            "--" => options.worker = arguments.by_ref().collect(),
            _ => usage(),
        }
    }
    if options.worker.is_empty() {
        usage();
    }
    process::exit(i32::from(!runner::run(&options).is_passed()));
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    process::exit(2)
}
