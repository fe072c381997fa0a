//! Another module runs commands in event callbacks while a command of Lockward is running. No waiter is forgotten,
//! and no lock is lost.

use lockward_tests::{Client, Reply, Server, Setup, eventually};

/// A server with Lockward and another module, which can run a command when it receives an event.
fn start() -> Server {
    Setup::new().beside_another().start()
}

/// Makes the other module run `command` in its callback of the next `event`.
#[track_caller]
fn at(client: &mut Client, event: &str, command: &str) {
    assert_eq!(client.call(format!("EMPTY.CALL_ON_EVENT {event} {command}")).text(), "OK");
}

/// A client that waits for `lock`, and its id.
fn waiter_with_id(server: &Server, owner: &str) -> (Client, i64) {
    let mut waiter = server.client();
    let id = waiter.id();
    waiter.ask(&format!("lock {owner} PX 600000 BLOCK 0"));
    server.client().see_waiters("lock", 1);
    (waiter, id)
}

/// Actions that free A's lock, each with the event in whose callback the other module runs its command.
const FREED: [(&str, &str); 4] = [
    ("LOCK.RELEASE lock A", "lock.released"),
    ("LOCK.RELEASE lock A", "lock.acquired"),
    ("DEL lock", "new"),
    ("DEL lock", "lock.acquired"),
];

#[test]
fn a_waiter_that_is_killed_while_it_is_granted_the_lock_passes_it_on() {
    let server = start();
    let mut a = server.client();
    for (command, event) in FREED {
        a.acquire("lock A PX 600000");
        let (mut b, id) = waiter_with_id(&server, "B");
        let mut c = server.waiter("lock C PX 600000 BLOCK 0");
        at(&mut a, event, &format!("CLIENT KILL ID {id}"));
        a.call(command);
        assert_eq!(c.reply().grant().holds, 1, "{command}, killed at {event}");
        eventually("the waiter is gone", || b.is_closed());
        assert_eq!(a.owner("lock").as_deref(), Some("C"), "{command}, killed at {event}");
        assert_eq!(c.call("LOCK.RELEASE lock C"), Reply::Int(0));
    }
}

#[test]
fn a_waiter_that_is_unblocked_while_it_is_granted_the_lock_has_it_or_passes_it_on() {
    let server = start();
    let mut a = server.client();
    for (how, (command, event)) in
        ["TIMEOUT", "ERROR"].into_iter().flat_map(|how| FREED.map(|row| (how, row)))
    {
        a.acquire("lock A PX 600000");
        let (mut b, id) = waiter_with_id(&server, "B");
        let mut c = server.waiter("lock C PX 600000 BLOCK 0");
        at(&mut a, event, &format!("CLIENT UNBLOCK {id} {how}"));
        a.call(command);
        let which = format!("{command}, unblocked at {event} with {how}");
        // Some servers do not unblock B during the grant. In that case B receives the grant, and must release
        // the lock.
        match b.reply() {
            Reply::NullArray => {}
            Reply::Error(text) => assert!(text.starts_with("UNBLOCKED"), "{which}: {text}"),
            granted => {
                assert_eq!(granted.grant().holds, 1, "{which}");
                assert_eq!(b.call("LOCK.RELEASE lock B"), Reply::Int(0), "{which}");
            }
        }
        assert_eq!(c.reply().grant().holds, 1, "{which}");
        assert_eq!(a.owner("lock").as_deref(), Some("C"), "{which}");
        assert_eq!(c.call("LOCK.RELEASE lock C"), Reply::Int(0));
    }
}

#[test]
fn the_hold_of_a_waiter_that_is_killed_during_its_grant_is_taken_back() {
    let server = start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let (_b, id) = waiter_with_id(&server, "B");
    let mut again = server.waiter("lock B PX 600000 BLOCK 0");
    let _c = server.waiter("lock C BLOCK 0");
    at(&mut a, "lock.released", &format!("CLIENT KILL ID {id}"));
    a.call("LOCK.RELEASE lock A");
    assert_eq!(again.reply().grant().holds, 2);
    eventually("the hold of the dead client is taken back", || a.holder("lock").holds == 1);
    assert_eq!(a.queue("lock"), ["C"]);
}

#[test]
fn a_client_that_queues_for_a_lock_that_has_just_been_freed_is_granted_the_lock() {
    let server = start();
    let (mut a, mut c) = (server.client(), server.client());
    a.acquire("lock A PX 600000");
    let mut b = server.waiter("lock B PX 600000 BLOCK 0");
    at(&mut a, "lock.acquired", "DEL lock");
    // The server runs all three commands in one event loop iteration. The lease ends during the sleep. So LOCK.ACQUIRE
    // finds that A's lease is over, and grants the lock to B. The other module receives the event of this grant, and
    // deletes the lock. After that, C joins the queue.
    c.send_all(["LOCK.RENEW lock A PX 20", "DEBUG SLEEP 0.1", "LOCK.ACQUIRE lock C PX 600000 BLOCK 0"]);
    c.reply().int();
    c.reply();
    assert_eq!(b.reply().grant().holds, 1);
    assert_eq!(c.reply().grant().holds, 1);
    assert_eq!(a.owner("lock").as_deref(), Some("C"));
}

