//! Checks that the suite finds each defect of the reference client, and nothing in it without a defect.

use crate::reference::Defect;
use crate::runner::{self, Options};
use std::env;

/// A defect, and a scenario that finds it.
const FOUND: [(Defect, &str); 1] = [(Defect::NoKeep, "a_wait_goes_on_in_slices")];

/// Returns the exit code: 1 if a defect is not found.
pub(crate) fn run(options: &Options) -> i32 {
    let mut missed = 0;
    for (defect, scenario) in FOUND {
        let summary = runner::run(&with_worker(options, Some(defect), Some(scenario)));
        let is_found = summary.failed == [scenario];
        println!("{}: {defect:?} by {scenario}", if is_found { "found" } else { "MISSED" });
        missed += i32::from(!is_found);
    }
    let summary = runner::run(&with_worker(options, None, None));
    println!("without a defect: {} passed, {} failed", summary.passed.len(), summary.failed.len());
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
