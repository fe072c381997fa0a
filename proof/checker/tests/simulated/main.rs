//! Tests of the checker with a thousand correct and a thousand corrupted histories, from a simulated server.

mod corrupt;
#[path = "../../../../core/tests/model/reference.rs"]
#[allow(dead_code, unreachable_pub, reason = "this test uses only a part of the reference")]
mod reference;
mod server;
mod world;

use corrupt::{ALL, corrupt};
use lockward_checker::bounds::{Activity, Bounds};
use lockward_checker::checker::check;
use lockward_checker::history::{History, Nanos};
use lockward_checker::recorder::Recorder;
use lockward_checker::violation::Check;
use lockward_tests::Random;
use std::path::Path;
use world::World;

const MS: Nanos = 1_000_000;
/// The number of locks.
const KEYS: usize = 2;

/// A history of a correct server, with clients and faults. The same seed gives the same history.
fn correct_history(seed: u64) -> History {
    World::new(seed).run()
}

/// The bounds for the simulated server.
fn bounds() -> Bounds {
    let minimum =
        Activity::from([("grants", 20), ("hand-offs", 1), ("faults", 1), ("tenures beside another one", 1)]);
    Bounds { tolerance: 2 * MS, handoff: 5 * MS, answer: 5 * MS, settle: 300 * MS, minimum }
}

#[test]
fn a_thousand_correct_histories_raise_no_violation() {
    for seed in 0..1_000 {
        let history = correct_history(seed);
        let violations = check(&history, &bounds());
        let reports: Vec<_> = violations.iter().map(|violation| violation.report(&history)).collect();
        assert!(violations.is_empty(), "seed {seed}:\n{}", reports.join("\n"));
    }
}

#[test]
fn a_thousand_corrupted_histories_raise_the_right_violation() {
    // Each corruption is tested equally often. If the history of a seed has no place for the corruption, the test tries
    // the next seed.
    for (number, (how, check_that_finds_it)) in (0..1_000).zip(ALL.into_iter().cycle()) {
        let broken = (0..20).find_map(|attempt| {
            let seed = 1_000 + number + attempt * 1_000;
            corrupt(&correct_history(seed), how, &mut Random::from_seed(seed))
        });
        let broken = broken.unwrap_or_else(|| panic!("no place for {how:?} at {number}"));
        let violations = check(&broken, &bounds());
        let found: Vec<_> =
            violations.iter().filter(|violation| violation.check == check_that_finds_it).collect();
        assert!(!found.is_empty(), "{how:?} at {number}: {violations:#?}");
        for violation in found {
            let lines = violation.lines.iter().map(|&line| broken.lines[line].clone()).collect();
            let shown = check(&History { lines }, &bounds());
            let again = shown.iter().any(|again| again.check == violation.check);
            assert!(
                again,
                "{how:?} at {number}: the lines of the violation do not show it\n{}",
                violation.report(&broken)
            );
        }
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    assert_eq!(correct_history(7), correct_history(7));
    assert_ne!(correct_history(7), correct_history(8));
}

#[test]
fn a_run_with_too_little_activity_is_a_violation() {
    let history = correct_history(1);
    let mut more = bounds();
    more.minimum.insert("hand-offs", 10_000);
    let [violation] = check(&history, &more).try_into().expect("one violation");
    assert_eq!(violation.check, Check::Vacuity);
    let nothing = check(&History::default(), &bounds());
    assert_eq!(nothing.len(), bounds().minimum.len(), "{nothing:?}");
}

#[test]
fn a_written_history_is_read_back() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("written");
    let history = correct_history(3);
    let recorder = Recorder::create(&file).unwrap();
    history.lines.iter().for_each(|line| recorder.record(line));
    recorder.finish().unwrap();
    assert_eq!(History::read(&file).unwrap(), history);
}
