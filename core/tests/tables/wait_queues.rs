//! The wait queues by themselves: limits, due times and sweeps.

use crate::notation::{instant, owner, span};
use lockward_core::{
    Absence, AcquireRequest, Db, Full, LONGEST_SWEPT_KEY, LimitReached, LockName, Outcome, QueueLimits,
    Slots, WaitQueues, WaitRequest, slot_key,
};
use std::collections::BTreeSet;

const MANY: QueueLimits = QueueLimits { per_lock: 100, total: 100 };

#[test]
fn neither_one_queue_nor_all_together_take_more_waiters_than_the_limit() {
    let mut queues = WaitQueues::default();
    let limits = QueueLimits { per_lock: 2, total: 3 };
    let mut join = |key: &str, owner: &str, handle: u32| {
        let wait_request = wait_request(owner, handle, None, None);
        queues
            .may_join(Db(0), key.as_bytes(), &wait_request.request, limits)
            .map(|()| queues.join(Db(0), key.as_bytes(), wait_request, limits, instant(0)).is_some())
    };
    assert_eq!(join("k", "A", 1), Ok(false));
    assert_eq!(join("k", "A", 2), Ok(false));
    assert_eq!(join("k", "B", 3), Err(Full::Lock));
    assert_eq!(join("l", "B", 4), Ok(false));
    assert_eq!(join("m", "C", 5), Err(Full::Total));
    assert_eq!(join("k", "C", 6), Err(Full::Total), "the total limit comes first");
    assert_eq!(queues.waiters(), 3);
    assert_eq!(queues.leave(2, Absence::Disconnected, instant(0)).unwrap().wait_request.handle, 2);
    assert_eq!(queues.waiters(), 2);
    let request = wait_request("C", 7, None, None).request;
    assert_eq!(queues.may_join(Db(0), b"k", &request, limits), Ok(()));
    let lower = QueueLimits { per_lock: 1, total: 3 };
    assert_eq!(queues.may_join(Db(0), b"k", &request, lower), Err(Full::Lock));
    assert_eq!(queues.may_join(Db(1), b"k", &request, lower), Ok(()), "the same key in another database");
}

#[test]
fn with_a_limit_of_zero_nobody_may_wait() {
    let queues: WaitQueues<u32> = WaitQueues::default();
    let request = wait_request("A", 1, None, None).request;
    for (per_lock, total, full) in [(0, 9, Full::Lock), (9, 0, Full::Total), (0, 0, Full::Total)] {
        assert_eq!(queues.may_join(Db(0), b"k", &request, QueueLimits { per_lock, total }), Err(full));
    }
}

