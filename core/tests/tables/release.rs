//! LOCK.RELEASE, and grants that are passed on because their client has left.

use crate::notation::table;

#[test]
fn the_last_release_hands_the_lock_to_the_first_waiter() {
    table(
        "at(0)  A acquires   -> granted 1 hold, token 1
         at(5)  A acquires   -> granted 2 holds, token 1
         at(10) B waits as 7 -> waits
         at(20) A releases   -> 1 left
         at(30) A releases   -> 0 left; 7 gets 1 hold, token 2
         at(30) the lock is  -> B 1 hold, token 2, until 130",
    );
}

#[test]
fn a_release_does_not_change_the_lease() {
    table(
        "at(0)  A acquires lease 100 -> granted 1 hold, token 1
         at(0)  A acquires lease 100 -> granted 2 holds, token 1
         at(90) A releases           -> 1 left
         at(90) the lock is          -> A 1 hold, token 1, until 100",
    );
}

#[test]
fn a_release_that_names_its_holds_is_safe_to_repeat() {
    table(
        "at(0) A acquires         -> granted 1 hold, token 1
         at(0) A acquires         -> granted 2 holds, token 1
         at(0) A acquires         -> granted 3 holds, token 1
         at(1) A releases holds 0 -> holds do not follow: has 3
         at(1) A releases holds 1 -> holds do not follow: has 3
         at(1) A releases holds 4 -> holds do not follow: has 3
         at(1) A releases holds 2 -> 2 left
         at(1) A releases holds 2 -> 2 left
         at(1) A releases holds 1 -> 1 left
         at(1) A releases holds 0 -> 0 left
         at(1) A releases holds 0 -> 0 left
         at(1) A releases holds 1 -> not held: free",
    );
}

#[test]
fn a_repeated_last_release_succeeds_after_another_owner_was_granted_the_lock() {
    table(
        "at(0) A acquires                 -> granted 1 hold, token 1
         at(1) B waits as 7               -> waits
         at(2) A releases holds 0         -> 0 left; 7 gets 1 hold, token 2
         at(3) A releases holds 0         -> 0 left | nothing |
         at(3) A releases holds 0 token 1 -> 0 left | nothing |
         at(3) A releases holds 1         -> not held: another has token 2
         at(3) the lock is                -> B 1 hold, token 2, until 102",
    );
}

#[test]
fn all_holds_are_released_at_once() {
    table(
        "at(0) A acquires     -> granted 1 hold, token 1
         at(0) A acquires     -> granted 2 holds, token 1
         at(0) A acquires     -> granted 3 holds, token 1
         at(1) B waits as 7   -> waits
         at(2) A releases all -> 0 left; 7 gets 1 hold, token 2",
    );
}

#[test]
fn an_undelivered_grant_is_passed_on() {
    table(
        "at(0) A acquires          -> granted 1 hold, token 1
         at(1) B waits as 7        -> waits
         at(2) C waits as 8        -> waits
         at(3) A releases          -> 0 left; 7 gets 1 hold, token 2
         at(3) B passes on token 2 -> 8 gets 1 hold, token 3 | end 2 released, put C 1 hold, token 3, 100 left | released acquired",
    );
}

#[test]
fn passing_on_takes_back_one_hold_and_leaves_the_others() {
    table(
        "at(0) A acquires          -> granted 1 hold, token 1
         at(1) B waits as 7        -> waits
         at(1) B waits as 8        -> waits
         at(2) C waits as 9        -> waits
         at(3) A releases          -> 0 left; 7 gets 1 hold, token 2; 8 gets 2 holds, token 2
         at(3) B passes on token 2 ->
         at(3) the lock is         -> B 1 hold, token 2, until 103
         at(4) B passes on token 2 -> 9 gets 1 hold, token 3",
    );
}

#[test]
fn a_tenure_that_is_over_is_not_passed_on() {
    table(
        "at(0)   A acquires          -> granted 1 hold, token 1
         at(1)   B waits as 7        -> waits
         at(2)   A releases          -> 0 left; 7 gets 1 hold, token 2
         at(2)   B releases          -> 0 left
         at(2)   B passes on token 2 -> | nothing |
         at(3)   B acquires          -> granted 1 hold, token 3
         at(3)   B passes on token 2 -> | nothing |
         at(3)   the lock is         -> B 1 hold, token 3, until 103
         at(103) B passes on token 3 -> | end 3 over | lease-over",
    );
}
