//! Readers, slots and weights: who may hold a lock at the same time.

use crate::notation::table;

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
fn a_re_entry_with_the_same_or_a_larger_limit_keeps_what_the_owner_has() {
    table(
        "at(0) A acquires slots 4 weight 2 -> granted 1 hold, token 1
         at(1) A acquires shared           -> granted 2 holds, token 1
         at(2) A acquires slots 4          -> granted 3 holds, token 1
         at(2) A acquires slots 9 weight 2 -> granted 4 holds, token 1
         at(2) the lock is                 -> A 4 holds, token 1, until 102, slots 4 weight 2
         at(3) B acquires slots 4 weight 2 -> granted 1 hold, token 2
         at(4) C acquires slots 4          -> busy",
    );
}

#[test]
fn a_smaller_limit_or_another_weight_on_re_entry_is_an_error_and_changes_nothing() {
    table(
        "at(0) A acquires shared           -> granted 1 hold, token 1
         at(1) A acquires                  -> mode differs: has slots 0 weight 1 | nothing
         at(1) A waits as 7                -> mode differs: has slots 0 weight 1
         at(1) A acquires slots 3 holds 2  -> mode differs: has slots 0 weight 1
         at(1) A acquires slots 3 holds 9  -> mode differs: has slots 0 weight 1
         at(2) B acquires slots 5 weight 2 -> granted 1 hold, token 2
         at(3) B acquires slots 5 weight 1 -> mode differs: has slots 5 weight 2 | nothing
         at(3) B acquires slots 5 weight 3 -> mode differs: has slots 5 weight 2
         at(3) B acquires slots 4 weight 2 -> mode differs: has slots 5 weight 2
         at(3) the lock is                 -> A 1 hold, token 1, until 100, shared; B 1 hold, token 2, until 102, slots 5 weight 2",
    );
}

#[test]
fn the_other_waits_of_a_granted_owner_re_enter_or_get_the_error() {
    table(
        "at(0) A acquires          -> granted 1 hold, token 1
         at(1) B waits shared as 5 -> waits
         at(1) B waits as 6        -> waits
         at(1) B waits shared as 7 -> waits
         at(1) C waits shared as 8 -> waits
         at(2) A releases          -> 0 left; 5 gets 1 hold, token 2; 6 gets mode differs: has slots 0 weight 1; 7 gets 2 holds, token 2; 8 gets 1 hold, token 3",
    );
}

#[test]
fn weights_add_up_to_the_limit_and_a_heavy_request_is_not_overtaken() {
    table(
        "at(0) A acquires slots 8 weight 5 -> granted 1 hold, token 1
         at(1) B waits slots 8 weight 4 as 5 -> waits
         at(1) C waits slots 8 weight 3 as 6 -> waits
         at(1) D acquires slots 8 weight 1 -> busy
         at(2) A acquires slots 8          -> granted 2 holds, token 1
         at(3) A releases all              -> 0 left; 5 gets 1 hold, token 2; 6 gets 1 hold, token 3
         at(4) D acquires slots 8 weight 1 -> granted 1 hold, token 4
         at(4) E acquires slots 8 weight 1 -> busy",
    );
}

#[test]
fn the_waiters_behind_one_that_leaves_are_served_at_once() {
    table(
        "at(0)  A acquires shared           -> granted 1 hold, token 1
         at(1)  B waits as 5                -> waits
         at(1)  C waits shared as 6         -> waits
         at(1)  D waits as 7                -> waits
         at(1)  E waits shared as 8         -> waits
         at(2)  5 leaves                    -> left; 6 gets 1 hold, token 2
         at(3)  7 is unblocked              -> left; 8 gets 1 hold, token 3
         at(10) F waits limit 20 as 9       -> waits
         at(10) G waits shared as 10        -> waits
         at(30) the timer fires             -> 9 gets nothing; 10 gets 1 hold, token 4",
    );
}

#[test]
fn a_request_that_takes_over_the_first_place_is_granted_if_it_fits() {
    table(
        "at(0) A acquires shared            -> granted 1 hold, token 1
         at(1) B waits holds 1 as 5         -> waits
         at(2) C waits shared as 6          -> waits
         at(3) B acquires shared holds 1    -> granted 1 hold, token 2; 5 is superseded; 6 gets 1 hold, token 3
         at(4) D waits holds 1 as 7         -> waits
         at(4) E waits shared holds 1 as 8  -> waits
         at(5) E acquires shared holds 1    -> busy
         at(6) E waits shared holds 1 as 9  -> waits; 8 is superseded
         at(7) the queue is                 -> 7 D since 4, 9 E since 4",
    );
}

/// A request with `HOLDS` takes over only the first place of its owner, whether the request is granted at once or
/// waits.
#[test]
fn a_request_that_is_granted_at_once_takes_over_only_the_first_place() {
    table(
        "at(0) A acquires shared            -> granted 1 hold, token 1
         at(1) B waits as 5                 -> waits
         at(2) B waits as 6                 -> waits
         at(2) B waits shared as 7          -> waits
         at(3) B acquires shared holds 1    -> granted 1 hold, token 2; 5 is superseded; 6 gets mode differs: has slots 0 weight 1; 7 gets 2 holds, token 2",
    );
}

#[test]
fn a_renewal_with_a_larger_limit_lets_others_in() {
    table(
        "at(0) A acquires                  -> granted 1 hold, token 1
         at(1) B waits shared as 5         -> waits
         at(1) C waits slots 3 as 6        -> waits
         at(1) D waits shared as 7         -> waits
         at(2) A renews slots 2 weight 2   -> mode differs: has slots 1 weight 1 | nothing
         at(2) A renews slots 1            -> token 1
         at(3) A renews shared             -> token 1; 5 gets 1 hold, token 2; 6 gets 1 hold, token 3 | put A 1 hold, token 1, 100 left, put B 1 hold, token 2, 100 left, put C 1 hold, token 3, 100 left | renewed acquired acquired
         at(4) A renews slots 7            -> mode differs: has slots 0 weight 1
         at(4) the lock is                 -> A 1 hold, token 1, until 103, shared; B 1 hold, token 2, until 103, shared; C 1 hold, token 3, until 103, slots 3
         at(5) C renews shared             -> token 3; 7 gets 1 hold, token 4",
    );
}

#[test]
fn a_downgrade_to_no_limit_keeps_the_weight() {
    table(
        "at(0) A acquires slots 5 weight 2 -> granted 1 hold, token 1
         at(1) A renews shared             -> token 1 | put A 1 hold, token 1, 100 left | renewed
         at(1) the lock is                 -> A 1 hold, token 1, until 101, shared weight 2
         at(2) B acquires slots 3 weight 2 -> busy
         at(2) B acquires slots 3          -> granted 1 hold, token 2
         at(3) C acquires shared           -> busy
         at(4) A acquires shared           -> granted 2 holds, token 1",
    );
}

#[test]
fn a_restored_weight_is_freed_by_the_end_of_its_lease() {
    table(
        "at(0)   A acquires slots 4 weight 3 lease 10 -> granted 1 hold, token 1
         at(1)   B acquires slots 4 lease 50          -> granted 1 hold, token 2
         at(2)   C waits slots 4 weight 3 as 5        -> waits
         at(2)   the lock is due                      -> at 10
         at(10)  the timer fires                      -> 5 gets 1 hold, token 3 | end 1 over, put C 1 hold, token 3, 100 left | lease-over acquired
         at(60)  the lock is due                      -> at 51",
    );
}
