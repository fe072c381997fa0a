//! The promises hold in every interleaving of small worlds. Some tests drop an assumption, and find a broken promise.

use lockward_core::{Mode, Slots, Weight};
use lockward_model::{
    Action, Budget, EXCLUSION, GUARDED, Guards, HOLDS_BACK, OldPrimary, PROMISES, Rules, TENURE_BACK, TOKENS,
    TokenPromise, World,
};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

const WRITER: Mode = Mode::EXCLUSIVE;
const READER: Mode = Mode { slots: Slots::SHARED, weight: Weight::ONE };

/// A mode of a semaphore of three, with this weight.
const fn of_three(weight: u32) -> Mode {
    match (Slots::new(3), Weight::new(weight)) {
        (Some(slots), Some(weight)) => Mode { slots, weight },
        _ => panic!("they are numbers"),
    }
}

/// Owners that exclude each other.
const WRITERS: &[Mode] = &[WRITER; 3];
/// Owners of a read-write lock.
const READERS: &[Mode] = &[WRITER, READER, READER];
/// Owners of a weighted semaphore of 3. Weights 2 and 1 fit together, 2 and 2 do not.
const PERMITS: &[Mode] = &[of_three(2), of_three(1), of_three(2)];
/// All kinds of owners.
const KINDS: [&[Mode]; 3] = [WRITERS, READERS, PERMITS];
/// Weights 1 and 1 of 3 fit together, and so do 1 and 2, but not 1, 1 and 2.
const TWO_LIGHT_ONE_HEAVY: &[Mode] = &[of_three(1), of_three(1), of_three(2)];
/// For each kind, two owners that do not fit beside each other.
const PAIRS: [&[Mode]; 3] = [&[WRITER; 2], &[WRITER, READER], &[of_three(2); 2]];

/// A budget without faults.
fn calm() -> Budget {
    Budget::default()
}

/// Held during a check, so that only one check runs at a time.
static CHECK: Mutex<()> = Mutex::new(());

/// Owners that wait for a lock, with leases as long as the quarantine. There is a replica if the budget has promotions.
fn world(modes: &'static [Mode], budget: Budget) -> World {
    World {
        rules: Rules {
            lease: 2,
            quarantine: 2,
            modes,
            names_holds: true,
            names_modes: true,
            guards: Guards::OneStep,
        },
        most_holds: 1,
        waits: true,
        downgrade: None,
        late: 0,
        replica: budget.promotions > 0,
        old_primary: OldPrimary::Gone,
        token_promise: TokenPromise::PastEveryGrant,
        clock_steps: &[-3, 3],
        budget,
        end: 4,
        most_tenures: 3,
    }
}

fn crash(modes: &'static [Mode]) -> World {
    World { end: 5, ..world(modes, Budget { crashes: 1, ..calm() }) }
}

fn stale_promotion(modes: &'static [Mode]) -> World {
    world(modes, Budget { promotions: 1, ..calm() })
}

fn older_file(modes: &'static [Mode]) -> World {
    world(modes, Budget { saves: 1, reloads: 1, ..calm() })
}

/// The old primary is cut off from its replica but continues to run, and owners reach both servers.
fn cut_off(pair: &'static [Mode], writes_for: u64, promoted_after: u64) -> World {
    let old_primary = OldPrimary::CutOff { writes_for, promoted_after };
    World { old_primary, end: 6, ..stale_promotion(pair) }
}

fn with_rules(rules: impl FnOnce(&mut Rules), mut world: World) -> World {
    rules(&mut world.rules);
    world
}

/// Checks that every promise holds in every state, and that each event in `happened` occurs.
#[track_caller]
fn holds(world: World, happened: &[&'static str]) {
    let _check = CHECK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let began = Instant::now();
    let checker = world.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "{} unique states of {}, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64(),
    );
    for promise in PROMISES {
        let broken = checker.discovery(promise).map(stateright::Path::into_actions);
        assert!(broken.is_none(), "a promise is broken: {promise}: by {broken:?}");
    }
    for what in happened {
        assert!(checker.discovery(what).is_some(), "{what} never happened");
    }
}

/// Checks that the promise is broken in this world. Prints and returns a shortest path to a state that breaks the
/// promise.
#[track_caller]
fn breaks(world: World, promise: &'static str) -> Vec<Action> {
    let _check = CHECK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // The first path that the checker finds need not be a shortest path, so the depth grows step by step.
    for depth in 2..20 {
        let until = HasDiscoveries::AllOf(BTreeSet::from([promise]));
        let checker = world.clone().checker().target_max_depth(depth).finish_when(until).spawn_bfs().join();
        if let Some(path) = checker.discovery(promise).map(stateright::Path::into_actions) {
            println!("{} unique states: \"{promise}\" is broken by {path:?}", checker.unique_state_count());
            return path;
        }
    }
    panic!("not broken: {promise}");
}

