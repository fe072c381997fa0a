//! Checks that the suite finds each defect of a [broken worker](crate::broken_worker). Without a defect, this worker must
//! pass the same scenarios.

use crate::defects::DEFECTS;
use crate::runner::{self, Options, Summary};
use std::{env, thread};

/// Returns whether the suite finds all defects, and none in the worker without a defect.
pub(crate) fn is_passed(options: &Options) -> bool {
    // The scenarios of all defects run at the same time, because a failing scenario spends most of its time waiting.
    let missed = thread::scope(|scope| {
        let runs = DEFECTS.map(|(defect, scenario)| {
            let defect = format!("{defect:?}");
            scope.spawn(move || {
                let is_found = !play(options, &defect, &[scenario]).failed.is_empty();
                println!("{}: {defect} by {scenario}", if is_found { "found" } else { "MISSED" });
                is_found
            })
        });
        runs.into_iter().map(|run| run.join()).filter(|found| !matches!(found, Ok(true))).count()
    });
    let without_defect = play(options, "none", &DEFECTS.map(|(_, scenario)| scenario));
    missed == 0 && without_defect.passed.len() == DEFECTS.len()
}

fn play(options: &Options, defect: &str, scenarios: &[&str]) -> Summary {
    let program = env::current_exe().expect("this program").display().to_string();
    let words = [&program, "--defect", defect, "--"].map(str::to_owned);
    runner::run(&Options {
        worker: [&words, &*options.worker].concat(),
        only: scenarios.iter().map(|&scenario| scenario.to_owned()).collect(),
        is_quiet: scenarios.len() == 1,
        ..options.clone()
    })
}
