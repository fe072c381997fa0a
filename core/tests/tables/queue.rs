//! Decisions for waiters.

use crate::notation::{World, table};

#[test]
fn a_wait_that_names_its_holds_takes_over_the_position_of_the_earlier_wait() {
    table(
        "at(0)  A acquires                    -> granted 1 hold, token 1
         at(10) B waits as 7 holds 1          -> waits
         at(20) C waits as 8                  -> waits
         at(30) B waits as 9 holds 1 lease 30 -> waits; 7 is superseded
         at(30) the queue is                  -> 9 B since 10, 8 C since 20
         at(40) A releases                    -> 0 left; 9 gets 1 hold, token 2
         at(40) the lock is                   -> B 1 hold, token 2, until 70
         at(50) B releases                    -> 0 left; 8 gets 1 hold, token 3",
    );
}

#[test]
fn a_wait_that_names_its_holds_takes_over_a_wait_that_names_none() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7         -> waits
         at(2) B waits as 8         -> waits
         at(3) B waits as 9 holds 1 -> waits; 7 is superseded
         at(3) the queue is         -> 9 B since 1, 8 B since 2
         at(4) A releases           -> 0 left; 9 gets 1 hold, token 2; 8 gets 2 holds, token 2",
    );
}

#[test]
fn a_wait_that_names_no_holds_joins_behind_the_earlier_wait() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7 holds 1 -> waits
         at(2) C waits as 8         -> waits
         at(3) B waits as 9         -> waits
         at(3) the queue is         -> 7 B since 1, 8 C since 2, 9 B since 3",
    );
}

#[test]
fn a_request_for_impossible_holds_does_not_wait() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7 holds 2 -> holds do not follow: has 0
         at(1) the queue is         -> nobody",
    );
}

#[test]
fn a_wait_whose_holds_became_impossible_is_refused_and_the_next_is_served() {
    // B waits for its first hold. The restored tenure has 3 holds already, so this wait is refused.
    table(
        "at(0)  quarantine lasts 50
         at(1)  B waits as 7 holds 1     -> waits
         at(2)  C waits as 8             -> waits
         at(3)  B renews token 5 holds 3 -> token 5; 7 gets holds do not follow: has 3
         at(4)  B releases all           -> 0 left
         at(50) the timer fires          -> 8 gets 1 hold, token 6",
    );
}

#[test]
fn a_repeated_wait_is_granted_the_hold_that_the_first_was_granted() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7 holds 1 -> waits
         at(2) A releases           -> 0 left; 7 gets 1 hold, token 2
         at(3) B waits as 8 holds 1 -> granted 1 hold, token 2",
    );
}

#[test]
fn waiters_are_served_first_come_first_served() {
    table(
        "at(0) A acquires   -> granted 1 hold, token 1
         at(1) D waits as 7 -> waits
         at(2) B waits as 8 -> waits
         at(3) C waits as 9 -> waits
         at(3) the queue is -> 7 D since 1, 8 B since 2, 9 C since 3
         at(4) A releases   -> 0 left; 7 gets 1 hold, token 2
         at(5) A waits as 6 -> waits
         at(6) D releases   -> 0 left; 8 gets 1 hold, token 3
         at(7) B releases   -> 0 left; 9 gets 1 hold, token 4
         at(8) C releases   -> 0 left; 6 gets 1 hold, token 5
         at(9) the queue is -> nobody",
    );
}

#[test]
fn each_lease_that_ends_serves_the_first_waiter() {
    table(
        "at(0)   A acquires lease 100  -> granted 1 hold, token 1
         at(10)  B waits as 7 lease 50 -> waits
         at(20)  C waits as 8 lease 50 -> waits
         at(20)  the queues are due    -> at 100
         at(100) the timer fires       -> 7 gets 1 hold, token 2
         at(100) the queues are due    -> at 150
         at(149) the timer fires       ->
         at(150) the timer fires       -> 8 gets 1 hold, token 3
         at(150) the queues are due    -> never",
    );
}

#[test]
fn a_request_does_not_overtake_a_waiter_when_the_lease_is_over() {
    table(
        "at(0)   A acquires lease 100 -> granted 1 hold, token 1
         at(10)  B waits as 7         -> waits
         at(100) C acquires           -> busy; 7 gets 1 hold, token 2
         at(100) the lock is          -> B 1 hold, token 2, until 200",
    );
}

