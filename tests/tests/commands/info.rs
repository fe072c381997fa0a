//! LOCK.INFO and LOCK.TOP.

use lockward_tests::{Reply, Server, eventually};

#[test]
fn info_of_a_free_lock_is_null() {
    let server = Server::start();
    assert_eq!(server.client().call("LOCK.INFO lock"), Reply::NullArray);
    assert_eq!(server.client().call("LOCK.INFO lock WAITERS 5"), Reply::NullArray);
    assert_eq!(server.client3().call("LOCK.INFO lock"), Reply::Null);
}

#[test]
fn info_of_a_held_lock_shows_the_holder() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let grant = a.acquire("lock A");
    let info = a.info("lock").unwrap();
    assert_eq!((info.slots, info.weight, info.holding, info.waiters), (1, 1, 1, 0));
    assert_eq!(info.holders.len(), 1);
    assert_eq!(info.queue, None);
    let holder = &info.holders[0];
    assert_eq!((holder.owner.as_str(), holder.holds, holder.slots, holder.weight), ("A", 2, 1, 1));
    assert_eq!(holder.token, grant.token);
    assert!(holder.held_for >= 0);
}

#[test]
fn the_lease_left_decreases_and_the_time_held_increases() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 100000");
    let first = a.holder("lock");
    eventually("the lock has been held for longer", || a.holder("lock").held_for > first.held_for);
    eventually("less is left of the lease", || a.holder("lock").lease_left < first.lease_left);
}

#[test]
fn the_time_held_is_that_of_the_whole_tenure() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 100000");
    eventually("the lock has been held for some time", || a.holder("lock").held_for > 50);
    a.acquire("lock A");
    a.call("LOCK.RENEW lock A");
    assert!(a.holder("lock").held_for > 50);
}

#[test]
fn the_time_held_begins_with_the_hand_off() {
    let (_server, mut a, _b) = Server::start_contended();
    eventually("the lock has been held for some time", || a.holder("lock").held_for > 500);
    let results = a.transact(["LOCK.RELEASE lock A", "LOCK.INFO lock"]);
    assert!(results[1].info().holders[0].held_for < 400);
}

#[test]
fn the_first_waiters_are_shown_on_request() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.acquire("lock A PX 600000");
    let id = b.id();
    b.ask("lock B BLOCK 500000");
    a.see_waiters("lock", 1);
    let _others = server.waiters("lock", ["C", "D"]);
    let info = a.call("LOCK.INFO lock WAITERS 2").info();
    assert_eq!(info.waiters, 3);
    let queue = info.queue.unwrap();
    let owners: Vec<&str> = queue.iter().map(|waiter| waiter.owner.as_str()).collect();
    assert_eq!(owners, ["B", "C"]);
    assert_eq!((queue[0].client_id, queue[0].slots, queue[0].weight), (id, 1, 1));
    assert!(0 < queue[0].wait_left && queue[0].wait_left <= 500_000, "{queue:?}");
    assert_eq!(queue[1].wait_left, -1);
    assert!(queue[0].waited >= queue[1].waited && queue[1].waited >= 0, "{queue:?}");
}

#[test]
fn info_may_ask_for_more_waiters_than_there_are() {
    let (_server, mut a, _b) = Server::start_contended();
    for count in ["1", "2", "1000000", "9223372036854775807"] {
        let info = a.call(format!("LOCK.INFO lock waiters {count}")).info();
        assert_eq!(info.queue.unwrap().len(), 1, "{count}");
    }
    assert_eq!(a.call("LOCK.INFO lock WAITERS 0").info().queue, Some(vec![]));
}

#[test]
fn the_time_waited_increases_and_the_wait_left_decreases() {
    let (_server, mut a, _b) = Server::start_contended();
    let waited = |reply: Reply| reply.info().queue.unwrap()[0].waited;
    let first = waited(a.call("LOCK.INFO lock WAITERS 1"));
    eventually("the client has waited longer", || waited(a.call("LOCK.INFO lock WAITERS 1")) > first);
}

