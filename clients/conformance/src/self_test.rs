//! Checks that the suite finds each defect of the reference client, and that this client without a defect passes.

use crate::defects::{DEFECTS, Defect};
use crate::runner::{self, Options};
use std::{env, thread};

/// Returns the exit code: 1 if the suite misses a defect, or fails the client without a defect.
pub(crate) fn run(options: &Options) -> i32 {
    let is_found = |(defect, scenario): (Defect, &str)| {
        let summary = runner::run(&with_worker(options, Some(defect), Some(scenario)));
        let is_found = summary.failed.iter().any(|failed| failed == scenario);
        println!("{}: {defect:?} by {scenario}", if is_found { "found" } else { "MISSED" });
        is_found
    };
    // The scenarios of all defects run at the same time, because a failing scenario spends most of its time waiting.
    let missed = thread::scope(|scope| {
        let runs: Vec<_> = DEFECTS.into_iter().map(|each| scope.spawn(move || is_found(each))).collect();
        runs.into_iter().map(|run| run.join()).filter(|found| !matches!(found, Ok(true))).count()
    });
    let summary = runner::run(&with_worker(options, None, None));
    i32::from(missed > 0 || !summary.is_passed())
}

fn with_worker(options: &Options, defect: Option<Defect>, only: Option<&str>) -> Options {
    let program = env::current_exe().expect("this program").display().to_string();
    let mut worker = vec![program, "--reference".to_owned()];
    worker.extend(defect.into_iter().flat_map(|defect| ["--defect".to_owned(), format!("{defect:?}")]));
    Options {
        worker,
        only: only.into_iter().map(str::to_owned).collect(),
        is_quiet: defect.is_some(),
        ..options.clone()
    }
}
