//! LOCK.RENEW outside quarantine.

use crate::notation::table;

#[test]
fn a_renewal_makes_the_lease_longer_or_shorter() {
    table(
        "at(0)  A acquires lease 100 -> granted 1 hold, token 1
         at(50) A renews lease 900   -> token 1
         at(50) the lock is          -> A 1 hold, token 1, until 950
         at(60) A renews lease 10    -> token 1
         at(60) the lock is          -> A 1 hold, token 1, until 70
         at(70) B acquires           -> granted 1 hold, token 2",
    );
}

#[test]
fn only_the_tenure_with_the_named_token_is_released_or_renewed() {
    table(
        "at(0) A acquires                 -> granted 1 hold, token 1
         at(0) A acquires                 -> granted 2 holds, token 1
         at(1) A releases token 2         -> not held: it has token 1
         at(1) A releases all token 2     -> not held: it has token 1
         at(1) A releases holds 0 token 2 -> not held: it has token 1
         at(1) A renews token 2           -> not held: it has token 1
         at(1) A releases token 1         -> 1 left
         at(1) A renews token 1           -> token 1
         at(2) A releases all token 1     -> 0 left",
    );
}
