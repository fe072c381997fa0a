//! Quarantine: what is granted, confirmed and restored.

use crate::notation::{World, instant, span, table};
use lockward_core::{FencingToken, Instant, Quarantine, Span};

#[test]
fn in_quarantine_no_new_tenure_is_granted_and_holders_re_enter_renew_and_release() {
    table(
        "at(0)  A acquires lease 500 -> granted 1 hold, token 1
         at(10) quarantine lasts 200
         at(20) A acquires holds 1   -> busy
         at(20) A acquires           -> granted 2 holds, token 1
         at(20) A renews lease 300   -> token 1
         at(20) A releases           -> 1 left
         at(20) B acquires           -> busy
         at(20) A releases           -> 0 left
         at(20) A acquires           -> busy
         at(20) B acquires           -> busy
         at(20) B releases           -> not held: free
         at(20) B renews             -> not held: free
         at(30) B renews token 9     -> token 9
         at(30) the lock is          -> B 1 hold, token 9, until 130",
    );
}

#[test]
fn a_quarantine_ends_exactly_at_its_instant_and_waiters_are_served_then() {
    table(
        "at(10)  quarantine lasts 200
         at(20)  A waits as 7        -> waits
         at(20)  B waits as 8        -> waits
         at(20)  the lock is due     -> at 210
         at(20)  the queues are due  -> at 210
         at(209.999) the timer fires ->
         at(209.999) C acquires      -> busy
         at(210) the timer fires     -> 7 gets 1 hold, token 1
         at(210) the lock is due     -> at 310",
    );
}

#[test]
fn a_lock_freed_in_quarantine_is_granted_to_waiters_when_it_ends() {
    table(
        "at(0)   A acquires lease 40 -> granted 1 hold, token 1
         at(10)  quarantine lasts 200
         at(20)  B waits as 7        -> waits
         at(20)  the queues are due  -> at 40
         at(40)  the timer fires     -> | end 1 over | lease-over
         at(40)  the lock is         -> free
         at(40)  the queues are due  -> at 210
         at(210) the timer fires     -> 7 gets 1 hold, token 2",
    );
}

#[test]
fn a_quarantine_of_length_zero_is_no_quarantine() {
    table(
        "at(5) quarantine lasts 0
         at(5) A acquires       -> granted 1 hold, token 1
         at(5) B renews token 9 -> not held: another has token 1",
    );
}

#[test]
fn a_wait_for_a_hold_that_is_restored_is_granted_without_a_new_hold() {
    table(
        "at(0) quarantine lasts 100
         at(1) B waits holds 1 as 7 -> waits
         at(2) B renews token 5     -> token 5; 7 gets 1 hold, token 5 as before
         at(2) the lock is          -> B 1 hold, token 5, until 102",
    );
}

#[test]
fn a_held_lock_is_due_at_the_end_of_the_quarantine_and_of_its_lease() {
    table(
        "at(0)   A acquires shared lease 1000 -> granted 1 hold, token 1
         at(1)   quarantine lasts 100
         at(2)   B waits shared as 7          -> waits
         at(2)   the lock is due              -> at 101
         at(101) the timer fires              -> 7 gets 1 hold, token 2
         at(101) the lock is due              -> at 201",
    );
}

#[test]
fn a_lost_tenure_is_restored_by_its_token() {
    table(
        "at(0)  quarantine lasts 500
         at(1)  A renews                           -> not held: free
         at(1)  A renews token 40 holds 3 lease 70 -> token 40 | put A 3 holds, token 40, 70 left | acquired
         at(1)  the lock is                        -> A 3 holds, token 40, until 71
         at(2)  A renews token 40                  -> token 40 | put A 3 holds, token 40, 100 left | renewed
         at(3)  A releases                         -> 2 left",
    );
}

#[test]
fn an_owner_corrects_the_holds_of_its_tenure_in_quarantine() {
    table(
        "at(0)   A acquires               -> granted 1 hold, token 1
         at(1)   A renews token 1 holds 3 -> token 1 | put A 1 hold, token 1, 100 left | renewed
         at(1)   quarantine lasts 50
         at(3)   A renews token 1 holds 3 -> token 1 | put A 3 holds, token 1, 100 left | acquired
         at(4)   A renews token 1         -> token 1 | put A 3 holds, token 1, 100 left | renewed
         at(5)   A renews token 1 holds 2 -> token 1 | put A 3 holds, token 1, 100 left | renewed
         at(53)  A releases holds 2       -> 2 left",
    );
}

