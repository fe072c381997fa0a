//! Limits: how many owners hold a lock at once.

use crate::notation::table;

#[test]
fn a_holder_that_names_a_smaller_limit_waits_while_there_are_more_holders() {
    table(
        "at(0)  A acquires shared     -> granted 1 hold, token 1
         at(0)  B acquires shared     -> granted 1 hold, token 2
         at(1)  A waits as 7          -> waits
         at(2)  the lock is rechecked ->
         at(2)  the lock is           -> A 1 hold, token 1, until 100, shared; B 1 hold, token 2, until 100, shared
         at(3)  A waits as 8          -> waits
         at(4)  A renews lease 200    -> token 1
         at(4)  B renews lease 200    -> token 2
         at(5)  B releases            -> 0 left; 7 gets 2 holds, token 1; 8 gets 3 holds, token 1",
    );
}

#[test]
fn a_holder_that_names_a_smaller_limit_than_there_are_holders_is_busy() {
    table(
        "at(0) A acquires shared -> granted 1 hold, token 1
         at(1) B acquires shared -> granted 1 hold, token 2
         at(2) A acquires        -> busy
         at(3) B releases        -> 0 left
         at(4) A acquires        -> granted 2 holds, token 1",
    );
}

#[test]
fn slots_admit_as_many_owners_as_every_holder_allows() {
    table(
        "at(0) A acquires slots 3 -> granted 1 hold, token 1
         at(1) B acquires slots 2 -> granted 1 hold, token 2
         at(2) C acquires slots 3 -> busy
         at(2) C acquires shared  -> busy
         at(3) B releases         -> 0 left
         at(4) C acquires slots 3 -> granted 1 hold, token 3
         at(5) D acquires slots 3 -> granted 1 hold, token 4
         at(6) E acquires slots 9 -> busy
         at(6) the lock is        -> A 1 hold, token 1, until 100, slots 3; C 1 hold, token 3, until 104, slots 3; D 1 hold, token 4, until 105, slots 3",
    );
}

#[test]
fn any_number_share_a_lock_and_an_exclusive_request_waits_for_all_of_them() {
    table(
        "at(0)   A acquires shared lease 100 -> granted 1 hold, token 1
         at(1)   B acquires shared lease 200 -> granted 1 hold, token 2
         at(2)   C acquires shared lease 300 -> granted 1 hold, token 3
         at(3)   D waits as 7                -> waits
         at(100) the timer fires             ->
         at(150) C releases                  -> 0 left
         at(201) the timer fires             -> 7 gets 1 hold, token 4
         at(201) E acquires shared           -> busy",
    );
}

#[test]
fn waiters_are_granted_together_up_to_the_first_that_does_not_fit() {
    table(
        "at(0) A acquires          -> granted 1 hold, token 1
         at(1) B waits as 5 shared -> waits
         at(1) C waits as 6 shared -> waits
         at(1) D waits as 7        -> waits
         at(1) E waits as 8 shared -> waits
         at(2) A releases          -> 0 left; 5 gets 1 hold, token 2; 6 gets 1 hold, token 3
         at(3) B releases          -> 0 left
         at(4) C releases          -> 0 left; 7 gets 1 hold, token 4
         at(5) D releases          -> 0 left; 8 gets 1 hold, token 5",
    );
}

#[test]
fn each_holder_has_its_own_lease_holds_and_token() {
    table(
        "at(0)   A acquires slots 2 lease 100 -> granted 1 hold, token 1
         at(10)  B acquires slots 2 lease 200 -> granted 1 hold, token 2
         at(20)  B acquires slots 2 lease 200 -> granted 2 holds, token 2
         at(20)  A releases token 2           -> not held: it has token 1
         at(100) A releases                   -> not held: another has token 2
         at(100) the lock is                  -> B 2 holds, token 2, until 220, slots 2",
    );
}

#[test]
fn a_re_entry_with_a_larger_limit_keeps_the_smaller_one() {
    table(
        "at(0) A acquires slots 2 -> granted 1 hold, token 1
         at(1) A acquires shared  -> granted 2 holds, token 1
         at(1) the lock is        -> A 2 holds, token 1, until 101, slots 2
         at(2) B acquires shared  -> granted 1 hold, token 2
         at(3) C acquires shared  -> busy",
    );
}

#[test]
fn a_re_entry_with_a_smaller_limit_sets_it() {
    table(
        "at(0) A acquires slots 5          -> granted 1 hold, token 1
         at(1) A acquires slots 2 lease 10 -> granted 2 holds, token 1 | put A 2 holds, token 1, 99 left | acquired
         at(1) the lock is                 -> A 2 holds, token 1, until 100, slots 2
         at(2) B acquires slots 5          -> granted 1 hold, token 2
         at(3) C acquires slots 5          -> busy",
    );
}
