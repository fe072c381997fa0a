//! Tests of the store: dropped locks, flushes, the quarantine and the role of the server.

use super::*;
use crate::effects::Propagation;
use crate::holder::{Holder, Mode, Slots, Weight};
use crate::owner::Owner;
use crate::quarantine::MOST_ENTRIES;
use crate::request::{AcquireRequest, HoldsLeft, ReleaseRequest};
use crate::token::FencingToken;
use crate::wait_queues::{Absence, QueueLimits};
use crate::waiter::WaitRequest;

const FREED: u64 = 5;

fn name(key: &str) -> LockName {
    (Db(0), key.as_bytes().into())
}

fn at(millis: i64) -> Instant {
    Instant::from_micros(millis * 1_000)
}

fn now(millis: i64) -> Now {
    Now { mono: at(millis), wall: WallTime::from_millis(millis) }
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// A lock that owner A has held since 0 ms with this token. Both clocks reach its deadline at the same time.
fn lock(number: u64, deadline: i64) -> Lock {
    let holder = Holder {
        owner: Owner::new(b"A").unwrap(),
        holds: 1,
        mode: Mode::EXCLUSIVE,
        token: token(number),
        deadline: at(deadline),
        since: at(0),
    };
    Lock::held_by(vec![holder], WallTime::from_millis(deadline)).unwrap()
}

fn store() -> Store<u32> {
    Store::default()
}

fn in_quarantine() -> Store<u32> {
    let mut store = store();
    store.start(false, Quarantine::new(at(0), Span::from_millis(1_000_000).unwrap()));
    store
}

fn unlink(store: &mut Store<u32>, key: &str, lock: &Lock, millis: i64, evicts: bool) -> Unlinked {
    store.unlinked(&name(key), lock, now(millis), FREED, || evicts)
}

fn ended(store: &Store<u32>, key: &str) -> Option<u64> {
    store.memory(&name(key)).last_ended().map(FencingToken::get)
}

#[test]
fn a_large_lock_whose_leases_are_all_over_is_freed_in_parts() {
    let mut store = store();
    let reader = |number: u64| Holder {
        owner: Owner::new(&number.to_be_bytes()).unwrap(),
        mode: Mode { slots: Slots::SHARED, ..Mode::EXCLUSIVE },
        token: token(number),
        ..lock(1, 100).holders().next().unwrap().cloned()
    };
    let mut lock = Lock::held_by((1..=5_000).map(reader).collect(), WallTime::EPOCH).unwrap();
    assert!(!store.drop_discarded());
    let mut decided = Decided::default();
    store.decide(&name("k"), &mut lock, &mut decided, now(150), FREED, |decision| {
        decision.expire_and_serve();
    });
    assert!(lock.is_free() && decided.effects.changed());
    for dropped in (256..5_000).step_by(256) {
        assert_eq!(store.next_work(at(150)), Some(at(150)));
        assert!(store.drop_discarded());
        assert_eq!(store.counters.leases_ended, dropped);
    }
    assert!(!store.drop_discarded());
    assert_eq!((store.next_work(at(150)), store.counters.leases_ended), (None, 5_000));
    assert_eq!(store.counters.tenure_durations.len(), 5_000);
}

#[test]
fn an_unlinked_lock_is_dropped_or_settled_as_the_server_reports() {
    // Each case names how much of the lease is left at the instant 100, whether the server can evict keys, and which
    // event the server reports. The expected results follow: whether the lock is dropped, whether it is to be put
    // back, and how many tenures have ended.
    type Report = fn(&mut Store<u32>) -> bool;
    let cases: [(&str, i64, bool, Report, bool, bool, u64); 10] = [
        ("evicted", 50, true, |store| store.evicted(&name("k")), true, false, 0),
        (
            "evicted, on a server that cannot evict",
            50,
            false,
            |store| !store.evicted(&name("k")),
            false,
            false,
            0,
        ),
        ("another is evicted", 50, true, |store| !store.evicted(&name("l")), false, false, 0),
        (
            "expired, the wall clock a little ahead",
            50,
            false,
            |store| store.expired(&name("k"), WallTime::from_millis(150), at(100)) == Expired::Kept,
            true,
            false,
            0,
        ),
        (
            "expired, the wall clock far ahead",
            2_000,
            false,
            |store| {
                let wall = WallTime::from_millis(9_000);
                store.expired(&name("k"), wall, at(100)) == Expired::KeptFromClockJump
            },
            true,
            true,
            0,
        ),
        (
            "expired by a TTL that was set by hand",
            50,
            false,
            |store| store.expired(&name("k"), WallTime::from_millis(120), at(100)) == Expired::Over,
            false,
            false,
            0,
        ),
        (
            "another has expired",
            50,
            false,
            |store| store.expired(&name("l"), WallTime::from_millis(150), at(100)) == Expired::Over,
            false,
            false,
            0,
        ),
        (
            "deleted",
            50,
            true,
            |store| {
                store.settle_unlinked(at(100), FREED + 1);
                !store.evicted(&name("k"))
            },
            false,
            false,
            1,
        ),
        (
            "renamed",
            50,
            true,
            |store| {
                store.settle_unlinked(at(100), FREED);
                !store.evicted(&name("k"))
            },
            false,
            false,
            0,
        ),
        ("overwritten", 50, true, |store| !store.new_key(&name("k"), at(100), FREED + 1), false, false, 1),
    ];
    for (what, left, evicts, report, dropped, put_back, tenures_ended) in cases {
        let mut store = store();
        let gone = unlink(&mut store, "k", &lock(7, 100 + left), 100, evicts);
        assert!(gone.held && gone.recheck && gone.may_be_evicted == evicts, "{what}");
        assert!(report(&mut store), "{what}");
        assert_eq!(store.dropped_locks.get(Db(0), b"k").is_some(), dropped, "{what}");
        assert_eq!(store.pop_to_put_back(), put_back.then(|| name("k")), "{what}");
        assert_eq!(store.counters.tenure_durations.max() > 0, tenures_ended > 0, "{what}");
    }
}

#[test]
fn an_evicted_lock_is_replicated_by_the_caller_and_an_expired_one_later() {
    let mut store = store();
    unlink(&mut store, "k", &lock(1, 200), 100, true);
    assert!(store.evicted(&name("k")) && !store.dropped_locks.has_unreplicated());
    unlink(&mut store, "l", &lock(2, 200), 100, false);
    assert_eq!(store.expired(&name("l"), WallTime::from_millis(200), at(100)), Expired::Kept);
    assert_eq!(store.dropped_locks.pop_unreplicated(), Some(name("l")));
}

#[test]
fn a_lock_whose_lease_is_over_leaves_nothing_behind() {
    let mut store = in_quarantine();
    let gone = unlink(&mut store, "k", &lock(7, 100), 100, true);
    let (may_be_evicted, may_be_dropped) = (false, false);
    assert_eq!(gone, Unlinked { held: false, may_be_evicted, may_be_dropped, recheck: true });
    assert!(!store.has_unlinked() && !store.evicted(&name("k")));
    assert_eq!(store.counters.leases_ended, 1);
    assert_eq!(ended(&store, "k"), Some(6), "this tenure may be restored, older ones may not");
    assert!(store.memory(&name("k")).may_restore(token(7), Mode::EXCLUSIVE));
    let mut store = self::store();
    assert!(
        !unlink(&mut store, "k", &lock(7, 100), 100, true).recheck,
        "nobody waits, nothing is remembered"
    );
}

/// A lock that 5,000 readers hold until 200 ms.
fn held_by_many() -> Lock {
    let holders = (1..=5_000).map(|number: u64| Holder {
        owner: Owner::new(&number.to_be_bytes()).unwrap(),
        mode: Mode { slots: Slots::SHARED, weight: Weight::ONE },
        token: token(number),
        ..lock(1, 200).holders().next().unwrap().cloned()
    });
    Lock::held_by(holders.collect(), WallTime::from_millis(200)).unwrap()
}

#[test]
fn a_lock_with_many_holders_is_copied_only_if_it_may_be_dropped() {
    let many = held_by_many();
    for (evicts, wall, copied) in [(false, 199, false), (true, 199, true), (false, 200, true)] {
        let mut store = in_quarantine();
        let now = Now { wall: WallTime::from_millis(wall), ..now(100) };
        let gone = store.unlinked(&name("k"), &many, now, FREED, || evicts);
        assert_eq!((gone.held, gone.may_be_dropped, store.has_unlinked()), (true, copied, copied));
        store.settle_unlinked(at(100), FREED);
        assert_eq!(ended(&store, "k"), Some(5_000));
    }
}

#[test]
fn a_deleted_lock_with_many_holders_is_counted_and_freed_in_parts() {
    for (rest, counted) in [("none", 5_000), ("in the keyspace", 0)] {
        let (mut store, in_key) = (store(), held_by_many());
        unlink(&mut store, "k", &in_key, 100, true);
        let renamed = (rest != "none").then_some(in_key);
        store.settle_unlinked(at(100), FREED + u64::from(renamed.is_none()));
        assert_eq!(store.next_work(at(100)), (counted > 0).then_some(at(100)), "{rest}");
        store.drop_discarded();
        assert!(store.counters.tenure_durations.len() < 5_000, "{rest}");
        while store.drop_discarded() {}
        assert_eq!(
            (store.counters.tenure_durations.len(), store.next_work(at(100))),
            (counted, None),
            "{rest}"
        );
    }
}

#[test]
fn a_change_of_a_renamed_lock_with_many_holders_copies_nothing() {
    let (mut store, mut in_key) = (store(), held_by_many());
    unlink(&mut store, "k", &in_key, 100, true);
    let mut decided = Decided::default();
    store.decide(&name("renamed"), &mut in_key, &mut decided, now(100), FREED, |_| ());
    assert!(!store.has_unlinked() && in_key.unshared().is_some());
}

#[test]
fn the_next_unlinked_lock_settles_the_one_before_and_does_not_ask_again_whether_the_server_evicts() {
    let mut store = in_quarantine();
    unlink(&mut store, "k", &lock(7, 200), 100, true);
    let gone = store.unlinked(&name("l"), &lock(8, 200), now(100), FREED, || panic!("asked again"));
    assert!(gone.may_be_evicted);
    assert_eq!((ended(&store, "k"), ended(&store, "l")), (Some(7), None));
    assert!(!store.evicted(&name("k")) && store.evicted(&name("l")));
}

#[test]
fn an_unlinked_lock_that_was_taken_out_is_settled_if_it_is_replaced_or_another_follows() {
    for (is_replaced, another, settled, left) in [
        (false, false, false, Some("k")),
        (true, false, true, None),
        (false, true, true, Some("l")),
        (true, true, true, Some("l")),
    ] {
        let mut store = in_quarantine();
        unlink(&mut store, "k", &lock(7, 200), 100, true);
        let taken = store.take_unlinked().unwrap();
        assert_eq!(taken.name(), &name("k"));
        if another {
            unlink(&mut store, "l", &lock(8, 200), 100, true);
        }
        store.return_unlinked(taken, is_replaced, at(100), FREED);
        assert_eq!(ended(&store, "k").is_some(), settled);
        let of = |key: &str| store.unlinked_is(&name(key)).then(|| key.to_owned());
        assert_eq!(of("k").or(of("l")).as_deref(), left);
        assert_eq!(store.has_unlinked(), left.is_some());
    }
}

fn acquire(store: &mut Store<u32>, key: &str, millis: i64, in_key: &mut Lock) -> Decided<u32> {
    let request = AcquireRequest {
        owner: Owner::new(b"B").unwrap(),
        lease: Span::from_millis(100).unwrap(),
        holds: None,
        slots: Slots::EXCLUSIVE,
        weight: None,
    };
    let mut decided = Decided::default();
    let granted = store
        .decide(&name(key), in_key, &mut decided, now(millis), FREED, |decision| decision.acquire(&request));
    granted.unwrap();
    decided
}

#[test]
fn a_dropped_lock_is_decided_on_as_if_it_had_its_key() {
    let mut store = store();
    store.dropped_locks.keep(Db(0), b"k", lock(7, 200));
    let mut in_key = Lock::new();
    let decided = acquire(&mut store, "k", 100, &mut in_key);
    assert!(matches!(decided.effects.propagation(), Propagation::Nothing));
    assert!(in_key.is_free(), "busy: the lock stays dropped");
    assert_eq!(store.dropped_locks.get(Db(0), b"k"), Some(&lock(7, 200)));
    let decided = acquire(&mut store, "k", 200, &mut in_key);
    assert!(matches!(decided.effects.propagation(), Propagation::Changes(_)));
    assert_eq!(in_key.holders().map(|holder| holder.owner.to_bytes().to_vec()).collect::<Vec<_>>(), [b"B"]);
    assert!(store.dropped_locks.is_empty() && !store.dropped_locks.has_unreplicated());
}

#[test]
fn a_dropped_lock_goes_back_into_its_key_once() {
    let mut store = store();
    store.dropped_locks.keep(Db(0), b"k", lock(7, 2_000));
    store.put_back_later(name("k"));
    assert_eq!(store.next_work(at(100)), Some(at(100)));
    assert_eq!(store.pop_to_put_back(), Some(name("k")));
    let back = store.take_to_put_back(&name("k"), now(100)).unwrap();
    assert_eq!(back.holders().map(|holder| holder.token).collect::<Vec<_>>(), [token(7)]);
    assert_eq!(store.take_to_put_back(&name("k"), now(100)), None);
    assert_eq!((store.pop_to_put_back(), store.next_work(at(100))), (None, None));
}

#[test]
fn a_new_key_ends_the_dropped_lock_of_its_name_on_a_primary() {
    for (follows, key, broken) in [(false, "k", true), (false, "l", false), (true, "k", false)] {
        let mut store = in_quarantine();
        store.dropped_locks.put(Db(0), b"k", lock(7, 200));
        if follows {
            store.begin_loading(Loading::File);
        }
        assert_eq!(store.concerns_new_key(&name(key)), broken);
        assert_eq!(store.new_key(&name(key), at(100), FREED), broken);
        assert_eq!(store.dropped_locks.is_empty(), broken);
        assert_eq!(ended(&store, "k"), broken.then_some(7));
        assert_eq!(store.dropped_locks.has_unreplicated(), broken);
    }
}

fn end(store: &mut Store<u32>, key: &str, number: u64) {
    let see = |memory: &mut QuarantineMemory| {
        memory.see_ended(token(number), Mode::EXCLUSIVE, End::Released);
    };
    store.remember(&name(key), at(0), see);
}

#[test]
fn memories_last_as_long_as_the_quarantine() {
    let mut store = store();
    end(&mut store, "k", 7);
    assert!(store.memory(&name("k")).is_empty(), "there is no quarantine");
    let mut store = in_quarantine();
    end(&mut store, "k", 7);
    end(&mut store, "k", 5);
    assert_eq!((ended(&store, "k"), ended(&store, "l")), (Some(7), None));
    assert_eq!(store.next_work(at(0)), Some(at(1_000_000)));
    store.notice_end_of_quarantine(at(999_999));
    assert_eq!(ended(&store, "k"), Some(7));
    let request = AcquireRequest {
        owner: Owner::new(b"B").unwrap(),
        lease: Span::from_millis(100).unwrap(),
        holds: None,
        slots: Slots::EXCLUSIVE,
        weight: None,
    };
    let wait_request = WaitRequest { request, wait_limit: None, keep: None, handle: 1 };
    store.queues.join(Db(0), b"k", wait_request, QueueLimits { per_lock: 9, total: 9 }, at(100));
    store.notice_end_of_quarantine(at(1_000_000));
    let queue = store.queues.queue(Db(0), b"k").unwrap();
    assert_eq!(store.queues.pop_due(at(1_000_000)), Some((queue, true)), "its lock is checked");
    assert_eq!((ended(&store, "k"), store.next_work(at(0))), (None, None));
}

#[test]
fn a_flush_ends_all_older_tenures_of_its_database() {
    for (flushed, zero, one) in [(Some(Db(0)), Some(9), None), (None, Some(9), Some(9))] {
        let mut store = in_quarantine();
        store.tokens.observe(token(9));
        store.dropped_locks.put(Db(0), b"k", lock(7, 200));
        store.flush(flushed, at(100));
        assert!(store.dropped_locks.is_empty());
        let ended = |store: &Store<u32>, db| store.memory(&(Db(db), b"any".as_slice().into())).last_ended();
        let of = |store: &Store<u32>| (ended(store, 0), ended(store, 1));
        assert_eq!(of(&store), (zero.map(token), one.map(token)));
        store.swap(Db(0), Db(1));
        assert_eq!(of(&store), (one.map(token), zero.map(token)));
    }
    let mut store = store();
    store.tokens.observe(token(9));
    store.flush(None, at(100));
    assert_eq!(ended(&store, "k"), None, "there is no quarantine");
}

#[test]
fn an_unlinked_lock_is_swapped_with_its_database() {
    let mut store = in_quarantine();
    unlink(&mut store, "k", &lock(7, 200), 100, false);
    store.swap(Db(0), Db(1));
    store.settle_unlinked(at(100), FREED + 1);
    let ended = |db| store.memory(&(Db(db), b"k".as_slice().into())).last_ended();
    assert_eq!((ended(0), ended(1)), (None, Some(token(7))));
}

#[test]
fn a_quarantine_that_begins_again_restores_no_tenure_from_before() {
    let mut store = in_quarantine();
    store.tokens.observe(token(5));
    let mut set_length = |millis: u64| {
        store.set_quarantine_length(Span::from_millis(millis).unwrap(), at(100));
        let memory = store.memory(&name("k"));
        [5, 6].map(|number| memory.may_restore(token(number), Mode::EXCLUSIVE))
    };
    assert_eq!(set_length(200), [true, true], "the quarantine goes on");
    assert_eq!(set_length(50), [true, true], "the quarantine is over");
    assert_eq!(set_length(101), [false, true], "the quarantine begins again");
    store.notice_end_of_quarantine(at(101));
    assert_eq!(ended(&store, "k"), None, "the quarantine is over");
}

/// FLUSHALL ASYNC does not stop the server, because it frees the keys on another thread. So the module must not stop
/// the server either, and frees the dropped locks in parts.
#[test]
fn the_dropped_locks_of_a_flushed_database_are_freed_in_parts() {
    for flushed in [Some(Db(0)), None] {
        let mut store = store();
        for number in 0..1_000_u64 {
            store.dropped_locks.put(Db(0), &number.to_le_bytes(), lock(number + 1, 200));
        }
        store.flush(flushed, at(100));
        assert!(store.dropped_locks.is_empty());
        let mut parts = 1;
        while store.drop_discarded() {
            assert_eq!(store.next_work(at(100)), Some(at(100)), "the next part is due at once");
            parts += 1;
        }
        assert!(parts > 1, "{flushed:?}");
        assert_eq!(store.next_work(at(100)), None, "all are freed");
    }
}

#[test]
fn the_memory_of_ended_tenures_is_bounded() {
    let mut store = in_quarantine();
    for number in 1..=u64::try_from(MOST_ENTRIES).unwrap() {
        end(&mut store, &number.to_string(), number);
    }
    assert_eq!((ended(&store, "1"), ended(&store, "never seen")), (Some(1), None));
    end(&mut store, "one more", 700_000);
    store.remember(&name("and another"), at(0), |memory| memory.see_renewed(token(800_000)));
    end(&mut store, "and another", 600_000);
    assert_eq!(store.memories.entries(), MOST_ENTRIES + 1, "a tenure that goes on is still remembered");
    assert_eq!((ended(&store, "1"), ended(&store, "never seen")), (Some(700_000), Some(700_000)));
    assert!(store.memory(&name("and another")).has_renewed(token(800_000)));
}

#[test]
fn the_memory_of_ended_readers_is_bounded_over_all_locks() {
    let mut store = in_quarantine();
    let reader = Mode { slots: Slots::SHARED, weight: Weight::ONE };
    let mut number = 0;
    let mut end_readers = |store: &mut Store<u32>, key: &str, count: u64| {
        for _ in 0..count {
            number += 1;
            let see = |memory: &mut QuarantineMemory| memory.see_ended(token(number), reader, End::Released);
            store.remember(&name(key), at(0), see);
        }
    };
    for lock in 0..199 {
        end_readers(&mut store, &lock.to_string(), 999);
    }
    assert!(!store.memory(&name("0")).may_restore(token(1), reader));
    assert!(store.memory(&name("1")).may_restore(token(1), reader));
    assert_eq!((store.memories.entries(), ended(&store, "never seen")), (199_199, None));
    end_readers(&mut store, "one more", 999);
    assert!(store.memories.entries() <= MOST_ENTRIES && ended(&store, "never seen") > Some(198_801));
}

#[test]
fn a_replica_drops_its_own_work_and_a_primary_begins_a_quarantine() {
    let mut store = in_quarantine();
    end(&mut store, "k", 7);
    store.dropped_locks.keep(Db(0), b"new", lock(7, 200));
    store.dropped_locks.put(Db(0), b"replicated", lock(8, 200));
    store.put_back_later(name("new"));
    unlink(&mut store, "unlinked", &lock(9, 200), 100, true);
    for (key, handle) in [("k", 1), ("l", 2)] {
        join(&mut store, key, handle, Some(1));
        store.queues.leave(handle, Absence::Disconnected, at(100));
    }
    join(&mut store, "l", 3, Some(1));
    assert_eq!((store.queues.kept_places(), store.queues.waiters()), (1, 1));
    store.become_replica();
    assert_eq!((store.queues.kept_places(), store.queues.waiters()), (0, 1));
    assert!(store.is_replica() && store.follows() && !store.has_unlinked());
    assert_eq!((ended(&store, "k"), store.dropped_locks.len()), (None, 1));
    assert_eq!((store.pop_to_put_back(), store.next_work(at(100))), (None, None));
    assert!(!store.sweeps_dropped_locks());
    store.become_primary(at(500));
    assert!(!store.is_replica() && !store.follows() && store.sweeps_dropped_locks());
    assert_eq!(store.quarantine.ends(at(500)), Some(at(1_000_500)));
}

#[test]
fn a_server_that_loads_data_decides_nothing() {
    let mut store = store();
    for from in [Loading::File, Loading::Primary] {
        store.begin_loading(from);
        assert!(store.follows() && store.loading() == from);
        store.end_loading(at(5));
        assert!(!store.follows() && store.quarantine.is_unconfirmed(at(5)));
    }
}

#[test]
fn data_that_is_loaded_beside_the_old_takes_its_place_when_it_is_complete() {
    for (loaded, token) in [(true, 8), (false, 7)] {
        let mut store = store();
        store.load_dropped(Db(0), b"k", lock(7, 200));
        store.begin_async_loading();
        store.load_dropped(Db(0), b"k", lock(8, 200));
        assert_eq!(store.dropped_locks.get(Db(0), b"k"), Some(&lock(7, 200)));
        store.end_async_loading(loaded);
        assert_eq!(store.dropped_locks.get(Db(0), b"k"), Some(&lock(token, 200)));
    }
}

#[test]
fn a_replica_keeps_the_dropped_locks_of_its_primary() {
    let mut store = store();
    store.follow_dropped(&name("k"), Some(lock(7, 200)));
    assert_eq!(store.tokens.last(), Some(token(7)));
    assert_eq!(store.dropped_locks.get(Db(0), b"k"), Some(&lock(7, 200)));
    assert!(!store.dropped_locks.has_unreplicated());
    store.follow_dropped(&name("k"), None);
    assert!(store.dropped_locks.is_empty());
    store.follow_dropped(&name("k"), Some(lock(8, 200)));
    store.end_dropped(&name("k"));
    assert!(store.dropped_locks.is_empty());
}

#[test]
fn the_tokens_of_other_servers_are_observed_and_tokens_far_ahead_are_recognised() {
    let mut store = store();
    store.observe_change(&Change::Count(token(9), 1));
    assert_eq!(store.tokens.last(), None);
    store.observe_change(&Change::Put(lock(7, 100).holders().next().unwrap().cloned()));
    assert_eq!(store.tokens.last(), Some(token(7)));
    let day = 24 * 3_600 * 1_000_000;
    assert!(!store.is_far_ahead(&lock(day, 100), WallTime::EPOCH));
    assert!(store.is_far_ahead(&lock(day + 1, 100), WallTime::EPOCH));
}

#[test]
fn a_dropped_lock_that_must_be_replicated_or_put_back_is_work() {
    let dropped: [fn(&mut Store<u32>); 2] = [
        |store| store.dropped_locks.keep(Db(0), b"k", lock(7, 200)),
        |store| store.put_back_later(name("k")),
    ];
    for dropped in dropped {
        let mut store = store();
        assert_eq!(store.next_work(at(100)), None);
        dropped(&mut store);
        assert_eq!(store.next_work(at(100)), Some(at(100)));
    }
}

/// Owner B waits for a lock. If B names its count of holds, its place is kept.
fn join(store: &mut Store<u32>, key: &str, handle: u32, holds: Option<u32>) {
    let request = AcquireRequest {
        owner: Owner::new(b"B").unwrap(),
        lease: Span::from_millis(100).unwrap(),
        holds,
        slots: Slots::EXCLUSIVE,
        weight: None,
    };
    let limits = QueueLimits { per_lock: 9, total: 9 };
    let keep = Span::from_millis(5_000);
    let wait_request = WaitRequest { request, wait_limit: None, keep, handle };
    store.queues.join(Db(0), key.as_bytes(), wait_request, limits, at(100));
}

#[test]
fn a_new_key_concerns_the_waiters_for_a_name_that_the_sweeps_do_not_open() {
    let mut store = store();
    let (short, long) = ("k".repeat(LONGEST_SWEPT_KEY), "k".repeat(LONGEST_SWEPT_KEY + 1));
    assert!(!store.concerns_new_key(&name(&short)) && !store.concerns_new_key(&name(&long)));
    join(&mut store, &short, 1, None);
    join(&mut store, &long, 2, None);
    assert!(!store.concerns_new_key(&name(&short)) && store.concerns_new_key(&name(&long)));
    assert!(!store.new_key(&name(&short), at(100), FREED) && store.new_key(&name(&long), at(100), FREED));
}

#[test]
fn a_decision_names_the_wait_queue_and_settles_the_unlinked_lock_of_its_name() {
    let mut store = in_quarantine();
    unlink(&mut store, "k", &lock(7, 200), 100, true);
    join(&mut store, "k", 1, None);
    let mut in_key = lock(8, 200);
    let mut decided = Decided::default();
    let release = ReleaseRequest { owner: Owner::new(b"A").unwrap(), left: HoldsLeft::OneLess, token: None };
    let left =
        store.decide(&name("k"), &mut in_key, &mut decided, now(100), FREED, |step| step.release(&release));
    assert_eq!(left.unwrap(), 0);
    assert_eq!(decided.waits.map(|waits| waits.lock), Some(name("k")));
    assert!(!store.has_unlinked());
    assert_eq!(ended(&store, "k"), Some(8));
}

#[test]
fn a_decision_on_a_lock_that_came_without_a_decision_makes_its_waiters_due_for_a_recheck() {
    for (deadline, changed) in [(500_000, true), (2_000_000, false)] {
        let mut store = in_quarantine();
        join(&mut store, "k", 1, None);
        let queue = store.queue(&name("k")).unwrap();
        // The last decision found no lock, so the queue is due when the quarantine ends.
        store.queues.set_due(queue, store.quarantine.ends(at(100)));
        let (mut renamed, mut decided) = (lock(7, deadline), Decided::default());
        store.decide(&name("k"), &mut renamed, &mut decided, now(100), FREED, |step| step.expire_and_serve());
        assert_eq!(store.queues.pop_due(at(100)), changed.then_some((queue, true)));
    }
}