#[test]
fn only_the_first_holds_that_an_owner_names_in_quarantine_correct_its_tenure() {
    table(
        "at(0)   A acquires               -> granted 1 hold, token 1
         at(1)   quarantine lasts 50
         at(2)   A renews                 -> token 1
         at(3)   A renews token 1 holds 3 -> token 1 | put A 3 holds, token 1, 100 left | acquired
         at(4)   A renews token 1 holds 2 -> token 1 | put A 3 holds, token 1, 100 left | renewed",
    );
    table(
        "at(0)   A acquires               -> granted 1 hold, token 1
         at(1)   quarantine lasts 50
         at(2)   A acquires holds 2       -> granted 2 holds, token 1
         at(3)   A renews token 1 holds 1 -> token 1 | put A 2 holds, token 1, 100 left | renewed",
    );
    table(
        "at(0)   A acquires               -> granted 1 hold, token 1
         at(0)   A acquires               -> granted 2 holds, token 1
         at(1)   quarantine lasts 50
         at(2)   A releases holds 1       -> 1 left
         at(3)   A renews token 1 holds 2 -> token 1 | put A 1 hold, token 1, 100 left | renewed",
    );
}

#[test]
fn holds_that_an_owner_did_not_name_can_still_be_corrected() {
    table(
        "at(0) A acquires               -> granted 1 hold, token 1
         at(0) A acquires               -> granted 2 holds, token 1
         at(1) quarantine lasts 50
         at(2) A acquires               -> granted 3 holds, token 1
         at(2) A releases               -> 2 left
         at(3) A renews token 1 holds 5 -> token 1
         at(4) the lock is              -> A 5 holds, token 1, until 103",
    );
}

#[test]
fn nothing_is_restored_when_the_quarantine_is_over() {
    table(
        "at(0)      quarantine lasts 500
         at(499.999) A renews token 40 lease 1 -> token 40
         at(502)    A renews token 40          -> not held: free
         at(502)    B renews token 41          -> not held: free",
    );
}

#[test]
fn of_two_claims_the_larger_token_wins() {
    table(
        "at(0) quarantine lasts 500
         at(1) A renews token 40 -> token 40
         at(2) B renews token 39 -> not held: another has token 40 | nothing |
         at(2) B renews token 40 -> not held: another has token 40 | nothing |
         at(3) B renews token 41 -> token 41 | end 40 released, put B 1 hold, token 41, 100 left | released acquired
         at(4) A renews token 40 -> not held: another has token 41
         at(4) A renews          -> not held: another has token 41
         at(4) the lock is       -> B 1 hold, token 41, until 103",
    );
}

#[test]
fn a_later_tenure_of_the_same_owner_is_restored_over_its_earlier_one() {
    table(
        "at(0) A acquires               -> granted 1 hold, token 1
         at(1) quarantine lasts 500
         at(2) A renews token 5 holds 2 -> token 5
         at(2) the lock is              -> A 2 holds, token 5, until 102
         at(3) A renews token 4         -> not held: it has token 5",
    );
}

#[test]
fn a_restored_exclusive_tenure_ends_the_tenures_that_were_granted_before_it() {
    table(
        "at(0) A acquires shared -> granted 1 hold, token 1
         at(0) B acquires shared -> granted 1 hold, token 2
         at(1) quarantine lasts 500
         at(2) C renews token 2  -> not held: another has token 2
         at(2) C renews token 3  -> token 3
         at(2) the lock is       -> C 1 hold, token 3, until 102",
    );
}

#[test]
fn a_token_more_than_a_day_ahead_is_not_restored() {
    table(
        "at(0) quarantine lasts 500
         at(1) A renews token 86400000001 -> token far ahead | nothing |
         at(1) A renews token 86400000000 -> token 86400000000
         at(2) A releases                 -> 0 left
         at(500) B acquires               -> granted 1 hold, token 86400000001",
    );
}

#[test]
fn a_restored_owner_re_enters_with_its_own_waits() {
    table(
        "at(0) quarantine lasts 500
         at(1) A waits as 7             -> waits
         at(1) B waits as 8             -> waits
         at(1) A waits as 9             -> waits
         at(2) A renews token 5 holds 2 -> token 5; 7 gets 3 holds, token 5; 9 gets 4 holds, token 5
         at(2) the queue is             -> 8 B since 1",
    );
}

