//! Places that are kept for owners whose clients have left the queue.

use crate::notation::table;

#[test]
fn a_place_whose_wait_reached_its_limit_holds_others_back_for_100_ms() {
    table(
        "at(0)   A acquires lease 900                    -> granted 1 hold, token 1
         at(1)   B waits holds 1 limit 50 keep 500 as 5  -> waits
         at(2)   C waits as 6                            -> waits
         at(51)  the timer fires                         -> 5 gets nothing
         at(51)  the places are                          -> B holds back
         at(60)  A releases                              -> 0 left
         at(61)  D acquires                              -> busy
         at(62)  B waits holds 1 limit 50 keep 500 as 7  -> granted 1 hold, token 2
         at(62)  the places are                          -> none
         at(63)  B releases                              -> 0 left; 6 gets 1 hold, token 3",
    );
}

#[test]
fn an_absent_owner_is_passed_over_and_keeps_its_place_and_age() {
    table(
        "at(0)   A acquires lease 2000                   -> granted 1 hold, token 1
         at(1)   B waits holds 1 limit 50 keep 500 as 5  -> waits
         at(2)   C waits as 6                            -> waits
         at(3)   D waits as 7                            -> waits
         at(51)  the timer fires                         -> 5 gets nothing
         at(150) the timer fires                         ->
         at(150) the places are                          -> B holds back
         at(151) the timer fires                         ->
         at(151) the places are                          -> B is passed over
         at(160) A releases                              -> 0 left; 6 gets 1 hold, token 2
         at(170) B waits holds 1 limit 50 as 8           -> waits
         at(170) the places are                          -> none
         at(170) the queue is                            -> 8 B since 1, 7 D since 3
         at(180) C releases                              -> 0 left; 8 gets 1 hold, token 3",
    );
}

#[test]
fn the_waiters_behind_a_place_are_served_when_it_is_passed_over() {
    table(
        "at(0)   A acquires lease 2000                    -> granted 1 hold, token 1
         at(1)   B waits holds 1 limit 50 keep 500 as 5   -> waits
         at(2)   C waits as 6                             -> waits
         at(51)  the timer fires                          -> 5 gets nothing
         at(60)  A releases                               -> 0 left
         at(60)  the queues are due                       -> at 151
         at(151) the timer fires                          -> 6 gets 1 hold, token 2
         at(551) the timer fires                          ->
         at(551) the places are                           -> none
         at(552) the queues are due                       -> never",
    );
}

#[test]
fn a_closed_connection_holds_nobody_back() {
    table(
        "at(0) A acquires                     -> granted 1 hold, token 1
         at(1) B waits holds 1 keep 500 as 5  -> waits
         at(2) C waits as 6                   -> waits
         at(3) 5 leaves                       -> left
         at(3) the places are                 -> B is passed over
         at(4) A releases                     -> 0 left; 6 gets 1 hold, token 2
         at(5) D waits as 7                   -> waits
         at(6) B waits holds 1 as 8           -> waits
         at(7) C releases                     -> 0 left; 8 gets 1 hold, token 3",
    );
}

#[test]
fn an_unblocked_client_holds_others_back_as_if_its_limit_was_reached() {
    table(
        "at(0) A acquires                     -> granted 1 hold, token 1
         at(1) B waits holds 1 keep 50 as 5   -> waits
         at(3) 5 is unblocked                 -> left
         at(3) the places are                 -> B holds back
         at(53) the timer fires               ->
         at(53) the places are                -> none",
    );
}

#[test]
fn a_grant_that_was_passed_on_keeps_the_place() {
    table(
        "at(0) A acquires                     -> granted 1 hold, token 1
         at(1) B waits holds 1 keep 500 as 5  -> waits
         at(2) C waits as 6                   -> waits
         at(3) D waits as 7                   -> waits
         at(4) A releases                     -> 0 left; 5 gets 1 hold, token 2
         at(5) B passes on token 2 for 5      -> 6 gets 1 hold, token 3
         at(5) the places are                 -> B is passed over
         at(6) B waits holds 1 as 8           -> waits
         at(6) the queue is                   -> 8 B since 1, 7 D since 3",
    );
}

