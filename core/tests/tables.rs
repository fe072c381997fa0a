//! What a lock does, as tables in virtual time.
//!
//! A line reads `at(milliseconds) what is done -> what comes of it | what is sent | what has happened`. The two last
//! columns are compared only where they are written; a line without `->` has no answer. Waiters are told by number:
//! `B waits as 7` joins the queue when the lock is busy, and `7 gets ...` is what the waiter is told. `A released` is a
//! release that a replica hears of.
//!
//! The wall clock stands still at zero unless a table moves it, so that tokens count 1, 2, 3. A lease that is not named
//! is 100 ms.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in what it calls as well"
)]

use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{
    AcquireRequest, Acquired, Change, Completion, Counters, Db, Decision, Effects, End, Event, FencingToken,
    Full, Holder, HoldsLeft, Instant, LONGEST_SWEPT_KEY, Limits, Lock, NotHeld, Now, Outcome, Owner,
    Propagation, Quarantine, QuarantineMemory, Refusal, ReleaseRequest, RenewRequest, Slots, Span,
    TokenSource, WaitQueues, WaitRequest, Waiter, WallTime, event_of, slot_key,
};

// What is counted.

#[test]
fn a_tenure_is_counted_when_it_begins_and_when_it_ends() {
    table(
        "at(0)   A acquires           -> granted 1 hold, token 1
         at(0)   the counters are         -> acquired 1
         at(10)  A acquires           -> granted 2 holds, token 1
         at(20)  A acquires holds 2   -> granted 2 holds, token 1
         at(20)  A renews             -> token 1
         at(20)  A releases           -> 1 left
         at(20)  the counters are         -> acquired 1, re-entered 1, renewed 1
         at(30)  A releases           -> 0 left
         at(30)  A releases holds 0   -> 0 left
         at(30)  the counters are         -> acquired 1, re-entered 1, released 1, renewed 1, held for 30 ms",
    );
}

#[test]
fn a_hand_off_is_counted_with_the_wait_before_it() {
    table(
        "at(0)  A acquires            -> granted 1 hold, token 1
         at(10) B waits as 7          -> waits
         at(30) A releases            -> 0 left; 7 gets 1 hold, token 2
         at(30) the counters are          -> acquired 2, handed off 1, released 1, waited 20 ms, held for 30 ms",
    );
}

#[test]
fn a_tenure_whose_lease_is_over_lasted_as_long_as_its_lease() {
    table(
        "at(0)   A acquires           -> granted 1 hold, token 1
         at(500) B acquires           -> granted 1 hold, token 2
         at(500) the counters are         -> acquired 2, leases ended 1, held for 100 ms",
    );
}

#[test]
fn what_a_replica_follows_is_not_counted() {
    table(
        "at(0)  A acquires            -> granted 1 hold, token 1
         at(10) A released            -> 0 left
         at(10) the counters are          -> acquired 1",
    );
}

#[test]
fn a_restored_tenure_is_counted_and_the_one_it_ends_is_not_released() {
    table(
        "at(0)  A acquires               -> granted 1 hold, token 1
         at(10) quarantine lasts 1000
         at(20) B renews token 7 lease 50 -> token 7
         at(20) the counters are             -> acquired 1, restored 1, held for 20 ms",
    );
}

// The state table, row by row.

#[test]
fn a_holder_re_enters_gives_back_and_renews() {
    table(
        "at(0)   A acquires           -> granted 1 hold, token 1
         at(10)  A acquires           -> granted 2 holds, token 1
         at(20)  A acquires           -> granted 3 holds, token 1
         at(30)  the lock is          -> A 3 holds, token 1, until 120
         at(40)  A releases           -> 2 left
         at(50)  A renews lease 500   -> token 1
         at(60)  A releases           -> 1 left
         at(60)  the lock is          -> A 1 hold, token 1, until 550
         at(70)  A releases           -> 0 left
         at(70)  the lock is          -> free",
    );
}

#[test]
fn the_last_release_hands_the_lock_to_the_next_in_line() {
    table(
        "at(0)  A acquires  -> granted 1 hold, token 1
         at(5)  A acquires  -> granted 2 holds, token 1
         at(10) B waits as 7 -> waits
         at(20) A releases  -> 1 left
         at(30) A releases  -> 0 left; 7 gets 1 hold, token 2
         at(30) the lock is -> B 1 hold, token 2, until 130",
    );
}

#[test]
fn a_free_lock_is_anybodys_and_nobody_holds_it() {
    table(
        "at(0) A releases              -> not held: free
         at(0) A releases all          -> not held: free
         at(0) A renews                -> not held: free
         at(0) A renews token 5        -> not held: free
         at(1) A acquires lease 30     -> granted 1 hold, token 1
         at(1) the lock is             -> A 1 hold, token 1, until 31",
    );
}

#[test]
fn a_held_lock_is_busy_for_others_and_not_theirs() {
    table(
        "at(0) A acquires          -> granted 1 hold, token 1
         at(1) B acquires          -> busy
         at(1) B releases          -> not held: another has token 1
         at(1) B releases all      -> not held: another has token 1
         at(1) B releases token 1  -> not held: another has token 1
         at(1) B renews            -> not held: another has token 1
         at(1) B renews token 1    -> not held: another has token 1
         at(1) the lock is         -> A 1 hold, token 1, until 100",
    );
}

#[test]
fn a_lock_that_somebody_waits_for_is_busy_even_where_it_would_admit() {
    table(
        "at(0) A acquires shared      -> granted 1 hold, token 1
         at(1) B waits as 7           -> waits
         at(2) C acquires shared      -> busy
         at(2) A acquires shared      -> granted 2 holds, token 1",
    );
}

#[test]
fn a_holder_that_asks_for_fewer_owners_waits_while_there_are_more_and_ends_nobodys_tenure() {
    table(
        "at(0)  A acquires shared             -> granted 1 hold, token 1
         at(0)  B acquires shared             -> granted 1 hold, token 2
         at(1)  A waits as 7                  -> waits
         at(2)  the lock is looked at again   ->
         at(2)  the lock is                   -> A 1 hold, token 1, until 100, shared; B 1 hold, token 2, until 100, shared
         at(3)  A waits as 8                  -> waits
         at(4)  A renews lease 200            -> token 1
         at(4)  B renews lease 200            -> token 2
         at(5)  B releases                    -> 0 left; 7 gets 2 holds, token 1; 8 gets 3 holds, token 1",
    );
}

#[test]
fn in_quarantine_nothing_new_is_granted_and_holders_go_on() {
    table(
        "at(0)  A acquires lease 500      -> granted 1 hold, token 1
         at(10) quarantine lasts 200
         at(20) A acquires holds 1        -> busy
         at(20) A acquires                -> granted 2 holds, token 1
         at(20) A renews lease 300        -> token 1
         at(20) A releases                -> 1 left
         at(20) B acquires                -> busy
         at(20) A releases                -> 0 left
         at(20) A acquires                -> busy
         at(20) B acquires                -> busy
         at(20) B releases                -> not held: free
         at(20) B renews                  -> not held: free
         at(30) B renews token 9          -> token 9
         at(30) the lock is               -> B 1 hold, token 9, until 130",
    );
}

// Leases.

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
fn a_holder_whose_lease_is_over_has_nothing_left() {
    table(
        "at(0)   A acquires lease 100 -> granted 1 hold, token 1
         at(100) A releases           -> not held: free
         at(100) A renews             -> not held: free
         at(100) A acquires           -> granted 1 hold, token 2
         at(200) A releases token 1   -> not held: free",
    );
}

#[test]
fn a_holder_whose_lease_is_over_finds_the_next_in_line_there() {
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
fn a_release_leaves_the_lease_as_it_is() {
    table(
        "at(0)  A acquires lease 100 -> granted 1 hold, token 1
         at(0)  A acquires lease 100 -> granted 2 holds, token 1
         at(90) A releases           -> 1 left
         at(90) the lock is          -> A 1 hold, token 1, until 100",
    );
}

#[test]
fn a_waiters_lease_starts_when_it_is_granted() {
    table(
        "at(0)  A acquires lease 100      -> granted 1 hold, token 1
         at(10) B waits as 7 lease 50     -> waits
         at(90) A releases                -> 0 left; 7 gets 1 hold, token 2
         at(90) the lock is               -> B 1 hold, token 2, until 140",
    );
}

#[test]
fn only_the_named_tenure_is_released_or_renewed() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(0) A acquires           -> granted 2 holds, token 1
         at(1) A releases token 2   -> not held: it has token 1
         at(1) A releases all token 2 -> not held: it has token 1
         at(1) A releases holds 0 token 2 -> not held: it has token 1
         at(1) A renews token 2     -> not held: it has token 1
         at(1) A releases token 1   -> 1 left
         at(1) A renews token 1     -> token 1
         at(2) A releases all token 1 -> 0 left",
    );
}