#[test]
fn info_changes_nothing() {
    let (_server, mut a, _b) = Server::start_contended();
    let digest = a.call("DEBUG DIGEST");
    let dirty = a.stat("persistence", "rdb_changes_since_last_save");
    a.call("LOCK.INFO lock WAITERS 5");
    a.call("LOCK.TOP");
    assert_eq!(a.call("DEBUG DIGEST"), digest);
    assert_eq!(a.stat("persistence", "rdb_changes_since_last_save"), dirty);
}

#[test]
fn top_is_empty_when_nobody_waits() {
    let server = Server::start();
    let mut a = server.client();
    assert_eq!(a.call("LOCK.TOP"), Reply::Array(vec![]));
    a.acquire("lock A");
    assert_eq!(a.call("LOCK.TOP"), Reply::Array(vec![]));
}

#[test]
fn top_lists_the_most_contended_locks_first() {
    let server = Server::start();
    let mut a = server.client();
    let mut waiters = Vec::new();
    for (key, count) in [("one", 1), ("three", 3), ("two", 2), ("none", 0)] {
        a.acquire(&format!("{key} A-{key}"));
        for _ in 0..count {
            waiters.push(server.waiter(&format!("{key} B BLOCK 0")));
        }
    }
    let top = a.call("LOCK.TOP");
    let rows: Vec<(String, i64)> =
        top.items().iter().map(|row| (row.field("key").text(), row.field("waiters").int())).collect();
    assert_eq!(rows, [("three".into(), 3), ("two".into(), 2), ("one".into(), 1)]);
    let first = &top.items()[0];
    assert_eq!(first.field("holders"), &Reply::Int(1));
    assert_eq!(first.field("holder"), &Reply::bulk("A-three"));
    assert!(first.field("longest-wait").int() >= 0);
    let top = a.call("LOCK.TOP COUNT 2");
    assert_eq!(top.items().len(), 2);
    assert_eq!(top.items()[0].field("key"), &Reply::bulk("three"));
    assert_eq!(a.call("LOCK.TOP count 100").items().len(), 3);
}

#[test]
fn of_locks_with_equally_many_waiters_top_lists_the_longest_wait_first() {
    let server = Server::start();
    let mut a = server.client();
    let names = ["d", "b", "e", "a", "f", "c"];
    let mut waiters = Vec::new();
    for name in names {
        a.acquire(&format!("{name} A"));
        waiters.push(server.waiter(&format!("{name} B BLOCK 0")));
    }
    for count in [6, 3] {
        let top = a.call(format!("LOCK.TOP COUNT {count}"));
        let listed: Vec<String> = top.items().iter().map(|row| row.field("key").text()).collect();
        assert_eq!(listed, names[..count]);
    }
}

#[test]
fn top_shows_a_holder_whose_lease_ends_while_the_script_runs() {
    let (_server, mut a, _b) = Server::start_contended();
    let script = "redis.call('LOCK.RENEW', 'lock', 'A', 'PX', 1) \
                  local began = redis.call('TIME') local now repeat now = redis.call('TIME') \
                  until (now[1] - began[1]) * 1000000 + now[2] - began[2] > 20000 \
                  return redis.call('LOCK.TOP')";
    let top = a.call(["EVAL", script, "1", "lock"]);
    assert_eq!(top.items()[0].field("holder"), &Reply::bulk("A"), "{top:?}");
}

#[test]
fn the_longest_wait_is_that_of_the_first_waiter() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let _b = server.waiter("lock B BLOCK 0");
    eventually("B has waited", || a.call("LOCK.TOP").items()[0].field("longest-wait").int() > 50);
    let _c = server.waiter("lock C BLOCK 0");
    assert!(a.call("LOCK.TOP").items()[0].field("longest-wait").int() > 50);
}