/// Tests that in these worlds every promise holds in every state, and that each of the events occurs.
macro_rules! holding {
    ($($test:ident: $($world:expr),+ => $($event:ident)+;)+) => { $(
        #[test]
        fn $test() {
            for world in [$($world),+] {
                holds(world, &[$(stringify!($event)),+]);
            }
        }
    )+ };
}

// The promises hold after these faults.
holding! {
    promises_hold_after_a_crash_without_data:
        World { end: 6, most_tenures: 4, ..world(WRITERS, Budget { crashes: 1, lost_replies: 1, ..calm() }) }
        => CrashedHeld Restored HandOff GrantedElsewhere;
    promises_hold_after_two_crashes_and_a_step_of_the_clock:
        world(WRITERS, Budget { crashes: 2, clock_steps: 1, ..calm() })
        => CrashedHeld Restored HandOff GrantedElsewhere;
    promises_hold_after_a_promotion_that_missed_messages:
        stale_promotion(WRITERS)
        => PromotedStale Restored RestoredOverAnother HandOff GrantedElsewhere;
    promises_hold_after_a_crash_a_promotion_and_a_step_of_the_clock:
        World {
            waits: false,
            clock_steps: &[-3],
            end: 3,
            ..world(PAIRS[0], Budget { crashes: 1, promotions: 1, clock_steps: 1, ..calm() })
        }
        => CrashedHeld PromotedStale Restored RestoredOverAnother GrantedElsewhere;
    promises_hold_after_a_restart_from_an_older_file:
        older_file(WRITERS)
        => ReloadedStale Restored RestoredOverAnother HandOff GrantedElsewhere;
    promises_hold_after_a_restart_from_an_older_file_and_a_step_of_the_clock:
        world(PAIRS[0], Budget { saves: 1, reloads: 1, clock_steps: 1, ..calm() })
        => ReloadedStale Restored HandOff GrantedElsewhere;
    promises_hold_after_a_dropped_key_and_a_promotion:
        world(PAIRS[0], Budget { promotions: 1, drops: 1, ..calm() })
        => PromotedStale Restored GrantedElsewhere;
    promises_hold_for_holds_that_a_promotion_missed:
        World { most_holds: 2, most_tenures: 2, ..stale_promotion(PAIRS[0]) }
        => PromotedStale Restored HandOff GrantedElsewhere;
    promises_hold_if_the_old_primary_stops_before_the_promotion:
        World { end: 5, ..cut_off(PAIRS[0], 1, 2) }
        => PromotedStale Restored HandOff GrantedElsewhere;
}

// The promises also hold for readers, slots and weights.
holding! {
    promises_hold_for_readers_and_for_weights_after_a_crash_without_data:
        World { end: 4, ..crash(READERS) }, World { end: 4, ..crash(PERMITS) }
        => GrantedBeside CrashedHeld Restored RestoredBeside HandOff GrantedElsewhere;
    promises_hold_for_readers_and_for_weights_after_a_promotion_that_missed_messages:
        World { waits: false, end: 2, ..stale_promotion(READERS) },
        World { waits: false, end: 2, ..stale_promotion(PERMITS) }
        => PromotedStale Restored RestoredOverAnother RestoredBeside GrantedElsewhere;
    promises_hold_for_readers_and_a_writer_after_a_restart_from_an_older_file:
        World { waits: false, end: 3, ..older_file(READERS) }
        => ReloadedStale Restored RestoredOverAnother RestoredBeside GrantedElsewhere;
    promises_hold_for_claims_that_fit_in_pairs_but_not_together:
        World { waits: false, end: 2, most_tenures: 4, ..older_file(TWO_LIGHT_ONE_HEAVY) }
        => ReloadedStale Restored RestoredOverAnother RestoredBeside GrantedElsewhere;
    promises_hold_for_readers_and_a_writer_if_the_old_primary_stops_before_the_promotion:
        World { end: 4, ..cut_off(PAIRS[1], 1, 2) }
        => PromotedStale Restored HandOff GrantedElsewhere;
    promises_hold_for_a_downgrade_that_a_promotion_missed:
        World { waits: false, downgrade: Some(Slots::SHARED), end: 3, ..stale_promotion(PAIRS[1]) }
        => GrantedBeside PromotedStale ModeCorrected RestoredOverAnother RestoredBeside;
}

// The promises also hold for guarded writes that arrive late.
holding! {
    promises_hold_for_guarded_writes_of_owners_that_wait:
        world(WRITERS, Budget { writes: 2, ..calm() })
        => WriteRun StaleWriteFenced HandOff;
    promises_hold_for_guarded_writes_after_a_crash_without_data:
        World { end: 5, ..world(PAIRS[0], Budget { crashes: 1, writes: 2, ..calm() }) }
        => WriteRun StaleWriteFenced CrashedHeld Restored;
    promises_hold_for_guarded_writes_after_a_promotion_that_missed_messages:
        World { waits: false, end: 3, ..world(PAIRS[0], Budget { promotions: 1, writes: 2, ..calm() }) }
        => WriteRun StaleWriteFenced PromotedStale RestoredOverAnother;
    promises_hold_for_guarded_writes_after_a_restart_from_an_older_file:
        World { waits: false, end: 3, ..world(PAIRS[0], Budget { saves: 1, reloads: 1, writes: 2, ..calm() }) }
        => WriteRun StaleWriteFenced ReloadedStale RestoredOverAnother;
    promises_hold_for_guarded_writes_of_a_lock_whose_key_was_dropped:
        world(PAIRS[0], Budget { drops: 1, writes: 2, ..calm() })
        => WriteRun StaleWriteFenced;
}

