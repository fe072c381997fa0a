//! Locks with thousands of holders whose leases end together.

use crate::notation::{World, table};
use lockward_core::{Event, Instant};

#[test]
fn leases_that_are_all_over_end_as_one_change() {
    table(
        "at(0)   5000 hold it until 100
         at(1)   W waits as 7    -> waits
         at(99)  the timer fires ->
         at(100) the timer fires -> 7 gets 1 hold, token 5001 | all over, put W 1 hold, token 5001, 100 left | lease-over acquired
         at(100) the lock is     -> W 1 hold, token 5001, until 200",
    );
}

#[test]
fn one_decision_ends_at_most_4096_tenures() {
    let mut world = World::new();
    world.play("at(0)   5000 hold it until 100");
    world.play("at(50)  1 renews -> token 1");
    for (left, is_over) in [(904, true), (1, false), (1, false)] {
        world.play("at(100) W acquires -> busy");
        assert_eq!(world.lock.holders().len(), left);
        assert!(world.effects.events.iter().all(|event| *event == Event::LeaseOver));
        assert_eq!(world.lock.first_deadline() <= Some(Instant::from_micros(100_000)), is_over);
    }
    world.play("at(100) the lock is -> 1 1 hold, token 1, until 150, shared");
}

#[test]
fn up_to_4096_leases_that_are_over_end_one_by_one() {
    for (count, changes) in [(4_096, 4_096), (4_097, 1)] {
        let mut world = World::new();
        world.play(&format!("at(0) {count} hold it until 100"));
        world.play("at(100) W acquires holds 2 -> holds do not follow: has 0");
        assert_eq!(world.effects.events.len(), changes, "{count}");
        assert!(world.lock.is_free());
    }
}

#[test]
fn leases_that_are_all_over_in_quarantine_can_be_restored_but_older_tenures_that_do_not_fit_cannot() {
    table(
        "at(0)   5000 hold it until 100
         at(0)   quarantine lasts 500
         at(100) W acquires                    -> busy
         at(101) X renews token 4999           -> not held: free
         at(101) 1 renews token 1 shared       -> token 1
         at(101) 5000 renews token 5000 shared -> token 5000
         at(102) X renews token 5001           -> token 5001 | end 5000 released, end 1 released, put X 1 hold, token 5001, 100 left",
    );
}