// Counts that a request names.

#[test]
fn an_acquisition_that_names_its_count_is_safe_to_repeat() {
    table(
        "at(0)  A acquires holds 2           -> holds do not follow: has 0
         at(0)  A acquires holds 1           -> granted 1 hold, token 1 | put A 1 hold, token 1, 100 left | acquired
         at(10) A acquires holds 1           -> granted 1 hold, token 1 | put A 1 hold, token 1, 100 left | renewed
         at(10) A acquires holds 1 lease 20  -> granted 1 hold, token 1 | nothing |
         at(10) A acquires holds 2           -> granted 2 holds, token 1 | 2 holds of 1 | acquired
         at(10) A acquires holds 4           -> holds do not follow: has 2 | nothing |
         at(10) A acquires holds 1           -> holds do not follow: has 2 | nothing |
         at(10) B acquires holds 1           -> busy
         at(10) B acquires holds 2           -> holds do not follow: has 0
         at(10) the lock is                  -> A 2 holds, token 1, until 110",
    );
}

#[test]
fn a_release_that_names_its_count_is_safe_to_repeat() {
    table(
        "at(0) A acquires          -> granted 1 hold, token 1
         at(0) A acquires          -> granted 2 holds, token 1
         at(0) A acquires          -> granted 3 holds, token 1
         at(1) A releases holds 0  -> holds do not follow: has 3
         at(1) A releases holds 1  -> holds do not follow: has 3
         at(1) A releases holds 4  -> holds do not follow: has 3
         at(1) A releases holds 2  -> 2 left
         at(1) A releases holds 2  -> 2 left
         at(1) A releases holds 1  -> 1 left
         at(1) A releases holds 0  -> 0 left
         at(1) A releases holds 0  -> 0 left
         at(1) A releases holds 1  -> not held: free",
    );
}

#[test]
fn a_repeated_last_release_leaves_nothing_though_another_holds_by_now() {
    table(
        "at(0) A acquires          -> granted 1 hold, token 1
         at(1) B waits as 7        -> waits
         at(2) A releases holds 0  -> 0 left; 7 gets 1 hold, token 2
         at(3) A releases holds 0  -> 0 left | nothing |
         at(3) A releases holds 0 token 1 -> 0 left | nothing |
         at(3) A releases holds 1  -> not held: another has token 2
         at(3) the lock is         -> B 1 hold, token 2, until 102",
    );
}

#[test]
fn all_holds_are_given_back_at_once() {
    table(
        "at(0) A acquires      -> granted 1 hold, token 1
         at(0) A acquires      -> granted 2 holds, token 1
         at(0) A acquires      -> granted 3 holds, token 1
         at(1) B waits as 7    -> waits
         at(2) A releases all  -> 0 left; 7 gets 1 hold, token 2",
    );
}

#[test]
fn a_wait_that_names_its_count_takes_over_the_place_of_the_earlier_one() {
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
fn a_wait_that_names_its_count_takes_over_a_wait_that_names_none() {
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
fn a_wait_that_names_no_count_leaves_the_earlier_one_in_place() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7 holds 1 -> waits
         at(2) C waits as 8         -> waits
         at(3) B waits as 9         -> waits
         at(3) the queue is         -> 7 B since 1, 8 C since 2, 9 B since 3",
    );
}

#[test]
fn nobody_waits_for_a_count_that_cannot_follow() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7 holds 2 -> holds do not follow: has 0
         at(1) the queue is         -> nobody",
    );
}

#[test]
fn a_wait_whose_count_cannot_follow_any_more_is_told_so_and_the_next_is_served() {
    // What a restored tenure holds makes the count that B waits for impossible.
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
fn a_repeated_wait_finds_the_hold_that_the_first_was_granted() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7 holds 1 -> waits
         at(2) A releases           -> 0 left; 7 gets 1 hold, token 2
         at(3) B waits as 8 holds 1 -> granted 1 hold, token 2",
    );
}

// The queue.

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
fn each_lease_that_ends_serves_the_next_in_line() {
    table(
        "at(0)   A acquires lease 100   -> granted 1 hold, token 1
         at(10)  B waits as 7 lease 50  -> waits
         at(20)  C waits as 8 lease 50  -> waits
         at(20)  the queues wake         -> at 100
         at(100) the timer fires        -> 7 gets 1 hold, token 2
         at(100) the queues wake         -> at 150
         at(149) the timer fires        ->
         at(150) the timer fires        -> 8 gets 1 hold, token 3
         at(150) the queues wake         -> never",
    );
}

#[test]
fn a_request_comes_after_those_who_wait_though_the_lease_is_over() {
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
        "at(0) A acquires                -> granted 1 hold, token 1
         at(1) B waits as 5              -> waits
         at(2) C waits as 6              -> waits
         at(3) B waits as 7 lease 300    -> waits
         at(4) D waits as 8              -> waits
         at(5) B waits as 9              -> waits
         at(6) A releases                -> 0 left; 5 gets 1 hold, token 2; 7 gets 2 holds, token 2; 9 gets 3 holds, token 2
         at(6) the lock is               -> B 3 holds, token 2, until 306
         at(6) the queue is              -> 6 C since 2, 8 D since 4",
    );
}

#[test]
fn the_waits_of_one_owner_are_told_as_one_change() {
    table(
        "at(0) A acquires                -> granted 1 hold, token 1
         at(1) B waits as 5              -> waits
         at(2) B waits as 6              -> waits
         at(3) B waits as 7 lease 300    -> waits
         at(4) B waits as 8              -> waits
         at(5) B waits as 9 lease 400    -> waits
         at(6) A releases                -> 0 left; 5 gets 1 hold, token 2; 6 gets 2 holds, token 2; 7 gets 3 holds, token 2; 8 gets 4 holds, token 2; 9 gets 5 holds, token 2 | end 1 released, put B 5 holds, token 2, 400 left | released acquired acquired acquired acquired acquired
         at(6) the lock is               -> B 5 holds, token 2, until 406
         at(6) B waits as 10             -> granted 6 holds, token 2 | 6 holds of 2",
    );
    table(
        "at(0) A acquires                -> granted 1 hold, token 1
         at(1) B waits as 5              -> waits
         at(2) B waits as 6              -> waits
         at(3) B waits as 7              -> waits
         at(6) A releases                -> 0 left; 5 gets 1 hold, token 2; 6 gets 2 holds, token 2; 7 gets 3 holds, token 2 | end 1 released, put B 1 hold, token 2, 100 left, 3 holds of 2",
    );
}

#[test]
fn a_wait_limit_ends_the_wait_exactly_at_its_instant() {
    table(
        "at(0)     A acquires lease 100   -> granted 1 hold, token 1
         at(10)    B waits as 7 limit 50  -> waits
         at(10)    C waits as 8 limit 20  -> waits
         at(10)    D waits as 9           -> waits
         at(10)    the queues wake         -> at 30
         at(29.999) the timer fires       ->
         at(30)    the timer fires        -> 8 gets nothing
         at(30)    the queues wake         -> at 60
         at(60)    the timer fires        -> 7 gets nothing
         at(60)    the queues wake         -> at 100
         at(60)    the queue is           -> 9 D since 10
         at(100)   the timer fires        -> 9 gets 1 hold, token 2",
    );
}

#[test]
fn a_superseded_wait_leaves_its_limit_behind() {
    table(
        "at(0)   A acquires lease 500           -> granted 1 hold, token 1
         at(10)  B waits as 7 holds 1 limit 50  -> waits
         at(20)  B waits as 8 holds 1 limit 200 -> waits; 7 is superseded
         at(20)  the queues wake                 -> at 220
         at(60)  the timer fires                ->
         at(220) the timer fires                -> 8 gets nothing",
    );
}

#[test]
fn a_waiter_that_leaves_is_skipped() {
    table(
        "at(0) A acquires   -> granted 1 hold, token 1
         at(1) B waits as 7 limit 50 -> waits
         at(2) C waits as 8 -> waits
         at(3) 7 leaves     -> left
         at(3) 7 leaves     -> does not wait
         at(3) the queue is -> 8 C since 2
         at(4) A releases   -> 0 left; 8 gets 1 hold, token 2
         at(5) 8 leaves     -> does not wait
         at(60) the timer fires ->",
    );
}

