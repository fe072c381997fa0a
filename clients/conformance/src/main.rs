//! One suite for the clients of all languages. README.md describes the suite and its workers.
//!
//! `--self-test` checks that the scenarios find each defect of a [broken worker](broken_worker).

mod broken_worker;
mod defects;
mod log;
mod runner;
mod scenarios;
mod script;
mod scripted_server;
mod self_test;
mod spoiling_proxy;
mod stage;
mod worker;

use std::{env, process};

const USAGE: &str = "\
usage: conformance [--only PATTERN] [--jobs N] -- WORKER [ARGUMENT]...
       conformance [--only PATTERN] --list
       conformance --self-test -- WORKER [ARGUMENT]...";

fn main() {
    let mut arguments = env::args().skip(1).peekable();
    let mut options = runner::Options { only: Vec::new(), jobs: 12, is_quiet: false, worker: Vec::new() };
    let (mut is_self_test, mut defect) = (false, None);
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--only" => options.only.push(arguments.next().unwrap_or_else(|| usage())),
            "--jobs" => {
                options.jobs = arguments.next().and_then(|jobs| jobs.parse().ok()).unwrap_or_else(|| usage());
            }
            "--list" => return runner::list(&options),
            "--self-test" => is_self_test = true,
            "--defect" => defect = Some(arguments.next().unwrap_or_else(|| usage())),
            "--" => options.worker = arguments.by_ref().collect(),
            _ => usage(),
        }
    }
    if options.worker.is_empty() {
        usage();
    }
    if let Some(defect) = defect {
        return broken_worker::serve(&defect, &options.worker);
    }
    let is_passed =
        if is_self_test { self_test::is_passed(&options) } else { runner::run(&options).is_passed() };
    process::exit(i32::from(!is_passed));
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    process::exit(2)
}
