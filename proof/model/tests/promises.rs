//! The promises hold in every interleaving of small worlds. Without one of the assumptions, the same world breaks a promise.
//!
//! `MODEL_MORE=1` in the environment adds a tick and a tenure to every world in which the promises must hold.

use lockward_model::{
    Action, Budget, EXCLUSION, HOLDS_BACK, NOBODY_ELSE, OldPrimary, Rules, TENURE_BACK, TOKENS, TokenPromise,
    Tokens, World,
};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

const PROMISES: [&str; 5] = [EXCLUSION, NOBODY_ELSE, TENURE_BACK, HOLDS_BACK, TOKENS];

/// No faults.
const CALM: Budget =
    Budget { crashes: 0, saves: 0, reloads: 0, promotions: 0, clock_steps: 0, drops: 0, lost_replies: 0 };

/// Held during a check. A check uses every processor, so one runs at a time.
static CHECK: Mutex<()> = Mutex::new(());

/// Three owners that wait for a lock on one server, with leases as long as the quarantine.
fn world(budget: Budget) -> World {
    World {
        rules: Rules { lease: 2, quarantine: 2, names_holds: true, tokens: Tokens::FromTheClock },
        owners: 3,
        most_holds: 1,
        waits: true,
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

fn crash() -> World {
    World { end: 5, ..world(Budget { crashes: 1, ..CALM }) }
}

fn stale_promotion() -> World {
    world(Budget { promotions: 1, ..CALM })
}

fn older_file() -> World {
    world(Budget { saves: 1, reloads: 1, ..CALM })
}

/// The old primary is cut off and goes on, and owners reach both servers.
fn cut_off(writes_for: u64, promoted_after: u64) -> World {
    let old_primary = OldPrimary::CutOff { writes_for, promoted_after };
    World { owners: 2, old_primary, end: 6, ..stale_promotion() }
}

fn with_rules(rules: impl FnOnce(&mut Rules), mut world: World) -> World {
    rules(&mut world.rules);
    world
}

/// Every promise holds in every state, and all of `happened` occurs.
#[track_caller]
fn holds(mut world: World, happened: &[&'static str]) {
    let _check = CHECK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let more: u32 = std::env::var("MODEL_MORE").map_or(0, |more| more.parse().expect("a small number"));
    world.end += u64::from(more);
    world.most_tenures += more;
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
        assert!(broken.is_none(), "{promise}: not by {broken:?}");
    }
    for what in happened {
        assert!(checker.discovery(what).is_some(), "{what} never happened");
    }
}

/// The promise is broken in this world. Prints and returns a shortest path to that.
#[track_caller]
fn breaks(world: World, promise: &'static str) -> Vec<Action> {
    let _check = CHECK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // The first path that the checker finds need not be a shortest one.
    for depth in 2..20 {
        let until = HasDiscoveries::AllOf(BTreeSet::from([promise]));
        let checker = world.clone().checker().target_max_depth(depth).finish_when(until).spawn_bfs().join();
        if let Some(path) = checker.discovery(promise).map(stateright::Path::into_actions) {
            println!("{} unique states: not \"{promise}\" by {path:?}", checker.unique_state_count());
            return path;
        }
    }
    panic!("not broken: {promise}");
}

// The promises hold after these faults.

#[test]
fn promises_hold_after_a_crash_without_data() {
    let budget = Budget { crashes: 1, lost_replies: 1, ..CALM };
    holds(
        World { end: 6, most_tenures: 4, ..world(budget) },
        &["CrashedHeld", "Restored", "HandOff", "GrantedElsewhere"],
    );
}

#[test]
fn promises_hold_after_two_crashes_and_a_step_of_the_clock() {
    let budget = Budget { crashes: 2, clock_steps: 1, ..CALM };
    holds(World { end: 5, ..world(budget) }, &["CrashedHeld", "Restored", "HandOff", "GrantedElsewhere"]);
}

#[test]
fn promises_hold_after_a_promotion_that_missed_messages() {
    holds(
        stale_promotion(),
        &["PromotedStale", "Restored", "RestoredOverAnother", "HandOff", "GrantedElsewhere"],
    );
}

#[test]
fn promises_hold_after_a_crash_a_promotion_and_a_step_of_the_clock() {
    let budget = Budget { crashes: 1, promotions: 1, clock_steps: 1, ..CALM };
    holds(
        World { waits: false, clock_steps: &[-3], end: 3, ..world(budget) },
        &["CrashedHeld", "PromotedStale", "Restored", "RestoredOverAnother", "GrantedElsewhere"],
    );
}

#[test]
fn promises_hold_after_a_restart_from_an_older_file() {
    holds(older_file(), &["ReloadedStale", "Restored", "RestoredOverAnother", "HandOff", "GrantedElsewhere"]);
}

#[test]
fn promises_hold_after_a_restart_from_an_older_file_and_a_step_of_the_clock() {
    let budget = Budget { saves: 1, reloads: 1, clock_steps: 1, ..CALM };
    holds(
        World { owners: 2, ..world(budget) },
        &["ReloadedStale", "Restored", "HandOff", "GrantedElsewhere"],
    );
}

#[test]
fn promises_hold_after_a_dropped_key_and_a_promotion() {
    let budget = Budget { promotions: 1, drops: 1, ..CALM };
    holds(World { owners: 2, ..world(budget) }, &["PromotedStale", "Restored", "GrantedElsewhere"]);
}

#[test]
fn promises_hold_for_holds_that_a_promotion_missed() {
    holds(
        World { owners: 2, most_holds: 2, most_tenures: 2, ..stale_promotion() },
        &["PromotedStale", "Restored", "HandOff", "GrantedElsewhere"],
    );
}

#[test]
fn promises_hold_if_the_old_primary_stops_before_the_promotion() {
    holds(World { end: 5, ..cut_off(1, 2) }, &["PromotedStale", "Restored", "HandOff", "GrantedElsewhere"]);
}

// Without an assumption a promise is broken.

#[test]
fn without_quarantine_a_crash_lets_two_owners_rely_on_the_lock() {
    let path = breaks(with_rules(|rules| rules.quarantine = 0, crash()), EXCLUSION);
    assert_eq!(path, [Action::Acquire(0, 0), Action::Crash, Action::Acquire(1, 0)]);
}

#[test]
fn without_quarantine_a_stale_promotion_lets_two_owners_rely_on_the_lock() {
    let path = breaks(with_rules(|rules| rules.quarantine = 0, stale_promotion()), EXCLUSION);
    assert_eq!(path, [Action::Acquire(0, 0), Action::Promote, Action::Acquire(1, 1)]);
}

#[test]
fn without_quarantine_an_older_file_lets_two_owners_rely_on_the_lock() {
    breaks(with_rules(|rules| rules.quarantine = 0, older_file()), EXCLUSION);
}

#[test]
fn without_quarantine_a_holder_is_refused_after_a_crash() {
    breaks(with_rules(|rules| rules.quarantine = 0, crash()), TENURE_BACK);
}

#[test]
fn a_lease_longer_than_the_quarantine_lets_two_owners_rely_on_the_lock() {
    let path = breaks(with_rules(|rules| rules.quarantine = 1, crash()), EXCLUSION);
    assert_eq!(path, [Action::Acquire(0, 0), Action::Crash, Action::Tick, Action::Acquire(1, 0)]);
}

#[test]
fn a_renewal_after_the_lease_takes_the_lock_from_the_next_owner() {
    for world in [crash(), stale_promotion(), older_file()] {
        breaks(World { late: 1, owners: 2, ..world }, EXCLUSION);
    }
}

#[test]
fn an_old_primary_that_goes_on_grants_the_lock_beside_the_new_one() {
    breaks(cut_off(100, 2), EXCLUSION);
}

#[test]
fn a_longer_quarantine_does_not_replace_stopping_the_old_primary() {
    let path = breaks(with_rules(|rules| rules.quarantine = 5, cut_off(1, 0)), EXCLUSION);
    assert!(path.iter().any(|action| matches!(action, Action::Renew(_, 1))), "{path:?}");
}

#[test]
fn an_owner_that_names_no_holds_re_enters_a_tenure_that_has_ended() {
    breaks(with_rules(|rules| rules.names_holds = false, stale_promotion()), EXCLUSION);
}

#[test]
fn tokens_from_a_counter_fall_after_a_crash() {
    breaks(with_rules(|rules| rules.tokens = Tokens::FromOne, World { end: 6, ..crash() }), TOKENS);
}

#[test]
fn tokens_may_fall_if_a_clock_was_set_back_before_the_last_grant() {
    let stepped = World {
        clock_steps: &[-3],
        token_promise: TokenPromise::PastTheLastGrant,
        ..world(Budget { crashes: 1, clock_steps: 1, ..CALM })
    };
    breaks(stepped, TOKENS);
}
