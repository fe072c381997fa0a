//! Counters.

use crate::notation::table;

#[test]
fn a_tenure_is_counted_when_it_begins_and_when_it_ends() {
    table(
        "at(0)   A acquires         -> granted 1 hold, token 1
         at(0)   the counters are   -> acquired 1
         at(10)  A acquires         -> granted 2 holds, token 1
         at(20)  A acquires holds 2 -> granted 2 holds, token 1
         at(20)  A renews           -> token 1
         at(20)  A releases         -> 1 left
         at(20)  the counters are   -> acquired 1, re-entered 1, renewed 1
         at(30)  A releases         -> 0 left
         at(30)  A releases holds 0 -> 0 left
         at(30)  the counters are   -> acquired 1, re-entered 1, released 1, renewed 1, held for 30 ms",
    );
}

#[test]
fn a_hand_off_is_counted_with_the_duration_of_the_wait() {
    table(
        "at(0)  A acquires       -> granted 1 hold, token 1
         at(10) B waits as 7     -> waits
         at(30) A releases       -> 0 left; 7 gets 1 hold, token 2
         at(30) the counters are -> acquired 2, handed off 1, released 1, waited 20 ms, held for 30 ms",
    );
}

#[test]
fn an_expired_tenure_is_counted_with_the_length_of_its_lease() {
    table(
        "at(0)   A acquires       -> granted 1 hold, token 1
         at(500) B acquires       -> granted 1 hold, token 2
         at(500) the counters are -> acquired 2, leases ended 1, held for 100 ms",
    );
}

#[test]
fn a_replicated_release_is_not_counted() {
    table(
        "at(0)  A acquires            -> granted 1 hold, token 1
         at(10) A releases as replica -> 0 left
         at(10) the counters are      -> acquired 1",
    );
}

#[test]
fn a_restored_tenure_is_counted_and_the_tenure_it_ends_is_not_counted_as_released() {
    table(
        "at(0)  A acquires                -> granted 1 hold, token 1
         at(10) quarantine lasts 1000
         at(20) B renews token 7 lease 50 -> token 7
         at(20) the counters are          -> acquired 1, restored 1, held for 20 ms",
    );
}