#[test]
fn an_owner_is_granted_its_other_waits_with_the_first() {
    table(
        "at(0) A acquires             -> granted 1 hold, token 1
         at(1) B waits as 5           -> waits
         at(2) C waits as 6           -> waits
         at(3) B waits as 7 lease 300 -> waits
         at(4) D waits as 8           -> waits
         at(5) B waits as 9           -> waits
         at(6) A releases             -> 0 left; 5 gets 1 hold, token 2; 7 gets 2 holds, token 2; 9 gets 3 holds, token 2
         at(6) the lock is            -> B 3 holds, token 2, until 306
         at(6) the queue is           -> 6 C since 2, 8 D since 4",
    );
}

#[test]
fn a_wait_limit_ends_the_wait_exactly_at_its_instant() {
    table(
        "at(0)     A acquires lease 100  -> granted 1 hold, token 1
         at(10)    B waits as 7 limit 50 -> waits
         at(10)    C waits as 8 limit 20 -> waits
         at(10)    D waits as 9          -> waits
         at(10)    the queues are due    -> at 30
         at(29.999) the timer fires      ->
         at(30)    the timer fires       -> 8 gets nothing
         at(30)    the queues are due    -> at 60
         at(60)    the timer fires       -> 7 gets nothing
         at(60)    the queues are due    -> at 100
         at(60)    the queue is          -> 9 D since 10
         at(100)   the timer fires       -> 9 gets 1 hold, token 2",
    );
}

#[test]
fn the_limit_of_a_superseded_wait_is_forgotten() {
    table(
        "at(0)   A acquires lease 500           -> granted 1 hold, token 1
         at(10)  B waits as 7 holds 1 limit 50  -> waits
         at(20)  B waits as 8 holds 1 limit 200 -> waits; 7 is superseded
         at(20)  the queues are due             -> at 220
         at(60)  the timer fires                ->
         at(220) the timer fires                -> 8 gets nothing",
    );
}

#[test]
fn a_waiter_that_leaves_is_skipped() {
    table(
        "at(0) A acquires            -> granted 1 hold, token 1
         at(1) B waits as 7 limit 50 -> waits
         at(2) C waits as 8          -> waits
         at(3) 7 leaves              -> left
         at(3) 7 leaves              -> does not wait
         at(3) the queue is          -> 8 C since 2
         at(4) A releases            -> 0 left; 8 gets 1 hold, token 2
         at(5) 8 leaves              -> does not wait
         at(60) the timer fires      ->",
    );
}

#[test]
fn the_last_waiter_to_leave_closes_the_queue() {
    table(
        "at(0)   A acquires lease 100  -> granted 1 hold, token 1
         at(1)   B waits as 7 limit 50 -> waits
         at(2)   7 leaves              -> left
         at(2)   the queues are due    -> never
         at(100) C acquires            -> granted 1 hold, token 2",
    );
}

#[test]
fn when_a_waiter_leaves_the_waiters_that_then_fit_are_served() {
    table(
        "at(0) A acquires shared   -> granted 1 hold, token 1
         at(1) B waits as 7        -> waits
         at(2) C waits as 8 shared -> waits
         at(3) 7 leaves            -> left; 8 gets 1 hold, token 2",
    );
}

#[test]
fn a_waiter_whose_owner_holds_the_lock_after_a_rename_re_enters() {
    let mut world = World::new();
    for row in [
        "at(0) C acquires   -> granted 1 hold, token 1",
        "at(1) B waits as 7 -> waits",
        "at(2) A waits as 8 -> waits",
    ] {
        world.play(row);
    }
    // RENAME gives this name to another lock, which A holds.
    let mut other = World::new();
    other.play("at(0) token 9 is observed");
    other.play("at(0) A acquires -> granted 1 hold, token 10");
    world.lock = other.lock;
    world.play("at(3) the lock is rechecked -> 8 gets 2 holds, token 10");
    world.play("at(3) the queue is               -> 7 B since 1");
}

#[test]
fn a_wait_for_one_hold_too_many_is_refused() {
    table(
        "at(0) quarantine lasts 50
         at(1) A waits as 7                      -> waits
         at(1) A waits as 8                      -> waits
         at(2) A renews token 5 holds 4294967294 -> token 5; 7 gets 4294967295 holds, token 5; 8 gets too many holds",
    );
}