#[test]
fn a_place_ends_when_its_owner_holds_the_lock() {
    table(
        "at(0) A acquires                     -> granted 1 hold, token 1
         at(1) B waits holds 1 keep 500 as 5  -> waits
         at(1) B waits as 6                   -> waits
         at(2) 5 leaves                       -> left
         at(3) A releases                     -> 0 left; 6 gets 1 hold, token 2
         at(3) the places are                 -> none
         at(4) C waits holds 1 keep 500 as 7  -> waits
         at(5) 7 leaves                       -> left
         at(6) B releases                     -> 0 left
         at(6) the places are                 -> C is passed over
         at(7) C acquires                     -> granted 1 hold, token 3
         at(7) the places are                 -> none",
    );
}

#[test]
fn a_place_ends_when_a_rename_brings_a_lock_that_its_owner_holds() {
    table(
        "at(0) A acquires                              -> granted 1 hold, token 1
         at(1) B waits holds 1 limit 1 keep 500 as 5   -> waits
         at(1) C waits shared as 6                     -> waits
         at(2) the timer fires                         -> 5 gets nothing
         at(3) B holds it with token 9 shared
         at(3) the lock is rechecked                   -> 6 gets 1 hold, token 10
         at(3) the places are                          -> none",
    );
}

#[test]
fn a_release_that_names_its_count_ends_waits_and_places_that_name_more() {
    table(
        "at(0) A acquires                     -> granted 1 hold, token 1
         at(1) B waits holds 1 keep 500 as 5  -> waits
         at(1) B waits as 6                   -> waits
         at(1) C waits shared as 7            -> waits
         at(2) B releases holds 0             -> 0 left; 5 is superseded
         at(2) the queue is                   -> 6 B since 1, 7 C since 1
         at(3) B waits holds 1 keep 500 as 8  -> waits; 6 is superseded
         at(4) 8 leaves                       -> left
         at(4) the places are                 -> B is passed over
         at(5) B releases holds 0 token 9     -> 0 left
         at(5) the places are                 -> B is passed over
         at(5) B releases holds 1             -> not held: another has token 1
         at(5) the places are                 -> B is passed over
         at(6) B releases holds 0             -> 0 left
         at(6) the places are                 -> none",
    );
}

#[test]
fn the_waiters_behind_the_first_place_are_served_when_it_ends() {
    table(
        "at(0) A acquires shared                       -> granted 1 hold, token 1
         at(1) B waits holds 1 limit 1 keep 500 as 5   -> waits
         at(1) C waits shared as 6                     -> waits
         at(2) the timer fires                         -> 5 gets nothing
         at(3) B releases holds 0                      -> 0 left; 6 gets 1 hold, token 2",
    );
}

#[test]
fn the_oldest_place_gives_way_when_the_queue_is_full() {
    table(
        "at(0) there may be 3 waiters
         at(0) A acquires                     -> granted 1 hold, token 1
         at(1) B waits holds 1 keep 500 as 5  -> waits
         at(1) C waits holds 1 keep 500 as 6  -> waits
         at(2) 6 leaves                       -> left
         at(3) 5 leaves                       -> left
         at(4) D waits as 7                   -> waits
         at(4) the places are                 -> B is passed over, C is passed over
         at(5) E waits as 8                   -> waits
         at(5) the places are                 -> B is passed over
         at(6) B waits holds 1 as 9           -> waits
         at(7) F waits as 10                  -> lock is full
         at(8) B waits holds 1 as 11          -> waits; 9 is superseded",
    );
}

/// A slice is one of several short waits. Between two slices, the writer's kept place holds the readers back.
#[test]
fn a_writer_that_waits_in_slices_is_not_starved_by_readers() {
    table(
        "at(0)   A acquires shared lease 500                 -> granted 1 hold, token 1
         at(10)  W waits holds 1 limit 100 keep 1000 as 5    -> waits
         at(20)  B waits shared lease 500 as 6               -> waits
         at(110) the timer fires                             -> 5 gets nothing
         at(111) C acquires shared                           -> busy
         at(115) W waits holds 1 limit 100 keep 1000 as 7    -> waits
         at(120) A releases                                  -> 0 left; 7 gets 1 hold, token 2
         at(130) W releases                                  -> 0 left; 6 gets 1 hold, token 3",
    );
}
