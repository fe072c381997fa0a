//! Leases, and the TTL of the key.

use crate::notation::{World, table};

#[test]
fn a_lease_ends_exactly_at_its_instant() {
    table(
        "at(0)      A acquires lease 100 -> granted 1 hold, token 1
         at(60)     B acquires           -> busy
         at(99.999) B acquires           -> busy
         at(99.999) A acquires lease 0   -> granted 2 holds, token 1
         at(100)    B acquires lease 100 -> granted 1 hold, token 2
         at(199.999) B renews lease 1    -> token 2
         at(200.998) C acquires          -> busy
         at(200.999) C acquires          -> granted 1 hold, token 3",
    );
}

#[test]
fn an_owner_whose_lease_is_over_holds_nothing() {
    table(
        "at(0)   A acquires lease 100 -> granted 1 hold, token 1
         at(100) A releases           -> not held: free
         at(100) A renews             -> not held: free
         at(100) A acquires           -> granted 1 hold, token 2
         at(200) A releases token 1   -> not held: free",
    );
}

#[test]
fn a_late_renewal_finds_the_lock_granted_to_the_first_waiter() {
    table(
        "at(0)   A acquires lease 100 -> granted 1 hold, token 1
         at(10)  B waits as 7         -> waits
         at(100) A renews             -> not held: another has token 2; 7 gets 1 hold, token 2
         at(100) A releases           -> not held: another has token 2
         at(100) the lock is          -> B 1 hold, token 2, until 200",
    );
}

#[test]
fn a_re_entry_never_shortens_the_lease() {
    table(
        "at(0)   A acquires lease 500         -> granted 1 hold, token 1
         at(10)  A acquires lease 100         -> granted 2 holds, token 1
         at(10)  the lock is                  -> A 2 holds, token 1, until 500
         at(20)  A acquires lease 100 holds 2 -> granted 2 holds, token 1
         at(20)  the lock is                  -> A 2 holds, token 1, until 500
         at(300) A acquires lease 400         -> granted 3 holds, token 1
         at(300) the lock is                  -> A 3 holds, token 1, until 700",
    );
}

#[test]
fn the_lease_of_a_waiter_starts_when_it_is_granted() {
    table(
        "at(0)  A acquires lease 100  -> granted 1 hold, token 1
         at(10) B waits as 7 lease 50 -> waits
         at(90) A releases            -> 0 left; 7 gets 1 hold, token 2
         at(90) the lock is           -> B 1 hold, token 2, until 140",
    );
}

#[test]
fn the_ttl_is_the_last_deadline_by_the_wall_clock_when_it_was_set() {
    let mut world = World::new();
    let expires_at = |world: &World| world.lock.expires_at().as_millis();
    world.play("at(0) the wall clock shows 1000000");
    world.play("at(0) A acquires shared lease 100 -> granted 1 hold, token 1000000");
    assert_eq!(expires_at(&world), 1_100);
    world.play("at(50) B acquires shared lease 200 -> granted 1 hold, token 1000001");
    assert_eq!(expires_at(&world), 1_200, "the wall clock still shows 1000 ms");
    // A step of the wall clock changes the TTL only when the last lease changes.
    world.play("at(60) the wall clock shows 9000000");
    world.play("at(60) A renews lease 100 -> token 1000000");
    assert_eq!(expires_at(&world), 1_200);
    world.play("at(60) B renews lease 300 -> token 1000001");
    assert_eq!(expires_at(&world), 9_300);
    world.play("at(60) B releases -> 0 left");
    assert_eq!(expires_at(&world), 9_100);
}