#[test]
fn a_held_lock_is_kept_although_another_module_acts_on_its_eviction_event() {
    for command in ["INCR evictions", "LOCK.ACQUIRE free B", "LOCK.INFO other"] {
        let server = start();
        let mut a = server.client();
        // The first call makes the other module subscribe before Lockward does, so the other module gets the event
        // first.
        at(&mut a, "evicted", command);
        a.call("CONFIG SET maxmemory-policy allkeys-random");
        let names: Vec<String> = (0..20).map(|number| format!("lock-{number}")).collect();
        for round in 0..10 {
            a.call_all(names.iter().map(|name| format!("LOCK.ACQUIRE {name} A PX 600000")));
            at(&mut a, "evicted", command);
            a.call("CONFIG SET maxmemory 1");
            eventually("all are evicted", || a.call(format!("EXISTS {}", names.join(" "))) == Reply::Int(0));
            for name in &names {
                assert_eq!(a.owner(name).as_deref(), Some("A"), "{name}, {command}, round {round}");
            }
            a.call("CONFIG SET maxmemory 0");
            a.call_all(names.iter().map(|name| format!("LOCK.RELEASE {name} A ALL")));
            a.call("DEL free");
        }
    }
}

#[test]
fn a_flush_during_an_event_leaves_nobody_waiting_for_a_free_lock() {
    for event in ["lock.released", "lock.acquired"] {
        let server = start();
        let mut a = server.client();
        a.acquire("lock A PX 600000");
        let [mut b, mut c] =
            ["B", "C"].map(|owner| server.waiter(&format!("lock {owner} PX 600000 BLOCK 0")));
        at(&mut a, event, "FLUSHALL");
        a.call("LOCK.RELEASE lock A");
        assert_eq!(b.reply().grant().holds, 1, "{event}");
        assert_eq!(c.reply().grant().holds, 1, "{event}");
        assert_eq!(a.owner("lock").as_deref(), Some("C"), "{event}");
    }
}

#[test]
fn a_lock_that_another_module_deletes_in_its_event_goes_to_the_waiter() {
    let server = Setup::new().beside_another().start();
    let mut a = server.client();
    for event in ["lock.released", "lock.acquired"] {
        a.acquire("lock A PX 600000");
        a.acquire("other A PX 600000");
        let mut b = server.waiter("other B BLOCK 0");
        let mut c = server.waiter("lock C BLOCK 0");
        assert_eq!(a.call(format!("EMPTY.CALL_ON_EVENT {event} DEL other")).text(), "OK");
        a.call("LOCK.RELEASE lock A");
        for (client, lock, owner) in [(&mut b, "other", "B"), (&mut c, "lock", "C")] {
            assert_eq!(client.reply().grant().holds, 1, "{lock} after {event}");
            client.call(format!("LOCK.RELEASE {lock} {owner}"));
        }
    }
}

#[test]
fn a_lock_that_another_module_deletes_in_the_event_of_its_grant_goes_to_the_next_waiter() {
    let server = Setup::new().beside_another().start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let [mut b, mut c] = ["B", "C"].map(|owner| server.waiter(&format!("lock {owner} PX 600000 BLOCK 0")));
    a.call("EMPTY.CALL_ON_EVENT lock.acquired DEL lock");
    a.call("LOCK.RELEASE lock A");
    let first = b.reply().grant().token;
    assert!(c.reply().grant().token > first);
    assert_eq!(a.owner("lock").as_deref(), Some("C"));
}

#[test]
fn a_command_inside_an_event_of_a_guarded_command_may_change_the_lock() {
    let server = start();
    let mut a = server.client();
    for command in ["LOCK.RELEASE lock A", "DEL lock", "LOCK.RENEW lock A PX 1"] {
        let token = a.acquire("lock A PX 600000").token;
        let mut b = server.waiter("lock B PX 600000 BLOCK 0");
        at(&mut a, "new", command);
        assert_eq!(a.call(format!("LOCK.GUARD lock {token} SET data 1")), Reply::ok(), "{command}");
        assert_eq!(b.reply().grant().holds, 1, "{command}");
        let late = a.call(format!("LOCK.GUARD lock {token} SET data 2"));
        assert_eq!(late.error_word(), "FENCED", "{command}");
        assert_ne!(a.call("GET data"), Reply::bulk("2"), "{command}");
        a.call_all(["LOCK.RELEASE lock B", "DEL data"]);
    }
}

#[test]
fn a_guard_inside_an_event_of_a_guarded_command_works() {
    let server = start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 600000").token;
    at(&mut a, "new", &format!("LOCK.GUARD lock {token} SET inner 1"));
    assert_eq!(a.call(format!("LOCK.GUARD lock {token} SET outer 1")), Reply::ok());
    assert_eq!(a.call("MGET inner outer"), Reply::Array(vec![Reply::bulk("1"), Reply::bulk("1")]));
}
