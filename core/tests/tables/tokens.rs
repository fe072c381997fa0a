//! Fencing tokens.

use crate::notation::table;

#[test]
fn tokens_grow_whatever_the_wall_clock_does() {
    table(
        "at(0) A acquires -> granted 1 hold, token 1
         at(0) A releases -> 0 left
         at(1) the wall clock shows 7000
         at(1) A acquires -> granted 1 hold, token 7000
         at(1) A releases -> 0 left
         at(2) the wall clock shows 300
         at(2) A acquires -> granted 1 hold, token 7001
         at(2) A releases -> 0 left
         at(3) token 9000 is observed
         at(3) B acquires -> granted 1 hold, token 9001",
    );
}

#[test]
fn the_next_token_is_larger_than_a_restored_one() {
    table(
        "at(0)   quarantine lasts 50
         at(1)   A renews token 77 -> token 77
         at(2)   A releases        -> 0 left
         at(50)  B acquires        -> granted 1 hold, token 78",
    );
}

#[test]
fn the_last_token_is_given_once_and_then_requests_are_refused() {
    table(
        "at(0) token 9007199254740990 is observed
         at(0) A acquires   -> granted 1 hold, token 9007199254740991
         at(1) B waits as 7 -> waits
         at(2) C waits as 8 -> waits
         at(3) A releases   -> 0 left; 7 gets tokens used up; 8 gets tokens used up
         at(4) A acquires   -> tokens used up | nothing |
         at(4) the lock is  -> free
         at(4) the queue is -> nobody",
    );
}
