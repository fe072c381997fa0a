//! The changes that are sent to replicas and the AOF, and the events that are published.

use crate::notation::{World, owner, table, token};
use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{Change, End, Event, Holder, Lock, Propagation, event_of};

#[test]
fn the_granted_waits_of_one_owner_are_replicated_as_one_change() {
    table(
        "at(0) A acquires             -> granted 1 hold, token 1
         at(1) B waits as 5           -> waits
         at(2) B waits as 6           -> waits
         at(3) B waits as 7 lease 300 -> waits
         at(4) B waits as 8           -> waits
         at(5) B waits as 9 lease 400 -> waits
         at(6) A releases             -> 0 left; 5 gets 1 hold, token 2; 6 gets 2 holds, token 2; 7 gets 3 holds, token 2; 8 gets 4 holds, token 2; 9 gets 5 holds, token 2 | end 1 released, put B 5 holds, token 2, 400 left | released acquired acquired acquired acquired acquired
         at(6) the lock is            -> B 5 holds, token 2, until 406
         at(6) B waits as 10          -> granted 6 holds, token 2 | token 2 has 6 holds",
    );
    table(
        "at(0) A acquires   -> granted 1 hold, token 1
         at(1) B waits as 5 -> waits
         at(2) B waits as 6 -> waits
         at(3) B waits as 7 -> waits
         at(6) A releases   -> 0 left; 5 gets 1 hold, token 2; 6 gets 2 holds, token 2; 7 gets 3 holds, token 2 | end 1 released, put B 1 hold, token 2, 100 left, token 2 has 3 holds",
    );
}

/// After RENAME, several holders of a lock may also wait for it.
#[test]
fn the_re_entries_of_several_owners_are_each_replicated() {
    table(
        "at(0) X acquires                    -> granted 1 hold, token 1
         at(1) Y waits as 4                  -> waits
         at(1) 1 waits shared lease 10 as 5  -> waits
         at(1) 2 waits shared lease 10 as 6  -> waits
         at(1) 1 waits shared lease 10 as 7  -> waits
         at(2) 2 hold it until 1000
         at(2) the lock is rechecked         -> 5 gets 2 holds, token 1; 7 gets 3 holds, token 1; 6 gets 2 holds, token 2 | token 1 has 3 holds, token 2 has 2 holds | acquired acquired acquired",
    );
}

#[test]
fn changes_are_counted_and_not_encoded_if_nobody_receives_them() {
    table(
        "at(0) A acquires with nobody listening          -> granted 1 hold, token 1 | verbatim | acquired
         at(1) A renews with nobody listening            -> token 1 | verbatim | renewed
         at(2) A releases holds 1 with nobody listening  -> 1 left | nothing |
         at(3) A renews                                  -> token 1 | put A 1 hold, token 1, 100 left | renewed",
    );
}

#[test]
fn a_grant_that_is_passed_on_is_replicated_as_changes() {
    table(
        "at(0) A acquires          -> granted 1 hold, token 1
         at(1) B waits as 7        -> waits
         at(1) B waits as 8        -> waits
         at(3) A releases          -> 0 left; 7 gets 1 hold, token 2; 8 gets 2 holds, token 2
         at(3) B passes on token 2 -> | token 2 has 1 hold | released
         at(3) B passes on token 2 -> | end 2 released | released",
    );
}

#[test]
fn a_decision_without_a_change_replicates_nothing() {
    table(
        "at(0) A releases         -> not held: free | nothing |
         at(0) A renews           -> not held: free | nothing |
         at(0) A acquires holds 2 -> holds do not follow: has 0 | nothing |
         at(0) A acquires         -> granted 1 hold, token 1
         at(0) B acquires         -> busy | nothing |
         at(0) B waits as 7       -> waits | nothing |
         at(0) A acquires holds 1 -> granted 1 hold, token 1 | nothing |
         at(0) A releases holds 1 -> 1 left | nothing |
         at(0) A releases holds 3 -> holds do not follow: has 1 | nothing |
         at(0) the timer fires    -> | nothing |",
    );
}

#[test]
fn a_grant_a_re_entry_and_a_renewal_are_replicated_as_changes() {
    table(
        "at(0)  A acquires lease 90                  -> granted 1 hold, token 1  | put A 1 hold, token 1, 90 left | acquired
         at(10) A acquires lease 10                  -> granted 2 holds, token 1 | token 1 has 2 holds | acquired
         at(20) A renews lease 30                    -> token 1                  | put A 2 holds, token 1, 30 left | renewed
         at(30) A acquires lease 200 holds 2 slots 5 -> granted 2 holds, token 1 | put A 2 holds, token 1, 200 left | renewed",
    );
}