#[test]
fn the_last_waiter_to_leave_closes_the_line() {
    table(
        "at(0)   A acquires lease 100        -> granted 1 hold, token 1
         at(1)   B waits as 7 limit 50       -> waits
         at(2)   7 leaves                    -> left
         at(2)   the queues wake              -> never
         at(100) C acquires                  -> granted 1 hold, token 2",
    );
}

#[test]
fn a_waiter_that_leaves_makes_way_for_those_whom_the_lock_admits() {
    table(
        "at(0) A acquires shared    -> granted 1 hold, token 1
         at(1) B waits as 7         -> waits
         at(2) C waits as 8 shared  -> waits
         at(3) 7 leaves             -> left; 8 gets 1 hold, token 2",
    );
}

// Grants that could not be told.

#[test]
fn an_undelivered_grant_is_passed_on() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7         -> waits
         at(2) C waits as 8         -> waits
         at(3) A releases           -> 0 left; 7 gets 1 hold, token 2
         at(3) B passes on token 2  -> 8 gets 1 hold, token 3 | end 2 released, put C 1 hold, token 3, 100 left | released acquired",
    );
}

#[test]
fn passing_on_takes_back_one_hold_and_leaves_the_others() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7         -> waits
         at(1) B waits as 8         -> waits
         at(2) C waits as 9         -> waits
         at(3) A releases           -> 0 left; 7 gets 1 hold, token 2; 8 gets 2 holds, token 2
         at(3) B passes on token 2  ->
         at(3) the lock is          -> B 1 hold, token 2, until 103
         at(4) B passes on token 2  -> 9 gets 1 hold, token 3",
    );
}

#[test]
fn what_is_passed_on_is_sent_as_its_result_since_no_command_says_it() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 7         -> waits
         at(1) B waits as 8         -> waits
         at(3) A releases           -> 0 left; 7 gets 1 hold, token 2; 8 gets 2 holds, token 2
         at(3) B passes on token 2  -> | 1 hold of 2 | released
         at(3) B passes on token 2  -> | end 2 released | released",
    );
}

#[test]
fn a_tenure_that_is_over_is_not_passed_on() {
    table(
        "at(0)   A acquires           -> granted 1 hold, token 1
         at(1)   B waits as 7         -> waits
         at(2)   A releases           -> 0 left; 7 gets 1 hold, token 2
         at(2)   B releases           -> 0 left
         at(2)   B passes on token 2  -> | nothing |
         at(3)   B acquires           -> granted 1 hold, token 3
         at(3)   B passes on token 2  -> | nothing |
         at(3)   the lock is          -> B 1 hold, token 3, until 103
         at(103) B passes on token 3  -> | end 3 over | lease-over",
    );
}

// Quarantine.

#[test]
fn a_quarantine_ends_exactly_at_its_instant_and_those_who_wait_are_served_then() {
    table(
        "at(10)  quarantine lasts 200
         at(20)  A waits as 7     -> waits
         at(20)  B waits as 8     -> waits
         at(20)  the lock is due  -> at 210
         at(20)  the queues wake   -> at 210
         at(209.999) the timer fires ->
         at(209.999) C acquires   -> busy
         at(210) the timer fires  -> 7 gets 1 hold, token 1
         at(210) the lock is due  -> at 310",
    );
}

#[test]
fn a_lock_freed_in_quarantine_is_kept_for_those_who_wait() {
    table(
        "at(0)   A acquires lease 40  -> granted 1 hold, token 1
         at(10)  quarantine lasts 200
         at(20)  B waits as 7         -> waits
         at(20)  the queues wake       -> at 40
         at(40)  the timer fires      -> | end 1 over | lease-over
         at(40)  the lock is          -> free
         at(40)  the queues wake       -> at 210
         at(210) the timer fires      -> 7 gets 1 hold, token 2",
    );
}

#[test]
fn a_quarantine_of_no_length_is_none() {
    table(
        "at(5) quarantine lasts 0
         at(5) A acquires         -> granted 1 hold, token 1
         at(5) B renews token 9   -> not held: another has token 1",
    );
}

#[test]
fn a_holder_that_waits_behind_another_re_enters_when_the_lock_became_its_own_behind_our_back() {
    let mut world = World::new();
    for line in [
        "at(0) C acquires              -> granted 1 hold, token 1",
        "at(1) B waits as 7            -> waits",
        "at(2) A waits as 8            -> waits",
    ] {
        world.line(line);
    }
    // As by RENAME of A's lock over this one.
    let mut theirs = World::new();
    theirs.line("at(0) token 9 is heard of");
    theirs.line("at(0) A acquires -> granted 1 hold, token 10");
    world.lock = theirs.lock;
    world.line("at(3) the lock is looked at again -> 8 gets 2 holds, token 10");
    world.line("at(3) the queue is               -> 7 B since 1");
}

#[test]
fn a_wait_for_a_hold_that_was_restored_meanwhile_is_told_of_it_and_counts_none() {
    table(
        "at(0) quarantine lasts 100
         at(1) B waits holds 1 as 7 -> waits
         at(2) B renews token 5     -> token 5; 7 gets 1 hold, token 5 as before
         at(2) the lock is          -> B 1 hold, token 5, until 102",
    );
}

