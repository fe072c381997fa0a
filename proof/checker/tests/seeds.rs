//! The checker tried on a thousand clean histories, and on a thousand that are each broken in one way.

use lockward_checker::alarm::Check;
use lockward_checker::bounds::Bounds;
use lockward_checker::checker::check;
use lockward_checker::history::History;
use lockward_checker::random::Random;
use lockward_checker::simulate::{Corruption, bounds, corrupt, honest};

#[test]
fn a_thousand_clean_histories_raise_no_alarm() {
    for seed in 0..1_000 {
        let history = honest(seed);
        let alarms = check(&history, &bounds());
        let reports: Vec<_> = alarms.iter().map(|alarm| alarm.report(&history)).collect();
        assert!(alarms.is_empty(), "seed {seed}:\n{}", reports.join("\n"));
    }
}

#[test]
fn a_thousand_broken_histories_raise_the_right_alarm() {
    // What is broken decides how many there are, not how many seeds have a place for it.
    for (number, how) in (0..1_000).zip(Corruption::ALL.into_iter().cycle()) {
        let broken = (0..20).find_map(|attempt| {
            let seed = 1_000 + number + attempt * 1_000;
            corrupt(&honest(seed), how, &mut Random::new(seed))
        });
        let broken = broken.unwrap_or_else(|| panic!("no place for {how:?} at {number}"));
        let alarms = check(&broken, &bounds());
        let found: Vec<_> = alarms.iter().filter(|alarm| alarm.check == how.found_by()).collect();
        assert!(!found.is_empty(), "{how:?} at {number}: {alarms:#?}");
        for alarm in found {
            let lines = alarm.lines.iter().map(|&line| broken.lines[line].clone()).collect();
            let shown = check(&History { lines }, &bounds());
            let again = shown.iter().any(|again| again.check == alarm.check);
            assert!(
                again,
                "{how:?} at {number}: its own lines do not show it
{}",
                alarm.report(&broken)
            );
        }
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    assert_eq!(honest(7), honest(7));
    assert_ne!(honest(7), honest(8));
}

#[test]
fn a_run_in_which_too_little_happened_is_an_alarm() {
    let history = honest(1);
    let mut more = bounds();
    more.least.handoffs = 10_000;
    let [alarm] = check(&history, &more).try_into().expect("one alarm");
    assert_eq!(alarm.check, Check::Vacuity);
    let nothing = check(&History::default(), &Bounds::default());
    assert_eq!(nothing.len(), 5, "{nothing:?}");
}