// Without an assumption a promise is broken.

#[test]
fn without_quarantine_owners_that_do_not_fit_rely_on_the_lock_after_a_crash() {
    for modes in KINDS {
        let path = breaks(with_rules(|rules| rules.quarantine = 0, crash(modes)), EXCLUSION);
        assert!(matches!(path[..], [Action::Acquire(..), Action::Crash, Action::Acquire(..)]), "{path:?}");
    }
}

#[test]
fn without_quarantine_owners_that_do_not_fit_rely_on_the_lock_after_a_stale_promotion() {
    for modes in KINDS {
        let path = breaks(with_rules(|rules| rules.quarantine = 0, stale_promotion(modes)), EXCLUSION);
        let is_expected = matches!(path[..], [Action::Acquire(_, 0), Action::Promote, Action::Acquire(_, 1)]);
        assert!(is_expected, "{path:?}");
    }
}

#[test]
fn without_quarantine_owners_that_do_not_fit_rely_on_the_lock_after_a_restart_from_an_older_file() {
    for modes in KINDS {
        breaks(with_rules(|rules| rules.quarantine = 0, older_file(modes)), EXCLUSION);
    }
}

#[test]
fn without_quarantine_a_holder_is_refused_after_a_crash() {
    for modes in KINDS {
        breaks(with_rules(|rules| rules.quarantine = 0, crash(modes)), TENURE_BACK);
    }
}

#[test]
fn a_lease_longer_than_the_quarantine_lets_owners_that_do_not_fit_rely_on_the_lock() {
    for modes in KINDS {
        let path = breaks(with_rules(|rules| rules.quarantine = 1, crash(modes)), EXCLUSION);
        let is_expected =
            matches!(path[..], [Action::Acquire(..), Action::Crash, Action::Tick, Action::Acquire(..)]);
        assert!(is_expected, "{path:?}");
    }
}

#[test]
fn a_renewal_after_the_lease_takes_the_lock_from_the_next_owner() {
    for pair in PAIRS {
        for world in [crash(pair), stale_promotion(pair), older_file(pair)] {
            breaks(World { late: 1, ..world }, EXCLUSION);
        }
    }
}

#[test]
fn an_old_primary_that_goes_on_grants_the_lock_beside_the_new_one() {
    for pair in PAIRS {
        breaks(cut_off(pair, 100, 2), EXCLUSION);
    }
}

#[test]
fn a_longer_quarantine_does_not_replace_stopping_the_old_primary() {
    for pair in PAIRS {
        let path = breaks(with_rules(|rules| rules.quarantine = 5, cut_off(pair, 1, 0)), EXCLUSION);
        assert!(path.iter().any(|action| matches!(action, Action::Renew(_, 1, _))), "{path:?}");
    }
}

#[test]
fn an_owner_that_names_no_holds_re_enters_a_tenure_that_has_ended() {
    for pair in PAIRS {
        breaks(with_rules(|rules| rules.names_holds = false, stale_promotion(pair)), EXCLUSION);
    }
}

#[test]
fn an_owner_that_names_no_mode_restores_a_tenure_with_another_mode() {
    for modes in [READERS, PERMITS] {
        breaks(with_rules(|rules| rules.names_modes = false, crash(modes)), HOLDS_BACK);
        breaks(with_rules(|rules| rules.names_modes = false, crash(modes)), TENURE_BACK);
    }
}

#[test]
fn tokens_may_fall_if_a_clock_was_set_back_before_the_last_grant() {
    let stepped = World {
        clock_steps: &[-3],
        token_promise: TokenPromise::PastTheLastGrant,
        ..world(WRITERS, Budget { crashes: 1, clock_steps: 1, ..calm() })
    };
    breaks(stepped, TOKENS);
}

#[test]
fn a_tenure_with_a_smaller_token_than_an_earlier_one_may_be_refused() {
    let budget = Budget { crashes: 1, saves: 1, reloads: 1, clock_steps: 1, ..calm() };
    let world = World { waits: false, clock_steps: &[-3], end: 6, ..world(PAIRS[0], budget) };
    breaks(world, TENURE_BACK);
}

// With a wrong rule a promise is broken.

#[test]
fn a_guard_that_writes_after_its_check_runs_a_stale_write() {
    let calm = world(PAIRS[0], Budget { writes: 1, ..calm() });
    let path = breaks(with_rules(|rules| rules.guards = Guards::TwoSteps, calm), GUARDED);
    let writes = path.iter().filter(|action| matches!(action, Action::Write(..))).count();
    assert_eq!(writes, 2, "{path:?}");
}