#[test]
fn taking_over_a_position_adds_no_waiter() {
    let mut queues = WaitQueues::default();
    let full = QueueLimits { per_lock: 1, total: 1 };
    queues.join(Db(0), b"k", wait_request("A", 1, Some(1), None), MANY, instant(5));
    for (limits, before, after) in [(full, 1, 2), (QueueLimits { per_lock: 0, total: 0 }, 2, 3)] {
        let wait_request = wait_request("A", after, Some(1), None);
        assert_eq!(queues.may_join(Db(0), b"k", &wait_request.request, limits), Ok(()));
        let completion = queues.join(Db(0), b"k", wait_request, MANY, instant(9)).unwrap();
        assert_eq!(
            (completion.waiter.wait_request.handle, completion.outcome),
            (before, Outcome::Superseded)
        );
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
fn a_position_is_taken_over_within_one_lock_only() {
    let mut queues = WaitQueues::default();
    let positions = [(Db(0), "k", 1), (Db(0), "l", 2), (Db(1), "k", 3)];
    for (db, key, handle) in positions {
        let joined =
            queues.join(db, key.as_bytes(), wait_request("A", handle, Some(1), None), MANY, instant(0));
        assert!(joined.is_none());
    }
    for (db, key, handle) in positions {
        let queue = queues.queue(db, key.as_bytes()).unwrap();
        assert_eq!(handles(&queues, db, key), [handle]);
        assert_eq!(queues.name(queue).unwrap(), (db, key.as_bytes().into()));
    }
    assert_eq!(queues.queues_of(Db(0)).count(), 2);
    assert_eq!(queues.queues_of(Db(1)).count(), 1);
    assert_eq!(queues.queues().count(), 3);
}

#[test]
fn contended_locks_are_listed_with_their_waiters_and_the_longest_wait() {
    let mut queues = WaitQueues::default();
    for (db, key, handle) in [(Db(0), "k", 1), (Db(0), "k", 2), (Db(0), "l", 3), (Db(1), "k", 4)] {
        queues.join(
            db,
            key.as_bytes(),
            wait_request("A", handle, None, None),
            MANY,
            instant(i64::from(handle)),
        );
    }
    let contended = |queues: &WaitQueues<u32>, db| {
        let contended = queues.contended(db).map(|(key, waiters, since)| (key.to_vec(), waiters, since));
        let mut contended: Vec<_> = contended.collect();
        contended.sort();
        contended
    };
    assert_eq!(contended(&queues, Db(0)), [(b"k".to_vec(), 2, instant(1)), (b"l".to_vec(), 1, instant(3))]);
    queues.leave(1, Absence::Disconnected, instant(0));
    queues.leave(3, Absence::Disconnected, instant(0));
    assert_eq!(contended(&queues, Db(0)), [(b"k".to_vec(), 1, instant(2))]);
    assert_eq!(contended(&queues, Db(1)), [(b"k".to_vec(), 1, instant(4))]);
    assert_eq!(contended(&queues, Db(2)), []);
}

#[test]
fn a_queue_without_waiters_does_not_exist() {
    let mut queues = WaitQueues::default();
    queues.join(Db(0), b"k", wait_request("A", 1, None, Some(50)), MANY, instant(0));
    let queue = queues.queue(Db(0), b"k").unwrap();
    queues.set_due(queue, Some(instant(70)));
    assert!(queues.has_queues() && !queues.is_empty(queue));
    queues.leave(1, Absence::Disconnected, instant(0));
    assert!(!queues.has_queues() && queues.is_empty(queue));
    assert_eq!(queues.queue(Db(0), b"k"), None);
    assert_eq!(queues.name(queue), None);
    assert_eq!(queues.queues_of(Db(0)).count(), 0);
    assert_eq!(queues.next_due(), None);
    queues.set_due(queue, Some(instant(70)));
    assert_eq!(queues.next_due(), None, "a queue that does not exist is never due");
    queues.join(Db(0), b"k", wait_request("A", 1, None, None), MANY, instant(0));
    assert_ne!(queues.queue(Db(0), b"k"), Some(queue), "ids are not used again");
}

#[test]
fn a_queue_is_due_when_its_first_waiter_leaves_and_another_is_next() {
    let mut queues = WaitQueues::default();
    for (owner, handle) in [("A", 1), ("B", 2), ("C", 3)] {
        queues.join(Db(0), b"k", wait_request(owner, handle, None, None), MANY, instant(0));
    }
    queues.leave(2, Absence::Disconnected, instant(5));
    assert_eq!(queues.next_due(), None, "nobody else is next");
    queues.leave(1, Absence::Disconnected, instant(6));
    assert_eq!(queues.next_due(), Some(instant(6)));
    assert!(queues.pop_due(instant(6)).is_some());
    queues.leave(3, Absence::Disconnected, instant(7));
    assert_eq!(queues.next_due(), None, "nobody waits");
}

#[test]
fn a_due_queue_is_returned_once_at_its_instant() {
    let mut queues = WaitQueues::default();
    for (key, handle) in [("k", 1), ("l", 2)] {
        queues.join(Db(0), key.as_bytes(), wait_request("A", handle, None, None), MANY, instant(0));
    }
    let (k, l) = (queues.queue(Db(0), b"k").unwrap(), queues.queue(Db(0), b"l").unwrap());
    queues.set_due(k, Some(instant(90)));
    queues.set_due(l, Some(instant(60)));
    assert_eq!(queues.next_due(), Some(instant(60)));
    queues.set_due(k, Some(instant(30)));
    assert_eq!(queues.next_due(), Some(instant(30)));
    assert_eq!((queues.due(k), queues.due(l)), (Some(instant(30)), Some(instant(60))));
    assert_eq!(queues.pop_due(instant(29)), None);
    assert_eq!(queues.pop_due(instant(60)), Some((k, false)));
    queues.set_due(k, Some(instant(30)));
    assert_eq!(queues.pop_due(instant(60)), Some((k, false)), "the caller may set the same instant again");
    assert_eq!(queues.pop_due(instant(60)), Some((l, false)));
    assert_eq!(queues.pop_due(instant(999)), None);
    assert_eq!(queues.next_due(), None);
    queues.set_due(k, Some(instant(95)));
    queues.set_due(k, None);
    assert_eq!(queues.next_due(), None);
}

#[test]
fn a_changed_queue_stays_due_although_a_decision_on_its_lock_sets_a_later_time() {
    for later in [Some(instant(90)), None] {
        let mut queues = WaitQueues::default();
        queues.join(Db(0), b"k", wait_request("A", 1, None, None), MANY, instant(0));
        let queue = queues.queue(Db(0), b"k").unwrap();
        queues.set_changed(queue, instant(30));
        queues.set_due(queue, later);
        assert_eq!((queues.due(queue), queues.next_due()), (Some(instant(30)), Some(instant(30))));
        assert_eq!(queues.pop_due(instant(30)), Some((queue, true)));
        queues.set_due(queue, later);
        assert_eq!(queues.due(queue), later, "the lock was checked");
    }
}

#[test]
fn the_next_due_time_is_the_first_lease_or_limit() {
    let mut queues = WaitQueues::default();
    queues.join(Db(0), b"k", wait_request("A", 1, None, Some(40)), MANY, instant(0));
    queues.join(Db(0), b"l", wait_request("A", 2, None, Some(80)), MANY, instant(0));
    assert_eq!(queues.next_due(), Some(instant(40)));
    queues.set_due(queues.queue(Db(0), b"l").unwrap(), Some(instant(20)));
    assert_eq!(queues.next_due(), Some(instant(20)));
    assert_eq!(reached(&mut queues, 39), 0);
    assert_eq!(reached(&mut queues, 90), 1);
    assert_eq!(reached(&mut queues, 90), 2);
    assert_eq!(reached(&mut queues, 90), 0);
    assert_eq!(queues.next_due(), None, "a closed queue is not due");
}

#[test]
fn a_sweep_visits_all_queues_and_goes_on_after_its_last_position() {
    let mut queues = WaitQueues::default();
    for (key, handle) in [("k", 1), ("l", 2), ("m", 3)] {
        queues.join(Db(0), key.as_bytes(), wait_request("A", handle, None, None), MANY, instant(0));
    }
    let after = |queues: &WaitQueues<u32>, last| queues.after(last).collect::<Vec<_>>();
    let all = after(&queues, None);
    let names: BTreeSet<LockName> = all.iter().map(|(_, name)| name.clone()).collect();
    assert_eq!(names, ["k", "l", "m"].map(|key| (Db(0), key.as_bytes().into())).into());
    let [(first, _), (second, (_, key)), (third, _)] = &all[..] else { panic!("{all:?}") };
    assert_eq!(after(&queues, Some(*first)), all[1..]);
    assert_eq!(after(&queues, Some(*third)), []);
    // The last queue that the sweep visited is removed before the sweep goes on.
    let waiter = queues.waiters_in(queues.queue(Db(0), key).unwrap()).next().unwrap();
    queues.leave(waiter.wait_request.handle, Absence::Disconnected, instant(0));
    assert_eq!(after(&queues, Some(*second)), all[2..]);
    assert_eq!(after(&queues, None), [all[0].clone(), all[2].clone()]);
}

#[test]
fn a_long_key_is_swept_by_a_short_key_of_its_slot() {
    let mut queues = WaitQueues::default();
    let long = [b'k'; LONGEST_SWEPT_KEY + 1];
    queues.join(Db(0), &long, wait_request("A", 1, None, None), MANY, instant(0));
    let queue = queues.queue(Db(0), &long).unwrap();
    assert_eq!(queues.slot_key(queue), Some(slot_key(&long)));
    assert_eq!(queues.slot_key(queue), Some(slot_key(&long)), "the same on the second call");
    queues.leave(1, Absence::Disconnected, instant(0));
    assert_eq!(queues.slot_key(queue), None);
}

fn wait_request(name: &str, handle: u32, holds: Option<u32>, limit: Option<i64>) -> WaitRequest<u32> {
    let (slots, weight) = (Slots::EXCLUSIVE, None);
    let request = AcquireRequest { owner: owner(name), lease: span(100), holds, slots, weight };
    WaitRequest { request, wait_limit: limit.map(instant), keep: None, handle }
}

/// The handle of a waiter that has reached its limit; 0 for none.
fn reached(queues: &mut WaitQueues<u32>, at: i64) -> u32 {
    match queues.pop_limit_reached(instant(at)) {
        Some(LimitReached::Wait(waiter)) => waiter.wait_request.handle,
        Some(LimitReached::Place) | None => 0,
    }
}

fn handles(queues: &WaitQueues<u32>, db: Db, key: &str) -> Vec<u32> {
    let queue = queues.queue(db, key.as_bytes());
    queue
        .into_iter()
        .flat_map(|queue| queues.waiters_in(queue))
        .map(|waiter| waiter.wait_request.handle)
        .collect()
}