#[test]
fn a_promotion_begins_the_quarantine_again() {
    let mut world = World::new();
    world.quarantine = Quarantine::new(instant(0), span(100));
    assert!(world.quarantine.ends(instant(99)).is_some());
    assert!(world.quarantine.ends(instant(100)).is_none());
    world.quarantine.restart(instant(300));
    assert_eq!(world.quarantine.ends(instant(301)), Some(instant(400)));
    world.quarantine.set_length(span(50));
    assert_eq!(world.quarantine.ends(instant(301)), Some(instant(350)));
    assert_eq!(world.quarantine.ends(instant(350)), None);
    world.quarantine.set_length(Span::default());
    assert_eq!(world.quarantine.ends(instant(300)), None);
}

#[test]
fn a_waiter_from_before_the_quarantine_was_set_gets_the_lease_it_asked_for() {
    table(
        "at(0)  A acquires             -> granted 1 hold, token 1
         at(1)  B waits lease 500 as 7 -> waits
         at(2)  quarantine lasts 30
         at(40) A releases             -> 0 left; 7 gets 1 hold, token 2
         at(40) the lock is            -> B 1 hold, token 2, until 540",
    );
}

#[test]
fn a_tenure_that_ended_in_this_quarantine_and_older_ones_are_not_restored() {
    let mut world = World::new();
    world.play("at(0) quarantine lasts 100");
    world.quarantine_memory.end_up_to(FencingToken::new(7));
    world.play("at(1) A renews token 6 -> not held: free");
    world.play("at(1) A renews token 7 -> not held: free");
    world.play("at(1) A renews token 8 -> token 8");
}

#[test]
fn a_tenure_whose_lease_ended_in_this_quarantine_can_be_restored_but_no_older_one() {
    table(
        "at(0)  quarantine lasts 100
         at(1)  A renews token 7 lease 10 -> token 7
         at(20) B renews token 6          -> not held: free
         at(20) A renews token 7 lease 10 -> token 7
         at(40) B renews token 8 lease 10 -> token 8
         at(60) A renews token 7          -> not held: free",
    );
}

#[test]
fn a_load_leaves_its_tenures_unconfirmed_and_the_end_of_the_quarantine_unchanged() {
    let at = Instant::from_micros;
    let mut quarantine = Quarantine::new(at(0), Span::from_millis(100).unwrap());
    assert!(quarantine.is_unconfirmed(at(0)) && !quarantine.is_unconfirmed(at(1)));
    quarantine.loaded(at(50));
    assert!(quarantine.is_unconfirmed(at(50)) && !quarantine.is_unconfirmed(at(51)));
    assert_eq!(quarantine.ends(at(60)), Some(at(100_000)));
    quarantine.restart(at(70));
    assert!(quarantine.is_unconfirmed(at(70)) && !quarantine.is_unconfirmed(at(71)));
    assert_eq!(quarantine.ends(at(80)), Some(at(100_070)));
}

#[test]
fn a_first_hold_does_not_re_enter_an_unconfirmed_tenure() {
    table(
        "at(0)  A acquires            -> granted 1 hold, token 1
         at(1)  quarantine lasts 200
         at(2)  A waits holds 1 as 7  -> waits
         at(2)  B waits as 8          -> waits
         at(3)  the lock is rechecked ->
         at(4)  C renews token 2      -> token 2 | end 1 released, put C 1 hold, token 2, 100 left | released acquired
         at(4)  the queue is          -> 7 A since 2, 8 B since 2",
    );
}

#[test]
fn a_release_ends_no_wait_that_names_the_count_to_be_left() {
    table(
        "at(0)  A acquires            -> granted 1 hold, token 1
         at(0)  A acquires            -> granted 2 holds, token 1
         at(1)  quarantine lasts 200
         at(2)  A waits holds 1 as 7  -> waits
         at(3)  A releases holds 1    -> 1 left
         at(4)  A renews              -> token 1; 7 gets 1 hold, token 1 as before",
    );
}