#[test]
fn a_release_without_waiters_is_replicated_verbatim() {
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
fn a_release_that_hands_off_is_replicated_with_the_grant() {
    table(
        "at(0) A acquires   -> granted 1 hold, token 1
         at(1) B waits as 7 -> waits
         at(1) B waits as 8 -> waits
         at(2) A releases   -> 0 left; 7 gets 1 hold, token 2; 8 gets 2 holds, token 2 | end 1 released, put B 1 hold, token 2, 100 left, token 2 has 2 holds | released acquired acquired",
    );
}

#[test]
fn the_end_of_a_lease_is_replicated_with_the_changes_that_follow() {
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
fn a_repeated_release_that_ends_a_lease_is_not_replicated_verbatim() {
    table(
        "at(0)   A acquires lease 100 -> granted 1 hold, token 1
         at(100) B releases holds 0   -> 0 left | end 1 over | lease-over",
    );
}

#[test]
fn a_replica_applies_a_release_even_if_the_lease_is_over() {
    table(
        "at(0)   A acquires                    -> granted 1 hold, token 1
         at(0)   A acquires                    -> granted 2 holds, token 1
         at(0)   A acquires                    -> granted 3 holds, token 1
         at(1)   A releases as replica holds 2 -> 2 left | verbatim | released
         at(1)   A releases as replica holds 2 -> 2 left | nothing |
         at(1)   A releases as replica token 2 -> not held: it has token 1 | nothing |
         at(200) A releases as replica         -> 1 left | verbatim | released
         at(200) the lock is                   -> A 1 hold, token 1, until 100
         at(200) A releases as replica         -> 0 left | verbatim | released
         at(200) A releases as replica         -> not held: free | nothing |",
    );
}

#[test]
fn a_replicated_change_has_the_event_of_its_decision() {
    let mut world = World::new();
    world.play("at(0) A acquires -> granted 1 hold, token 1");
    world.play("at(0) A acquires -> granted 2 holds, token 1");
    let known = world.lock.holders().next().unwrap().cloned();
    let put = |holds, token| Change::Put(Holder { holds, token, ..known.clone() });
    let other = Change::Put(Holder { owner: owner("B"), ..known.clone() });
    for (change, event) in [
        (Change::Count(token(1), 3), Event::Acquired),
        (Change::Count(token(1), 1), Event::Released),
        (Change::End(token(1), End::Released), Event::Released),
        (Change::End(token(1), End::LeaseOver), Event::LeaseOver),
        (put(2, token(1)), Event::Renewed),
        (put(3, token(1)), Event::Acquired),
        (put(2, token(9)), Event::Acquired),
        (other, Event::Acquired),
    ] {
        assert_eq!(event_of(&world.lock, &change), event, "{change:?}");
    }
}

#[test]
fn a_dropped_lock_is_replicated_whole() {
    let mut world = World::new();
    world.play("at(0) A acquires shared lease 100 -> granted 1 hold, token 1");
    world.play("at(0) B acquires shared lease 200 -> granted 1 hold, token 2");
    world.play("at(0) B acquires shared lease 200 -> granted 2 holds, token 2");
    world.play("at(50) B releases -> 1 left | verbatim | released");
    world.effects.replicate_whole_lock(&world.lock, world.now());
    assert_eq!(world.replicated(), "put A 1 hold, token 1, 50 left, put B 1 hold, token 2, 150 left");
}

#[test]
fn the_end_of_a_dropped_lock_is_replicated() {
    let mut world = World::new();
    world.play("at(0) A acquires lease 100 -> granted 1 hold, token 1");
    world.play("at(50) A releases -> 0 left | verbatim | released");
    world.effects.replicate_whole_lock(&world.lock, world.now());
    let Propagation::Changes(payload) = world.effects.propagation() else { panic!("nothing is replicated") };
    assert_eq!(encoding::decode_message(payload, Origin::Live, world.now()), Ok(Message::DroppedLock(None)));
}

#[test]
fn a_whole_lock_applied_to_a_free_lock_is_the_lock() {
    let mut world = World::new();
    world.play("at(0) A acquires slots 2 lease 100 -> granted 1 hold, token 1");
    world.play("at(20) B acquires slots 2 lease 200 -> granted 1 hold, token 2");
    world.effects.replicate_whole_lock(&world.lock, world.now());
    let mut copy = Lock::new();
    for change in world.replicated_changes() {
        copy.apply(change, world.now());
    }
    assert!(copy.holders().eq(world.lock.holders()), "{copy:?} {:?}", world.lock);
    assert_eq!(copy.expires_at(), world.lock.expires_at());
}

#[test]
fn cleared_effects_are_empty() {
    let mut world = World::new();
    world.play("at(0) A acquires -> granted 1 hold, token 1");
    world.play("at(1) B waits as 7 -> waits");
    world.play("at(2) A releases -> 0 left; 7 gets 1 hold, token 2");
    assert!(world.effects.changed());
    world.effects.clear();
    assert!(
        !world.effects.changed() && world.effects.completions.is_empty() && world.effects.events.is_empty()
    );
    assert_eq!(world.effects.propagation(), Propagation::Nothing);
}
