//! Eviction and maxmemory.

use lockward_tests::{Reply, Server};

#[test]
fn a_held_lock_that_is_evicted_is_found_by_the_next_look_at_it() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.acquire("lock A");
    let before = a.holder("lock");
    a.evict("lock");
    assert_eq!(a.holder("lock").tenure(), before.tenure());
}

#[test]
fn a_held_lock_that_is_evicted_is_not_granted_to_another() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.evict("lock");
    assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    let mut b = server.waiter("lock B BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_held_lock_that_is_evicted_is_renewed_and_re_entered() {
    let server = Server::start();
    let mut a = server.client();
    let grant = a.acquire("lock A PX 600000");
    a.evict("lock");
    assert_eq!(a.call("LOCK.RENEW lock A"), Reply::Int(grant.token));
    a.evict("lock");
    let again = a.acquire("lock A");
    assert_eq!((again.token, again.holds), (grant.token, 2));
    assert_eq!(a.call("EXISTS lock"), Reply::Int(1));
}

#[test]
fn a_held_lock_that_is_evicted_keeps_its_waiters_waiting() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.evict("lock");
    assert_eq!(a.owner("lock").as_deref(), Some("A"));
    assert_eq!(a.queue("lock"), ["B"]);
    assert!(b.has_no_reply());
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn the_lease_of_a_lock_that_is_evicted_still_ends() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("LOCK.RENEW lock A PX 1000").int();
    a.evict("lock");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_flush_breaks_a_lock_that_was_evicted_before() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.evict("lock");
    a.call("FLUSHALL");
    assert_eq!(a.info("lock"), None);
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn a_lock_that_was_evicted_is_swapped_with_its_database() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 600000").token;
    a.evict("lock");
    assert_eq!(a.call("SWAPDB 0 1"), Reply::ok());
    assert_eq!(a.info("lock"), None);
    assert_eq!(a.acquire("lock B").holds, 1);
    a.call("SELECT 1");
    assert_eq!(a.holder("lock").tenure(), ("A", 1, token));
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
}

#[test]
fn a_value_in_the_place_of_a_lock_that_was_evicted_breaks_it() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.evict("lock");
    a.call("SET lock value");
    assert_eq!(a.call("LOCK.INFO lock").error_word(), "WRONGTYPE");
    a.call("DEL lock");
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn a_lock_is_not_taken_beyond_the_memory_limit() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 20000");
    a.call("CONFIG SET maxmemory 1");
    for command in ["LOCK.ACQUIRE other A", "LOCK.ACQUIRE lock A", "LOCK.ACQUIRE lock B BLOCK 0"] {
        assert_eq!(a.call(command).error_word(), "OOM", "{command}");
    }
    assert_eq!(a.info("other"), None);
    assert_eq!(a.holder("lock").holds, 1);
}

#[test]
fn a_lock_is_renewed_and_released_beyond_the_memory_limit() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 20000").token;
    a.call("CONFIG SET maxmemory 1");
    assert_eq!(a.call("LOCK.RENEW lock A PX 600000"), Reply::Int(token));
    assert!(a.holder("lock").lease_left > 100_000);
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_release_hands_the_lock_over_beyond_the_memory_limit() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("CONFIG SET maxmemory 1");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn released_locks_leave_no_memory_behind() {
    let server = Server::start();
    let mut a = server.client();
    let mut churn = |from: usize| {
        for batch in 0..20 {
            let keys: Vec<String> = (0..500).map(|number| format!("{from}-{batch}-{number}")).collect();
            a.call_all(keys.iter().map(|key| format!("LOCK.ACQUIRE lock-{key} A")));
            a.call_all(keys.iter().map(|key| format!("LOCK.RELEASE lock-{key} A")));
        }
        a.stat("memory", "used_memory")
    };
    let before = churn(0);
    let after = (1..4).map(&mut churn).last().unwrap();
    assert!(after < before + 200_000, "{before} bytes grew to {after}");
}
