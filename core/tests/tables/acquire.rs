//! LOCK.ACQUIRE without waiting.

use crate::notation::table;

#[test]
fn a_holder_re_enters_renews_and_releases() {
    table(
        "at(0)   A acquires         -> granted 1 hold, token 1
         at(10)  A acquires         -> granted 2 holds, token 1
         at(20)  A acquires         -> granted 3 holds, token 1
         at(30)  the lock is        -> A 3 holds, token 1, until 120
         at(40)  A releases         -> 2 left
         at(50)  A renews lease 500 -> token 1
         at(60)  A releases         -> 1 left
         at(60)  the lock is        -> A 1 hold, token 1, until 550
         at(70)  A releases         -> 0 left
         at(70)  the lock is        -> free",
    );
}

#[test]
fn a_free_lock_is_granted_and_cannot_be_released_or_renewed() {
    table(
        "at(0) A releases          -> not held: free
         at(0) A releases all      -> not held: free
         at(0) A renews            -> not held: free
         at(0) A renews token 5    -> not held: free
         at(1) A acquires lease 30 -> granted 1 hold, token 1
         at(1) the lock is         -> A 1 hold, token 1, until 31",
    );
}

#[test]
fn a_held_lock_is_busy_for_others_and_they_cannot_release_or_renew_it() {
    table(
        "at(0) A acquires         -> granted 1 hold, token 1
         at(1) B acquires         -> busy
         at(1) B releases         -> not held: another has token 1
         at(1) B releases all     -> not held: another has token 1
         at(1) B releases token 1 -> not held: another has token 1
         at(1) B renews           -> not held: another has token 1
         at(1) B renews token 1   -> not held: another has token 1
         at(1) the lock is        -> A 1 hold, token 1, until 100",
    );
}

#[test]
fn a_lock_with_waiters_is_busy_even_for_a_request_that_fits() {
    table(
        "at(0) A acquires shared -> granted 1 hold, token 1
         at(1) B waits as 7      -> waits
         at(2) C acquires shared -> busy
         at(2) A acquires shared -> granted 2 holds, token 1",
    );
}

#[test]
fn an_acquisition_that_names_its_holds_is_safe_to_repeat() {
    table(
        "at(0)  A acquires holds 2          -> holds do not follow: has 0
         at(0)  A acquires holds 1          -> granted 1 hold, token 1 | put A 1 hold, token 1, 100 left | acquired
         at(10) A acquires holds 1          -> granted 1 hold, token 1 | put A 1 hold, token 1, 100 left | renewed
         at(10) A acquires holds 1 lease 20 -> granted 1 hold, token 1 | nothing |
         at(10) A acquires holds 2          -> granted 2 holds, token 1 | token 1 has 2 holds | acquired
         at(10) A acquires holds 4          -> holds do not follow: has 2 | nothing |
         at(10) A acquires holds 1          -> holds do not follow: has 2 | nothing |
         at(10) B acquires holds 1          -> busy
         at(10) B acquires holds 2          -> holds do not follow: has 0
         at(10) the lock is                 -> A 2 holds, token 1, until 110",
    );
}

#[test]
fn the_largest_count_of_holds_is_granted_and_no_more() {
    table(
        "at(0) quarantine lasts 50
         at(1) A renews token 5 holds 4294967294 -> token 5
         at(2) A acquires                        -> granted 4294967295 holds, token 5
         at(3) A acquires holds 4294967295       -> granted 4294967295 holds, token 5
         at(3) the lock is                       -> A 4294967295 holds, token 5, until 103
         at(3) A acquires lease 900              -> too many holds | nothing |",
    );
}