#[test]
fn a_held_lock_is_due_when_the_quarantine_ends_as_well_as_when_its_lease_does() {
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
fn a_forgotten_tenure_is_restored_by_its_token() {
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
fn a_tenure_that_is_known_with_another_count_has_the_one_that_its_owner_names_in_quarantine() {
    table(
        "at(0)   A acquires                -> granted 1 hold, token 1
         at(1)   A renews token 1 holds 3  -> token 1 | put A 1 hold, token 1, 100 left | renewed
         at(1)   quarantine lasts 50
         at(3)   A renews token 1 holds 3  -> token 1 | put A 3 holds, token 1, 100 left | acquired
         at(4)   A renews token 1          -> token 1 | put A 3 holds, token 1, 100 left | renewed
         at(5)   A renews token 1 holds 2  -> token 1 | put A 3 holds, token 1, 100 left | renewed
         at(53)  A releases holds 2        -> 2 left",
    );
}

#[test]
fn the_first_count_that_its_owner_names_in_quarantine_is_right_and_a_later_renewal_names_none() {
    table(
        "at(0)   A acquires                -> granted 1 hold, token 1
         at(1)   quarantine lasts 50
         at(2)   A renews                  -> token 1
         at(3)   A renews token 1 holds 3  -> token 1 | put A 3 holds, token 1, 100 left | acquired
         at(4)   A renews token 1 holds 2  -> token 1 | put A 3 holds, token 1, 100 left | renewed",
    );
    table(
        "at(0)   A acquires                -> granted 1 hold, token 1
         at(1)   quarantine lasts 50
         at(2)   A acquires holds 2        -> granted 2 holds, token 1
         at(3)   A renews token 1 holds 1  -> token 1 | put A 2 holds, token 1, 100 left | renewed",
    );
    table(
        "at(0)   A acquires                -> granted 1 hold, token 1
         at(0)   A acquires                -> granted 2 holds, token 1
         at(1)   quarantine lasts 50
         at(2)   A releases holds 1        -> 1 left
         at(3)   A renews token 1 holds 2  -> token 1 | put A 1 hold, token 1, 100 left | renewed",
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
fn an_owners_own_later_tenure_is_restored_over_its_earlier_one() {
    table(
        "at(0) A acquires                -> granted 1 hold, token 1
         at(1) quarantine lasts 500
         at(2) A renews token 5 holds 2  -> token 5
         at(2) the lock is               -> A 2 holds, token 5, until 102
         at(3) A renews token 4          -> not held: it has token 5",
    );
}

#[test]
fn a_restored_tenure_ends_all_that_were_granted_before_it() {
    table(
        "at(0) A acquires shared  -> granted 1 hold, token 1
         at(0) B acquires shared  -> granted 1 hold, token 2
         at(1) quarantine lasts 500
         at(2) C renews token 2   -> not held: another has token 2
         at(2) C renews token 3   -> token 3
         at(2) the lock is        -> C 1 hold, token 3, until 102",
    );
}

#[test]
fn a_token_more_than_a_day_ahead_is_not_taken() {
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
         at(1) A waits as 7              -> waits
         at(1) B waits as 8              -> waits
         at(1) A waits as 9              -> waits
         at(2) A renews token 5 holds 2  -> token 5; 7 gets 3 holds, token 5; 9 gets 4 holds, token 5
         at(2) the queue is              -> 8 B since 1",
    );
}

#[test]
fn a_promotion_begins_the_quarantine_again() {
    let mut world = World::new();
    world.quarantine = Quarantine::new(instant(0), span(100));
    let now = |ms| Now { mono: instant(ms), wall: WallTime::EPOCH };
    assert!(world.quarantine.in_force(now(99)));
    assert!(!world.quarantine.in_force(now(100)));
    world.quarantine.restart(instant(300));
    assert_eq!(world.quarantine.ends(instant(301)), Some(instant(400)));
    world.quarantine.set_length(span(50));
    assert_eq!(world.quarantine.ends(instant(301)), Some(instant(350)));
    assert_eq!(world.quarantine.ends(instant(350)), None);
    world.quarantine.set_length(Span::default());
    assert_eq!(world.quarantine.ends(instant(300)), None);
}

// Tokens and counts.

#[test]
fn tokens_grow_whatever_the_wall_clock_does() {
    table(
        "at(0) A acquires                 -> granted 1 hold, token 1
         at(0) A releases                 -> 0 left
         at(1) the wall clock shows 7000
         at(1) A acquires                 -> granted 1 hold, token 7000
         at(1) A releases                 -> 0 left
         at(2) the wall clock shows 300
         at(2) A acquires                 -> granted 1 hold, token 7001
         at(2) A releases                 -> 0 left
         at(3) token 9000 is heard of
         at(3) B acquires                 -> granted 1 hold, token 9001",
    );
}

#[test]
fn what_waited_before_the_quarantine_was_set_is_granted_the_lease_it_asked_for() {
    table(
        "at(0)  A acquires                     -> granted 1 hold, token 1
         at(1)  B waits lease 500 as 7         -> waits
         at(2)  quarantine lasts 30
         at(40) A releases                     -> 0 left; 7 gets 1 hold, token 2
         at(40) the lock is                    -> B 1 hold, token 2, until 540",
    );
}

#[test]
fn a_tenure_that_ended_in_this_quarantine_or_before_it_is_not_restored() {
    let mut world = World::new();
    world.line("at(0) quarantine lasts 100");
    world.quarantine_memory.ended = FencingToken::new(7);
    world.line("at(1) A renews token 6 -> not held: free");
    world.line("at(1) A renews token 7 -> not held: free");
    world.line("at(1) A renews token 8 -> token 8");
}

#[test]
fn a_tenure_whose_lease_was_over_in_this_quarantine_may_come_back_but_nothing_older() {
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
fn a_holder_that_names_fewer_slots_than_there_are_holders_is_not_let_in() {
    table(
        "at(0) A acquires shared -> granted 1 hold, token 1
         at(1) B acquires shared -> granted 1 hold, token 2
         at(2) A acquires        -> busy
         at(3) B releases        -> 0 left
         at(4) A acquires        -> granted 2 holds, token 1",
    );
}

#[test]
fn what_was_known_when_data_was_loaded_is_only_remembered_and_the_quarantine_ends_as_before() {
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
fn what_has_been_seen_adds_up() {
    let [five, six, seven] = [5, 6, 7].map(FencingToken::new);
    let nothing = QuarantineMemory::default();
    assert!(nothing.is_empty());
    let one = QuarantineMemory { ended: seven, ..nothing };
    let other = QuarantineMemory { ended: six, renewed: six, holds_named: seven };
    assert!(!one.is_empty());
    assert_eq!(one.merge(other), QuarantineMemory { ended: seven, ..other });
    assert_eq!(other.merge(one), QuarantineMemory { ended: seven, ..other });
    assert_eq!(nothing.merge(other), other);
    let after = |token: Option<FencingToken>| other.after(token.unwrap());
    assert_eq!(after(five), other);
    assert_eq!(after(six), QuarantineMemory { holds_named: seven, ..nothing });
    assert_eq!(after(seven), nothing);
}

#[test]
fn a_tenure_that_may_be_over_is_not_entered_in_quarantine() {
    table(
        "at(0)  A acquires                 -> granted 1 hold, token 1
         at(1)  quarantine lasts 200
         at(2)  A waits holds 1 as 7       -> waits
         at(2)  B waits as 8               -> waits
         at(3)  the lock is looked at again ->
         at(4)  C renews token 2           -> token 2 | end 1 released, put C 1 hold, token 2, 100 left | released acquired
         at(4)  the queue is               -> 7 A since 2, 8 B since 2",
    );
}

#[test]
fn a_holder_that_renews_in_quarantine_re_enters_with_its_own_waits() {
    table(
        "at(0)  A acquires                 -> granted 1 hold, token 1
         at(1)  quarantine lasts 200
         at(2)  B waits as 8               -> waits
         at(2)  A waits holds 1 as 7       -> waits
         at(3)  A renews token 1           -> token 1; 7 gets 1 hold, token 1 as before
         at(4)  A acquires holds 1         -> granted 1 hold, token 1",
    );
}

#[test]
fn a_restored_token_is_passed_by_the_next() {
    table(
        "at(0)   quarantine lasts 50
         at(1)   A renews token 77    -> token 77
         at(2)   A releases           -> 0 left
         at(50)  B acquires           -> granted 1 hold, token 78",
    );
}

#[test]
fn holds_are_counted_as_far_as_they_go() {
    table(
        "at(0) quarantine lasts 50
         at(1) A renews token 5 holds 4294967294   -> token 5
         at(2) A acquires                          -> granted 4294967295 holds, token 5
         at(3) A acquires holds 4294967295         -> granted 4294967295 holds, token 5
         at(3) the lock is                         -> A 4294967295 holds, token 5, until 103
         at(3) A acquires lease 900                -> too many holds | nothing |",
    );
}

#[test]
fn a_wait_that_is_one_hold_too_many_is_told_so() {
    table(
        "at(0) quarantine lasts 50
         at(1) A waits as 7                        -> waits
         at(1) A waits as 8                        -> waits
         at(2) A renews token 5 holds 4294967294   -> token 5; 7 gets 4294967295 holds, token 5; 8 gets too many holds",
    );
}

#[test]
fn the_last_token_is_given_once_and_then_everybody_is_told() {
    table(
        "at(0) token 9007199254740990 is heard of
         at(0) A acquires   -> granted 1 hold, token 9007199254740991
         at(1) B waits as 7 -> waits
         at(2) C waits as 8 -> waits
         at(3) A releases   -> 0 left; 7 gets tokens used up; 8 gets tokens used up
         at(4) A acquires   -> tokens used up | nothing |
         at(4) the lock is  -> free
         at(4) the queue is -> nobody",
    );
}

// How many at once.

#[test]
fn slots_admit_as_many_as_every_holder_named() {
    table(
        "at(0) A acquires slots 3   -> granted 1 hold, token 1
         at(1) B acquires slots 2   -> granted 1 hold, token 2
         at(2) C acquires slots 3   -> busy
         at(2) C acquires shared    -> busy
         at(3) B releases           -> 0 left
         at(4) C acquires slots 3   -> granted 1 hold, token 3
         at(5) D acquires slots 3   -> granted 1 hold, token 4
         at(6) E acquires slots 9   -> busy
         at(6) the lock is          -> A 1 hold, token 1, until 100, slots 3; C 1 hold, token 3, until 104, slots 3; D 1 hold, token 4, until 105, slots 3",
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
fn all_in_line_whom_the_lock_admits_are_granted_together_up_to_the_first_it_does_not() {
    table(
        "at(0) A acquires           -> granted 1 hold, token 1
         at(1) B waits as 5 shared  -> waits
         at(1) C waits as 6 shared  -> waits
         at(1) D waits as 7         -> waits
         at(1) E waits as 8 shared  -> waits
         at(2) A releases           -> 0 left; 5 gets 1 hold, token 2; 6 gets 1 hold, token 3
         at(3) B releases           -> 0 left
         at(4) C releases           -> 0 left; 7 gets 1 hold, token 4
         at(5) D releases           -> 0 left; 8 gets 1 hold, token 5",
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
fn a_re_entry_keeps_the_smaller_number() {
    table(
        "at(0) A acquires slots 2  -> granted 1 hold, token 1
         at(1) A acquires shared   -> granted 2 holds, token 1
         at(1) the lock is         -> A 2 holds, token 1, until 101, slots 2
         at(2) B acquires shared   -> granted 1 hold, token 2
         at(3) C acquires shared   -> busy",
    );
}

#[test]
fn a_re_entry_that_names_a_smaller_number_sets_it() {
    table(
        "at(0) A acquires slots 5          -> granted 1 hold, token 1
         at(1) A acquires slots 2 lease 10 -> granted 2 holds, token 1 | put A 2 holds, token 1, 99 left | acquired
         at(1) the lock is                 -> A 2 holds, token 1, until 100, slots 2
         at(2) B acquires slots 5          -> granted 1 hold, token 2
         at(3) C acquires slots 5          -> busy",
    );
}

// What is sent to replicas and the AOF, and what listeners hear.

#[test]
fn what_changes_nothing_is_not_sent() {
    table(
        "at(0) A releases                     -> not held: free | nothing |
         at(0) A renews                       -> not held: free | nothing |
         at(0) A acquires holds 2             -> holds do not follow: has 0 | nothing |
         at(0) A acquires                     -> granted 1 hold, token 1
         at(0) B acquires                     -> busy | nothing |
         at(0) B waits as 7                   -> waits | nothing |
         at(0) A acquires holds 1             -> granted 1 hold, token 1 | nothing |
         at(0) A releases holds 1             -> 1 left | nothing |
         at(0) A releases holds 3             -> holds do not follow: has 1 | nothing |
         at(0) the timer fires                -> | nothing |",
    );
}

#[test]
fn a_grant_a_re_entry_and_a_renewal_are_sent_as_their_result() {
    table(
        "at(0)  A acquires lease 90       -> granted 1 hold, token 1  | put A 1 hold, token 1, 90 left | acquired
         at(10) A acquires lease 10       -> granted 2 holds, token 1 | 2 holds of 1 | acquired
         at(20) A renews lease 30         -> token 1                  | put A 2 holds, token 1, 30 left | renewed
         at(30) A acquires lease 200 holds 2 slots 5 -> granted 2 holds, token 1 | put A 2 holds, token 1, 200 left | renewed",
    );
}

#[test]
fn a_release_that_nobody_waits_for_is_sent_as_it_was_given() {
    table(
        "at(0) A acquires         -> granted 1 hold, token 1
         at(0) A acquires         -> granted 2 holds, token 1
         at(0) A acquires         -> granted 3 holds, token 1
         at(0) A acquires         -> granted 4 holds, token 1
         at(1) A releases         -> 3 left | verbatim | released
         at(1) A releases holds 2 -> 2 left | verbatim | released
         at(1) B waits as 7       -> waits
         at(1) A releases token 1 -> 1 left | verbatim | released
         at(1) 7 leaves           -> left
         at(1) A releases all     -> 0 left | verbatim | released",
    );
}

#[test]
fn a_release_that_hands_over_is_sent_with_the_grant() {
    table(
        "at(0) A acquires   -> granted 1 hold, token 1
         at(1) B waits as 7 -> waits
         at(1) B waits as 8 -> waits
         at(2) A releases   -> 0 left; 7 gets 1 hold, token 2; 8 gets 2 holds, token 2 | end 1 released, put B 1 hold, token 2, 100 left, 2 holds of 2 | released acquired acquired",
    );
}

#[test]
fn a_lease_that_is_over_is_sent_with_what_follows() {
    table(
        "at(0)   A acquires slots 2 lease 100 -> granted 1 hold, token 1
         at(0)   B acquires slots 2 lease 300 -> granted 1 hold, token 2
         at(100) B releases                   -> 0 left | end 1 over, end 2 released | lease-over released
         at(110) C acquires lease 10          -> granted 1 hold, token 3
         at(120) C releases                   -> not held: free | end 3 over | lease-over
         at(120) C acquires lease 10          -> granted 1 hold, token 4
         at(130) D acquires                   -> granted 1 hold, token 5 | end 4 over, put D 1 hold, token 5, 100 left | lease-over acquired",
    );
}

#[test]
fn a_repeated_release_does_not_make_the_end_of_anothers_lease_its_own() {
    table(
        "at(0)   A acquires lease 100   -> granted 1 hold, token 1
         at(100) B releases holds 0     -> 0 left | end 1 over | lease-over",
    );
}

#[test]
fn a_replica_follows_a_release_whatever_it_thinks_of_the_lease() {
    table(
        "at(0)   A acquires         -> granted 1 hold, token 1
         at(0)   A acquires         -> granted 2 holds, token 1
         at(0)   A acquires         -> granted 3 holds, token 1
         at(1)   A released holds 2 -> 2 left | verbatim | released
         at(1)   A released holds 2 -> 2 left | nothing |
         at(1)   A released token 2 -> not held: it has token 1 | nothing |
         at(200) A released         -> 1 left | verbatim | released
         at(200) the lock is        -> A 1 hold, token 1, until 100
         at(200) A released         -> 0 left | verbatim | released
         at(200) A released         -> not held: free | nothing |",
    );
}

#[test]
fn what_a_replica_hears_has_happened_there_as_well() {
    let mut world = World::new();
    world.line("at(0) A acquires -> granted 1 hold, token 1");
    world.line("at(0) A acquires -> granted 2 holds, token 1");
    let known = world.lock.holders().next().unwrap().cloned();
    let put = |holds, token| Change::Put(Holder { holds, token, ..known.clone() });
    let other = Change::Put(Holder { owner: owner("B"), ..known.clone() });
    for (change, happened) in [
        (Change::Count(token(1), 3), Event::Acquired),
        (Change::Count(token(1), 1), Event::Released),
        (Change::End(token(1), End::Released), Event::Released),
        (Change::End(token(1), End::LeaseOver), Event::LeaseOver),
        (put(2, token(1)), Event::Renewed),
        (put(3, token(1)), Event::Acquired),
        (put(2, token(9)), Event::Acquired),
        (other, Event::Acquired),
    ] {
        assert_eq!(event_of(&world.lock, &change), happened, "{change:?}");
    }
}

#[test]
fn a_lock_whose_key_was_dropped_is_sent_whole() {
    let mut world = World::new();
    world.line("at(0) A acquires shared lease 100 -> granted 1 hold, token 1");
    world.line("at(0) B acquires shared lease 200 -> granted 1 hold, token 2");
    world.line("at(0) B acquires shared lease 200 -> granted 2 holds, token 2");
    world.line("at(50) B releases -> 1 left | verbatim | released");
    world.effects.replicate_whole_lock(&world.lock, world.now());
    assert_eq!(world.sent(), "put A 1 hold, token 1, 50 left, put B 1 hold, token 2, 150 left");
}

#[test]
fn of_a_lock_whose_key_was_dropped_and_that_is_free_it_is_told_that_no_shadow_is_left() {
    let mut world = World::new();
    world.line("at(0) A acquires lease 100 -> granted 1 hold, token 1");
    world.line("at(50) A releases -> 0 left | verbatim | released");
    world.effects.replicate_whole_lock(&world.lock, world.now());
    let Propagation::Changes(payload) = world.effects.propagation() else { panic!("nothing is sent") };
    assert_eq!(encoding::decode_message(payload, Origin::Live, world.now()), Ok(Message::DroppedLock(None)));
}

#[test]
fn a_whole_lock_applied_to_nothing_is_the_lock() {
    let mut world = World::new();
    world.line("at(0) A acquires slots 2 lease 100 -> granted 1 hold, token 1");
    world.line("at(20) B acquires slots 2 lease 200 -> granted 1 hold, token 2");
    world.effects.replicate_whole_lock(&world.lock, world.now());
    let mut copy = Lock::new();
    for change in world.changes_sent() {
        copy.apply(change, world.now());
    }
    assert!(copy.holders().eq(world.lock.holders()), "{copy:?} {:?}", world.lock);
    assert_eq!(copy.expires_at(), world.lock.expires_at());
}

#[test]
fn the_key_lives_as_long_as_the_last_lease_by_the_wall_clock_of_its_last_change() {
    let mut world = World::new();
    let expires_at = |world: &World| world.lock.expires_at().as_millis();
    world.line("at(0) the wall clock shows 1000000");
    world.line("at(0) A acquires shared lease 100 -> granted 1 hold, token 1000000");
    assert_eq!(expires_at(&world), 1_100);
    world.line("at(50) B acquires shared lease 200 -> granted 1 hold, token 1000001");
    assert_eq!(expires_at(&world), 1_200, "the wall clock still shows 1000 ms");
    // A step of the wall clock moves it only when the last lease changes.
    world.line("at(60) the wall clock shows 9000000");
    world.line("at(60) A renews lease 100 -> token 1000000");
    assert_eq!(expires_at(&world), 1_200);
    world.line("at(60) B renews lease 300 -> token 1000001");
    assert_eq!(expires_at(&world), 9_300);
    world.line("at(60) B releases -> 0 left");
    assert_eq!(expires_at(&world), 9_100);
}

#[test]
fn effects_that_are_cleared_say_nothing() {
    let mut world = World::new();
    world.line("at(0) A acquires -> granted 1 hold, token 1");
    world.line("at(1) B waits as 7 -> waits");
    world.line("at(2) A releases -> 0 left; 7 gets 1 hold, token 2");
    assert!(world.effects.changed());
    world.effects.clear();
    assert!(
        !world.effects.changed() && world.effects.completions.is_empty() && world.effects.events.is_empty()
    );
    assert_eq!(world.effects.propagation(), Propagation::Nothing);
}

// The room: how many may wait, what is due, and locks whose key has gone early.

#[test]
fn a_line_takes_as_many_as_its_cap_and_so_do_all_together() {
    let mut queues = WaitQueues::new();
    let caps = Limits { per_lock: 2, total: 3 };
    let mut join = |key: &str, owner: &str, handle: u32| {
        let wait_request = wait_request(owner, handle, None, None);
        queues
            .may_join(Db(0), key.as_bytes(), &wait_request.request, caps)
            .map(|()| queues.join(Db(0), key.as_bytes(), wait_request, instant(0)).is_some())
    };
    assert_eq!(join("k", "A", 1), Ok(false));
    assert_eq!(join("k", "A", 2), Ok(false));
    assert_eq!(join("k", "B", 3), Err(Full::Lock));
    assert_eq!(join("l", "B", 4), Ok(false));
    assert_eq!(join("m", "C", 5), Err(Full::Total));
    assert_eq!(join("k", "C", 6), Err(Full::Total), "what is full for all is told first");
    assert_eq!(queues.waiters(), 3);
    assert_eq!(queues.leave(2).unwrap().wait_request.handle, 2);
    assert_eq!(queues.waiters(), 2);
    let request = wait_request("C", 7, None, None).request;
    assert_eq!(queues.may_join(Db(0), b"k", &request, caps), Ok(()));
    let lower = Limits { per_lock: 1, total: 3 };
    assert_eq!(queues.may_join(Db(0), b"k", &request, lower), Err(Full::Lock));
    assert_eq!(queues.may_join(Db(1), b"k", &request, lower), Ok(()), "another lock of the same name");
}

#[test]
fn where_nobody_may_wait_nobody_does() {
    let queues: WaitQueues<u32> = WaitQueues::new();
    let request = wait_request("A", 1, None, None).request;
    for (per_lock, total, full) in [(0, 9, Full::Lock), (9, 0, Full::Total), (0, 0, Full::Total)] {
        assert_eq!(queues.may_join(Db(0), b"k", &request, Limits { per_lock, total }), Err(full));
    }
}

#[test]
fn taking_over_a_place_is_no_further_waiter() {
    let mut queues = WaitQueues::new();
    let full = Limits { per_lock: 1, total: 1 };
    queues.join(Db(0), b"k", wait_request("A", 1, Some(1), None), instant(5));
    for (caps, before, after) in [(full, 1, 2), (Limits { per_lock: 0, total: 0 }, 2, 3)] {
        let wait_request = wait_request("A", after, Some(1), None);
        assert_eq!(queues.may_join(Db(0), b"k", &wait_request.request, caps), Ok(()));
        let wake = queues.join(Db(0), b"k", wait_request, instant(9)).unwrap();
        assert_eq!((wake.waiter.wait_request.handle, wake.outcome), (before, Outcome::Superseded));
        assert_eq!(queues.waiters(), 1);
    }
    for refused in [wait_request("A", 4, None, None), wait_request("B", 4, Some(1), None)] {
        assert_eq!(queues.may_join(Db(0), b"k", &refused.request, full), Err(Full::Total));
    }
    assert_eq!(
        queues.may_join(Db(0), b"l", &wait_request("A", 4, Some(1), None).request, full),
        Err(Full::Total)
    );
}

#[test]
fn a_place_is_taken_over_within_one_lock_alone() {
    let mut queues = WaitQueues::new();
    let places = [(Db(0), "k", 1), (Db(0), "l", 2), (Db(1), "k", 3)];
    for (db, key, handle) in places {
        let joined = queues.join(db, key.as_bytes(), wait_request("A", handle, Some(1), None), instant(0));
        assert!(joined.is_none());
    }
    for (db, key, handle) in places {
        let line = queues.queue(db, key.as_bytes()).unwrap();
        assert_eq!(handles(&queues, db, key), [handle]);
        assert_eq!(queues.name(line).unwrap(), (db, key.as_bytes().into()));
    }
    assert_eq!(queues.queues_of(Db(0)).count(), 2);
    assert_eq!(queues.queues_of(Db(1)).count(), 1);
    assert_eq!(queues.queues().count(), 3);
}

#[test]
fn what_is_waited_for_in_a_database_is_told_with_how_many_wait_and_since_when() {
    let mut queues = WaitQueues::new();
    for (db, key, handle) in [(Db(0), "k", 1), (Db(0), "k", 2), (Db(0), "l", 3), (Db(1), "k", 4)] {
        queues.join(db, key.as_bytes(), wait_request("A", handle, None, None), instant(i64::from(handle)));
    }
    let contended = |queues: &WaitQueues<u32>, db| {
        let told = queues.contended(db).map(|(key, waiters, since)| (key.to_vec(), waiters, since));
        let mut told: Vec<_> = told.collect();
        told.sort();
        told
    };
    assert_eq!(contended(&queues, Db(0)), [(b"k".to_vec(), 2, instant(1)), (b"l".to_vec(), 1, instant(3))]);
    queues.leave(1);
    queues.leave(3);
    assert_eq!(contended(&queues, Db(0)), [(b"k".to_vec(), 1, instant(2))]);
    assert_eq!(contended(&queues, Db(1)), [(b"k".to_vec(), 1, instant(4))]);
    assert_eq!(contended(&queues, Db(2)), []);
}

#[test]
fn a_line_without_waiters_does_not_exist() {
    let mut queues = WaitQueues::new();
    queues.join(Db(0), b"k", wait_request("A", 1, None, Some(50)), instant(0));
    let line = queues.queue(Db(0), b"k").unwrap();
    queues.set_due(line, Some(instant(70)));
    queues.leave(1);
    assert_eq!(queues.queue(Db(0), b"k"), None);
    assert_eq!(queues.name(line), None);
    assert_eq!(queues.queues_of(Db(0)).count(), 0);
    assert_eq!(queues.next_due(), None);
    queues.set_due(line, Some(instant(70)));
    assert_eq!(queues.next_due(), None, "what does not exist is never due");
    queues.join(Db(0), b"k", wait_request("A", 1, None, None), instant(0));
    assert_ne!(queues.queue(Db(0), b"k"), Some(line), "names are not used again");
}

#[test]
fn a_due_line_is_told_once_at_its_instant() {
    let mut queues = WaitQueues::new();
    for (key, handle) in [("k", 1), ("l", 2)] {
        queues.join(Db(0), key.as_bytes(), wait_request("A", handle, None, None), instant(0));
    }
    let (k, l) = (queues.queue(Db(0), b"k").unwrap(), queues.queue(Db(0), b"l").unwrap());
    queues.set_due(k, Some(instant(90)));
    queues.set_due(l, Some(instant(60)));
    assert_eq!(queues.next_due(), Some(instant(60)));
    queues.set_due(k, Some(instant(30)));
    assert_eq!(queues.next_due(), Some(instant(30)));
    assert_eq!((queues.due(k), queues.due(l)), (Some(instant(30)), Some(instant(60))));
    assert_eq!(queues.pop_due(instant(29)), None);
    assert_eq!(queues.pop_due(instant(60)), Some(k));
    assert_eq!(queues.due(k), None);
    assert_eq!(queues.pop_due(instant(60)), Some(l));
    assert_eq!(queues.pop_due(instant(999)), None);
    assert_eq!(queues.next_due(), None);
    queues.set_due(k, Some(instant(95)));
    queues.set_due(k, None);
    assert_eq!(queues.next_due(), None);
}

#[test]
fn the_room_wakes_for_the_first_lease_or_limit() {
    let mut queues = WaitQueues::new();
    queues.join(Db(0), b"k", wait_request("A", 1, None, Some(40)), instant(0));
    queues.join(Db(0), b"l", wait_request("A", 2, None, Some(80)), instant(0));
    assert_eq!(queues.next_due(), Some(instant(40)));
    queues.set_due(queues.queue(Db(0), b"l").unwrap(), Some(instant(20)));
    assert_eq!(queues.next_due(), Some(instant(20)));
    assert!(queues.pop_limit_reached(instant(39)).is_none());
    assert_eq!(queues.pop_limit_reached(instant(90)).unwrap().wait_request.handle, 1);
    assert_eq!(queues.pop_limit_reached(instant(90)).unwrap().wait_request.handle, 2);
    assert!(queues.pop_limit_reached(instant(90)).is_none());
    assert_eq!(queues.next_due(), None, "a line that closes is not due");
}

#[test]
fn a_round_goes_through_the_lines_and_on_from_where_it_was() {
    let mut queues = WaitQueues::new();
    for (key, handle) in [("k", 1), ("l", 2), ("m", 3)] {
        queues.join(Db(0), key.as_bytes(), wait_request("A", handle, None, None), instant(0));
    }
    let [k, l, m] = ["k", "l", "m"].map(|key| queues.queue(Db(0), key.as_bytes()).unwrap());
    let after = |queues: &WaitQueues<u32>, last| queues.after(last).map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(after(&queues, None), [k, l, m]);
    assert_eq!(after(&queues, Some(k)), [l, m]);
    assert_eq!(after(&queues, Some(m)), []);
    // Where the round was, nobody may wait any more.
    queues.leave(2);
    assert_eq!(after(&queues, Some(l)), [m]);
    assert_eq!(after(&queues, None), [k, m]);
}

#[test]
fn a_long_key_is_swept_by_a_short_key_of_its_slot() {
    let mut queues = WaitQueues::new();
    let long = [b'k'; LONGEST_SWEPT_KEY + 1];
    queues.join(Db(0), &long, wait_request("A", 1, None, None), instant(0));
    let queue = queues.queue(Db(0), &long).unwrap();
    assert_eq!(queues.slot_key(queue), Some(slot_key(&long)));
    assert_eq!(queues.slot_key(queue), Some(slot_key(&long)), "as it was found before");
    queues.leave(1);
    assert_eq!(queues.slot_key(queue), None);
}

// The notation.

/// Plays a table on a lock of its own.
#[track_caller]
fn table(lines: &str) {
    let mut world = World::new();
    for line in lines.lines() {
        world.line(line);
    }
}

fn instant(ms: i64) -> Instant {
    Instant::from_micros(ms * 1_000)
}

fn span(ms: u64) -> Span {
    Span::from_millis(ms).unwrap()
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner::new(name.as_bytes()).unwrap()
}

fn wait_request(name: &str, handle: u32, holds: Option<u32>, limit: Option<i64>) -> WaitRequest<u32> {
    let request = AcquireRequest { owner: owner(name), lease: span(100), holds, slots: Slots::EXCLUSIVE };
    WaitRequest { request, limit: limit.map(instant), handle }
}

fn handles(queues: &WaitQueues<u32>, db: Db, key: &str) -> Vec<u32> {
    let line = queues.queue(db, key.as_bytes());
    line.into_iter()
        .flat_map(|line| queues.waiters_in(line))
        .map(|waiter| waiter.wait_request.handle)
        .collect()
}

const DB: Db = Db(0);
const KEY: &[u8] = b"lock";

/// One lock and all that a step on it needs.
struct World {
    lock: Lock,
    queues: WaitQueues<u32>,
    tokens: TokenSource,
    quarantine: Quarantine,
    effects: Effects<u32>,
    counters: Counters,
    mono: Instant,
    wall: WallTime,
    quarantine_memory: QuarantineMemory,
}

impl World {
    fn new() -> Self {
        Self {
            lock: Lock::new(),
            queues: WaitQueues::new(),
            tokens: TokenSource::new(),
            quarantine: Quarantine::new(instant(0), Span::default()),
            effects: Effects::default(),
            counters: Counters::default(),
            mono: instant(0),
            wall: WallTime::EPOCH,
            quarantine_memory: QuarantineMemory::default(),
        }
    }

    fn now(&self) -> Now {
        Now { mono: self.mono, wall: self.wall }
    }

    /// Does what one line of a table says and compares what comes of it.
    #[track_caller]
    fn line(&mut self, line: &str) {
        let (done, expected) = line.split_once("->").unwrap_or((line, ""));
        let (at, words) =
            done.trim().strip_prefix("at(").and_then(|rest| rest.split_once(')')).expect("at(ms) ...");
        let at = at_micros(at);
        assert!(self.mono <= at, "time goes backward: {line}");
        self.mono = at;
        self.effects.clear();
        let reply = self.act(words);

        let mut columns = expected.split('|').map(str::trim);
        let told =
            reply.into_iter().chain(self.effects.completions.iter().map(told)).collect::<Vec<_>>().join("; ");
        assert_eq!(told, columns.next().unwrap_or(""), "{line}");
        if let Some(sent) = columns.next() {
            assert_eq!(self.sent(), sent, "sent by: {line}");
        }
        if let Some(events) = columns.next() {
            let happened: Vec<_> = self.effects.events.iter().map(event).collect();
            assert_eq!(happened.join(" "), events, "happened at: {line}");
        }
        self.check(line);
    }

    fn act(&mut self, words: &str) -> Option<String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let (subject, verb, rest) = (words[0], words[1], &words[2..]);
        let mut options = Options(rest.to_vec());
        let reply = match (subject, verb) {
            ("the", "lock") if rest == ["is"] => return Some(self.holders()),
            ("the", "queue") if rest == ["is"] => return Some(self.queue()),
            ("the", "lock") if rest == ["is", "looked", "at", "again"] => {
                self.step(|step| step.recheck());
                return None;
            }
            ("the", "counters") if rest == ["are"] => return Some(counted(&self.counters)),
            ("the", "lock") if rest == ["is", "due"] => return Some(when(self.step(|step| step.due()))),
            ("the", "queues") if rest == ["wake"] => return Some(when(self.queues.next_due())),
            ("the", "timer") if rest == ["fires"] => {
                self.fire();
                return None;
            }
            ("the", "wall") => {
                self.wall = WallTime::from_micros(options.after(&["clock", "shows"]).unwrap());
                None
            }
            ("token", number) if rest == ["is", "heard", "of"] => {
                self.tokens.observe(token(number.parse().unwrap()));
                return None;
            }
            ("quarantine", "lasts") => {
                let length = span(rest[0].parse().unwrap());
                self.quarantine = Quarantine::new(self.mono, length);
                return None;
            }
            (handle, "leaves") => {
                let left = self.queues.leave(handle.parse().unwrap());
                self.step(|step| step.expire_and_serve());
                Some(left.map_or("does not wait", |_| "left").to_owned())
            }
            (name, "acquires") => Some(self.acquire(name, None, &mut options)),
            (name, "waits") => {
                let handle = options.after(&["as"]).unwrap();
                Some(self.acquire(name, Some(handle), &mut options))
            }
            (name, "releases" | "released") => {
                let left = match (options.flag("all"), options.after(&["holds"])) {
                    (true, None) => HoldsLeft::None,
                    (false, Some(holds)) => HoldsLeft::Exactly(holds),
                    (false, None) => HoldsLeft::OneLess,
                    (true, Some(_)) => panic!("all or a count"),
                };
                let token = options.after(&["token"]).map(token);
                let request = ReleaseRequest { owner: owner(name), left, token };
                let left = self.step(|step| match verb {
                    "released" => step.apply_release(&request),
                    _ => step.release(&request),
                });
                Some(left.map_or_else(refused, |left| format!("{left} left")))
            }
            (name, "renews") => {
                let request = RenewRequest {
                    owner: owner(name),
                    lease: span(options.after(&["lease"]).unwrap_or(100)),
                    token: options.after(&["token"]).map(token),
                    holds: options.after(&["holds"]),
                };
                let token = self.step(|step| step.renew(&request));
                Some(token.map_or_else(refused, |token| format!("token {}", token.get())))
            }
            (name, "passes") => {
                let token = token(options.after(&["on", "token"]).unwrap());
                self.step(|step| step.pass_on(&owner(name), token));
                None
            }
            _ => panic!("what does {words:?} mean?"),
        };
        assert!(options.0.is_empty(), "what does {:?} mean?", options.0);
        reply
    }

    fn acquire(&mut self, name: &str, waits_as: Option<u32>, options: &mut Options) -> String {
        let slots = if options.flag("shared") { Some(0) } else { options.after(&["slots"]) };
        let request = AcquireRequest {
            owner: owner(name),
            lease: span(options.after(&["lease"]).unwrap_or(100)),
            holds: options.after(&["holds"]),
            slots: Slots::new(slots.unwrap_or(1)).unwrap(),
        };
        let limit = options.after(&["limit"]).map(|limit| self.mono.after(span(limit)));
        match (self.step(|step| step.acquire(&request)), waits_as) {
            (Ok(Acquired::Granted(grant)), _) => {
                format!("granted {}, token {}", holds(grant.holds), grant.token.get())
            }
            (Ok(Acquired::Busy), None) => "busy".to_owned(),
            (Ok(Acquired::Busy), Some(handle)) => {
                let wait_request = WaitRequest { request, limit, handle };
                let superseded = self.queues.join(DB, KEY, wait_request, self.mono);
                self.effects.completions.extend(superseded);
                // As a caller must: the place taken over may be the first, and a line that opens is due.
                self.step(|step| step.expire_and_serve());
                "waits".to_owned()
            }
            (Err(refusal), _) => refused(refusal),
        }
    }

    /// What the caller's timer does: limits first, then leases.
    fn fire(&mut self) {
        while let Some(waiter) = self.queues.pop_limit_reached(self.mono) {
            self.effects.completions.push(Completion { waiter, outcome: Outcome::NotAcquired });
        }
        if let Some(line) = self.queues.pop_due(self.mono) {
            assert_eq!(self.queues.queue(DB, KEY), Some(line));
            self.step(|step| step.expire_and_serve());
        }
        assert_eq!(self.queues.pop_due(self.mono), None, "what has been looked at is due again at once");
    }

    fn step<T>(&mut self, act: impl FnOnce(&mut Decision<'_, u32>) -> T) -> T {
        let now = self.now();
        let mut step = Decision {
            lock: &mut self.lock,
            queue: self.queues.queue(DB, KEY),
            queues: &mut self.queues,
            tokens: &mut self.tokens,
            quarantine: self.quarantine,
            quarantine_memory: self.quarantine_memory,
            effects: &mut self.effects,
            counters: &mut self.counters,
            now,
        };
        let done = act(&mut step);
        let due = step.due();
        self.quarantine_memory = self.quarantine_memory.merge(self.effects.quarantine_memory());
        if let Some(line) = self.queues.queue(DB, KEY) {
            self.queues.set_due(line, due);
        }
        done
    }

    /// A lock never stands free while somebody who may have it waits.
    #[track_caller]
    fn check(&self, line: &str) {
        let first = self.queues.queue(DB, KEY).and_then(|line| self.queues.front(line));
        let fits = |waiter: &Waiter<u32>| self.lock.admits(waiter.wait_request.request.slots);
        let looked_at = self.lock.first_deadline().is_none_or(|deadline| self.mono < deadline);
        if looked_at && !self.quarantine.in_force(self.now()) {
            assert!(!first.is_some_and(fits), "the first in line has been left waiting: {line}");
        }
    }

    fn holders(&self) -> String {
        let told = self.lock.holders().map(|holder| {
            let slots = match holder.slots.number() {
                0 => ", shared".to_owned(),
                1 => String::new(),
                number => format!(", slots {number}"),
            };
            format!(
                "{} {}, token {}, until {}{slots}",
                holder.owner.to_bytes().escape_ascii(),
                holds(holder.holds),
                holder.token.get(),
                instant(0).until(holder.deadline).as_millis(),
            )
        });
        let told: Vec<_> = told.collect();
        if told.is_empty() { "free".to_owned() } else { told.join("; ") }
    }

    fn queue(&self) -> String {
        let line = self.queues.queue(DB, KEY);
        let told = line.into_iter().flat_map(|line| self.queues.waiters_in(line)).map(|waiter| {
            let (handle, owner) = (waiter.wait_request.handle, &waiter.wait_request.request.owner);
            let since = waiter.since.since(instant(0)).as_millis();
            format!("{handle} {} since {since}", owner.to_bytes().escape_ascii())
        });
        let told: Vec<_> = told.collect();
        if told.is_empty() { "nobody".to_owned() } else { told.join(", ") }
    }

    fn changes_sent(&self) -> Vec<Change> {
        match self.effects.propagation() {
            Propagation::Changes(payload) => encoding::decode(payload, Origin::Live, self.now()).unwrap(),
            Propagation::Nothing | Propagation::Verbatim => panic!("no changes are sent"),
        }
    }

    fn sent(&self) -> String {
        match self.effects.propagation() {
            Propagation::Nothing => "nothing".to_owned(),
            Propagation::Verbatim => "verbatim".to_owned(),
            Propagation::Changes(_) => {
                let changes = self.changes_sent();
                changes.iter().map(|change| self.change(change)).collect::<Vec<_>>().join(", ")
            }
        }
    }

    fn change(&self, change: &Change) -> String {
        match change {
            Change::Put(holder) => format!(
                "put {} {}, token {}, {} left",
                holder.owner.to_bytes().escape_ascii(),
                holds(holder.holds),
                holder.token.get(),
                holder.lease_left(self.mono).as_millis(),
            ),
            Change::Count(token, count) => format!("{} of {}", holds(*count), token.get()),
            Change::End(token, End::Released) => format!("end {} released", token.get()),
            Change::End(token, End::LeaseOver) => format!("end {} over", token.get()),
        }
    }
}

/// The options of a line, each taken once.
struct Options<'a>(Vec<&'a str>);

impl Options<'_> {
    fn flag(&mut self, name: &str) -> bool {
        let found = self.0.iter().position(|word| *word == name);
        found.map(|at| self.0.remove(at)).is_some()
    }

    /// The number after these words.
    fn after<T: std::str::FromStr<Err: std::fmt::Debug>>(&mut self, words: &[&str]) -> Option<T> {
        let at = self.0.windows(words.len()).position(|window| window == words)?;
        let number = self.0.drain(at..=at + words.len()).next_back()?;
        Some(number.parse().unwrap())
    }
}

/// `99.999` is a microsecond before 100 ms.
fn at_micros(ms: &str) -> Instant {
    let (whole, part) = ms.split_once('.').unwrap_or((ms, "0"));
    let whole: i64 = whole.parse().unwrap();
    let part: i64 = format!("{part:0<3}").parse().unwrap();
    Instant::from_micros(whole * 1_000 + part)
}

fn when(due: Option<Instant>) -> String {
    due.map_or_else(|| "never".to_owned(), |due| format!("at {}", instant(0).until(due).as_millis()))
}

fn holds(count: u32) -> String {
    if count == 1 { "1 hold".to_owned() } else { format!("{count} holds") }
}

fn told(wake: &Completion<u32>) -> String {
    let handle = wake.waiter.wait_request.handle;
    match wake.outcome {
        Outcome::Granted(grant) => {
            let repeat = if grant.counted { "" } else { " as before" };
            format!("{handle} gets {}, token {}{repeat}", holds(grant.holds), grant.token.get())
        }
        Outcome::NotAcquired => format!("{handle} gets nothing"),
        Outcome::Refused(refusal) => format!("{handle} gets {}", refused(refusal)),
        Outcome::Superseded => format!("{handle} is superseded"),
        Outcome::WrongType | Outcome::NotServed | Outcome::BecameReplica => {
            panic!("no step of a lock says so")
        }
    }
}

fn refused(refusal: Refusal) -> String {
    match refusal {
        Refusal::NotHeld(NotHeld::Free) => "not held: free".to_owned(),
        Refusal::NotHeld(NotHeld::ByAnother(token)) => format!("not held: another has token {}", token.get()),
        Refusal::NotHeld(NotHeld::OtherToken(token)) => format!("not held: it has token {}", token.get()),
        Refusal::Holds { has } => format!("holds do not follow: has {has}"),
        Refusal::TooManyHolds => "too many holds".to_owned(),
        Refusal::TokensUsedUp => "tokens used up".to_owned(),
        Refusal::TokenFarAhead => "token far ahead".to_owned(),
    }
}

fn event(event: &Event) -> &'static str {
    match event {
        Event::Acquired => "acquired",
        Event::Released => "released",
        Event::Renewed => "renewed",
        Event::LeaseOver => "lease-over",
    }
}

/// What has been counted, but zeros; of durations the longest.
fn counted(counters: &Counters) -> String {
    let counts = [
        ("acquired", counters.acquired),
        ("re-entered", counters.re_entered),
        ("handed off", counters.handed_off),
        ("released", counters.released),
        ("renewed", counters.renewed),
        ("leases ended", counters.leases_ended),
        ("restored", counters.restored),
    ];
    let counts = counts.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
    let durations = [("waited", &counters.wait_durations), ("held for", &counters.tenure_durations)];
    let durations = durations.iter().filter(|(_, known)| !known.is_empty());
    counts
        .chain(durations.map(|(name, known)| format!("{name} {} ms", known.max() / 1_000)))
        .collect::<Vec<_>>()
        .join(", ")
}
