//! Checks that the suite finds each defect of the reference client, and that this client without a defect passes.

use crate::reference::Defect;
use crate::runner::{self, Options};
use std::{env, thread};

/// The defects, each with a scenario that finds it.
const FOUND: [(Defect, &str); 16] = [
    (Defect::NoKeep, "a_waiter_keeps_its_place_over_a_cut_connection"),
    (Defect::NeverRenews, "no_lock_is_lost_when_a_connection_is_cut"),
    (Defect::RenewsOneByOne, "locks_are_renewed_in_one_pipeline"),
    (Defect::LateLoss, "a_lock_on_a_stopped_server_is_lost_when_its_lease_is_over"),
    (Defect::SwallowsCancel, "a_cancelled_wait_leaves_nothing_behind"),
    (Defect::NewOwner, "a_request_whose_grant_is_lost_is_sent_again"),
    (Defect::NoConfirm, "a_wait_ends_with_a_grant_which_is_renewed_to_the_full_lease"),
    (Defect::NoGiveUp, "a_cancelled_wait_gives_up"),
    (Defect::BlindRelease, "otherwise_NOTHELD_means_lost"),
    (Defect::UnsortedKeys, "several_keys_are_tried_in_one_pipeline_in_order"),
    (Defect::RepeatsGuarded, "a_guarded_command_is_not_sent_again_after_a_lost_reply"),
    (Defect::NoWaitLimit, "a_wait_limit_is_kept_although_the_server_hangs_during_the_wait"),
    (Defect::OneRelease, "a_release_whose_reply_is_lost_is_sent_again"),
    (Defect::LateLease, "a_lease_counts_from_the_request"),
    (Defect::NoTurns, "calls_beyond_the_waiting_connections_take_turns"),
    (Defect::LateRelease, "a_named_owner_keeps_what_it_acquires_after_a_lost_release"),
];

/// Returns the exit code: 1 if the suite misses a defect, or fails the client without a defect.
pub(crate) fn run(options: &Options) -> i32 {
    let is_found = |(defect, scenario): (Defect, &str)| {
        let summary = runner::run(&with_worker(options, Some(defect), Some(scenario)));
        let is_found = summary.failed.iter().any(|failed| failed == scenario);
        println!("{}: {defect:?} by {scenario}", if is_found { "found" } else { "MISSED" });
        is_found
    };
    // All scenarios run at the same time, because a failing scenario spends most of its time waiting.
    let missed = thread::scope(|scope| {
        let runs: Vec<_> = FOUND.into_iter().map(|each| scope.spawn(move || is_found(each))).collect();
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