#[test]
fn a_holder_that_renews_in_quarantine_re_enters_with_its_own_waits() {
    table(
        "at(0)  A acquires           -> granted 1 hold, token 1
         at(1)  quarantine lasts 200
         at(2)  B waits as 8         -> waits
         at(2)  A waits holds 1 as 7 -> waits
         at(3)  A renews token 1     -> token 1; 7 gets 1 hold, token 1 as before
         at(4)  A acquires holds 1   -> granted 1 hold, token 1",
    );
}

#[test]
fn claims_of_readers_are_all_restored_but_not_after_their_release() {
    table(
        "at(0) quarantine lasts 200
         at(1) A renews token 1 shared -> token 1
         at(1) B renews token 2 shared -> token 2
         at(2) C renews token 3 shared -> token 3
         at(3) the lock is             -> A 1 hold, token 1, until 101, shared; B 1 hold, token 2, until 101, shared; C 1 hold, token 3, until 102, shared
         at(4) B releases              -> 0 left
         at(5) B renews token 2 shared -> not held: another has token 3
         at(6) A releases              -> 0 left
         at(7) A renews token 1 shared -> not held: another has token 3
         at(8) D renews token 4        -> token 4 | end 3 released, put D 1 hold, token 4, 100 left | released acquired
         at(9) C renews token 3 shared -> not held: another has token 4",
    );
}

#[test]
fn of_claims_that_do_not_fit_the_larger_token_wins_in_any_order() {
    table(
        "at(0) quarantine lasts 200
         at(1) A renews token 5 slots 4 weight 2 -> token 5
         at(1) B renews token 7 slots 4 weight 2 -> token 7
         at(2) C renews token 6 slots 4 weight 1 -> token 6 | end 5 released, put C 1 hold, token 6, 100 left
         at(3) A renews token 5 slots 4 weight 2 -> not held: another has token 7
         at(4) D renews token 3 slots 4 weight 1 -> token 3
         at(5) E renews token 4 slots 9 weight 1 -> token 4 | end 3 released, put E 1 hold, token 4, 100 left
         at(6) D renews token 3 slots 4 weight 1 -> not held: another has token 7",
    );
}

#[test]
fn a_claim_replaces_the_unconfirmed_tenure_of_its_owner_and_outlasts_unconfirmed_tenures_of_others() {
    table(
        "at(0) A acquires shared      -> granted 1 hold, token 1
         at(0) B acquires shared      -> granted 1 hold, token 2
         at(0) C acquires shared      -> granted 1 hold, token 3
         at(1) quarantine lasts 200
         at(2) B renews token 2       -> token 2
         at(2) the lock is            -> A 1 hold, token 1, until 100, shared; B 1 hold, token 2, until 102, shared; C 1 hold, token 3, until 100, shared
         at(3) A renews token 1 slots 2 holds 3 -> token 1 | end 3 released, put A 3 holds, token 1, 100 left
         at(4) C renews token 3 shared -> token 3 | end 1 released, put C 1 hold, token 3, 100 left
         at(5) C renews token 4 shared -> token 4 | end 3 released, put C 1 hold, token 4, 100 left
         at(6) C renews token 3 shared -> not held: it has token 4
         at(7) the lock is            -> B 1 hold, token 2, until 102, shared; C 1 hold, token 4, until 105, shared",
    );
}

#[test]
fn a_renewal_without_a_token_is_no_claim_so_another_weight_is_an_error() {
    table(
        "at(0) A acquires slots 5 weight 2       -> granted 1 hold, token 1
         at(1) quarantine lasts 200
         at(2) A renews slots 5 weight 3         -> mode differs: has slots 5 weight 2 | nothing
         at(3) A renews token 1 slots 5 weight 3 -> token 1
         at(4) the lock is                       -> A 1 hold, token 1, until 103, slots 5 weight 3",
    );
}

#[test]
fn the_mode_of_a_confirmed_tenure_changes_only_by_a_downgrade() {
    table(
        "at(0) A acquires slots 2                -> granted 1 hold, token 1
         at(1) quarantine lasts 200
         at(2) A renews token 1 slots 5 weight 3 -> token 1
         at(3) A renews token 1 slots 4          -> mode differs: has slots 5 weight 3
         at(3) A renews token 1 slots 5 weight 2 -> mode differs: has slots 5 weight 3
         at(3) A renews token 1 slots 6          -> token 1
         at(4) the lock is                       -> A 1 hold, token 1, until 103, slots 6 weight 3",
    );
}
