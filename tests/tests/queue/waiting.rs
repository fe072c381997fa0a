//! LOCK.ACQUIRE with BLOCK, and the wait queue.

use lockward_tests::{Client, Reply, Server, Setup, eventually};
use std::time::{Duration, Instant};

#[test]
fn waiters_are_served_first_come_first_served() {
    let server = Server::start();
    let mut a = server.client();
    let mut before = a.acquire("lock A").token;
    let owners = ["B", "C", "D", "E", "F"];
    let waiters = server.waiters("lock", owners);
    assert_eq!(a.queue("lock"), owners);
    a.call("LOCK.RELEASE lock A");
    for (mut waiter, owner) in waiters.into_iter().zip(owners) {
        let grant = waiter.reply().grant();
        assert_eq!(grant.holds, 1);
        assert!(grant.token > before);
        before = grant.token;
        assert_eq!(a.owner("lock").as_deref(), Some(owner));
        assert_eq!(waiter.call(format!("LOCK.RELEASE lock {owner}")), Reply::Int(0));
    }
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_wait_limit_that_is_reached_is_answered_with_null() {
    let (server, mut a, _b) = Server::start_contended();
    let mut c = server.client();
    let asked = Instant::now();
    assert_eq!(c.call("LOCK.ACQUIRE lock C BLOCK 100"), Reply::NullArray);
    assert!(asked.elapsed() >= Duration::from_millis(100));
    assert_eq!(a.queue("lock"), ["B"]);
}

#[test]
fn wait_limits_end_in_the_order_of_their_deadlines() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut late = server.waiter("lock C BLOCK 2000");
    let mut early = server.client();
    early.ask("lock D BLOCK 50");
    assert_eq!(early.reply(), Reply::NullArray);
    assert_eq!(a.queue("lock"), ["B", "C"]);
    assert_eq!(late.reply(), Reply::NullArray);
    assert_eq!(a.queue("lock"), ["B"]);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn block_0_waits_without_limit() {
    let (server, mut a, mut b) = Server::start_contended();
    assert_eq!(a.first_waiter("lock").wait_left, -1);
    assert_eq!(server.client().call("LOCK.ACQUIRE lock C BLOCK 200"), Reply::NullArray);
    assert!(b.has_no_reply());
    assert_eq!(a.queue("lock"), ["B"]);
}

#[test]
fn a_client_that_does_not_wait_leaves_no_trace_in_the_queue() {
    let (server, mut a, _b) = Server::start_contended();
    assert_eq!(server.client().call("LOCK.ACQUIRE lock C"), Reply::NullArray);
    assert_eq!(a.queue("lock"), ["B"]);
}

#[test]
fn a_release_hands_the_lock_over_in_the_same_decision() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.send_all(["LOCK.RELEASE lock A", "LOCK.INFO lock", "LOCK.ACQUIRE lock A"]);
    assert_eq!(a.reply(), Reply::Int(0));
    let info = a.reply().info();
    assert_eq!((info.holders[0].owner.as_str(), info.waiters), ("B", 0));
    assert_eq!(a.reply(), Reply::NullArray);
    assert_eq!(b.reply().grant().token, info.holders[0].token);
}

#[test]
fn a_lease_begins_with_the_grant_not_with_the_request() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut b = server.waiter("lock B BLOCK 0 PX 300");
    eventually("B has waited longer than its lease", || a.first_waiter("lock").waited > 300);
    let results = a.transact(["LOCK.RELEASE lock A", "LOCK.INFO lock"]);
    let holder = &results[1].info().holders[0];
    assert_eq!(holder.owner, "B");
    assert!(150 < holder.lease_left && holder.lease_left <= 300, "{holder:?}");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_waiter_that_disconnects_is_skipped() {
    for leave in [Client::break_off as fn(Client), drop] {
        let (server, mut a, b) = Server::start_contended();
        let mut c = server.waiter("lock C BLOCK 0");
        leave(b);
        a.see_waiters("lock", 1);
        assert_eq!(a.queue("lock"), ["C"]);
        a.call("LOCK.RELEASE lock A");
        assert_eq!(c.reply().grant().holds, 1);
    }
}

#[test]
fn a_waiter_that_is_killed_is_skipped() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut c = server.waiter("lock C BLOCK 0");
    let id = a.first_waiter("lock").client_id;
    assert_eq!(a.call(format!("CLIENT KILL ID {id}")), Reply::Int(1));
    assert!(b.is_closed());
    assert_eq!(a.queue("lock"), ["C"]);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(c.reply().grant().holds, 1);
}

#[test]
fn an_owners_other_waits_are_granted_with_it_as_re_entries() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let [mut first, mut c, mut second, mut third] = server.waiters("lock", ["B", "C", "B", "B"]);
    a.call("LOCK.RELEASE lock A");
    let grants = [&mut first, &mut second, &mut third].map(|client| client.reply().grant());
    assert_eq!(grants.map(|grant| grant.holds), [1, 2, 3]);
    assert!(grants.iter().all(|grant| grant.token == grants[0].token));
    assert_eq!(a.queue("lock"), ["C"]);
    assert_eq!(a.call("LOCK.RELEASE lock B ALL"), Reply::Int(0));
    assert_eq!(c.reply().grant().holds, 1);
}

#[test]
fn commands_sent_behind_a_wait_follow_its_reply() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.acquire("lock A");
    b.send_all(["LOCK.ACQUIRE lock B BLOCK 0", "PING", "LOCK.RELEASE lock B", "PING"]);
    a.see_waiters("lock", 1);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    assert_eq!(b.reply(), Reply::Simple("PONG".into()));
    assert_eq!(b.reply(), Reply::Int(0));
    assert_eq!(b.reply(), Reply::Simple("PONG".into()));
    assert_eq!(a.info("lock"), None);
}

#[test]
fn queues_of_the_same_name_in_two_databases_are_two_queues() {
    let (server, mut a, mut b) = Server::start_contended();
    let (mut c, mut d) = (server.client(), server.client());
    for client in [&mut c, &mut d] {
        client.call("SELECT 1");
    }
    c.acquire("lock C");
    d.ask("lock D BLOCK 0");
    c.see_waiters("lock", 1);
    c.call("LOCK.RELEASE lock C");
    assert_eq!(d.reply().grant().holds, 1);
    assert!(b.has_no_reply());
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_thousand_waiters_are_served_in_order() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut waiters: Vec<Client> = (0..1_000)
        .map(|number| {
            let mut waiter = server.client();
            waiter.ask(&format!("lock {number} BLOCK 0"));
            if number % 50 == 49 {
                a.see_waiters("lock", number + 1);
            }
            waiter
        })
        .collect();
    let order = a.queue("lock");
    a.call("LOCK.RELEASE lock A");
    let mut token = 0;
    for owner in order {
        let waiter = &mut waiters[owner.parse::<usize>().unwrap()];
        let grant = waiter.reply().grant();
        assert!(grant.token > token);
        token = grant.token;
        assert_eq!(waiter.call(format!("LOCK.RELEASE lock {owner}")), Reply::Int(0));
    }
    assert_eq!(a.info("lock"), None);
}

#[test]
fn two_thousand_waiters_that_all_disconnect_leave_nothing_behind() {
    let (server, mut a, mut b) = Server::start_contended();
    let waiters: Vec<Client> = (0..2_000)
        .map(|number| {
            let mut waiter = server.client();
            waiter.ask(&format!("lock {number} BLOCK 0"));
            waiter
        })
        .collect();
    a.see_waiters("lock", 2_001);
    for (number, waiter) in waiters.into_iter().enumerate() {
        if number % 2 == 0 { waiter.break_off() } else { drop(waiter) }
    }
    a.see_waiters("lock", 1);
    a.see_blocked(1);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    b.call("LOCK.RELEASE lock B");
    assert_eq!(a.info("lock"), None);
    assert_eq!(a.call("LOCK.TOP"), Reply::Array(vec![]));
}

#[test]
fn a_full_queue_refuses_one_more() {
    let (server, mut a, b) = Setup::new().module("max-waiters 2").start_contended();
    let _c = server.waiter("lock C BLOCK 0");
    let mut d = server.client();
    assert_eq!(d.call("LOCK.ACQUIRE lock D BLOCK 0").error_word(), "MAXWAITERS");
    assert_eq!(a.queue("lock"), ["B", "C"]);
    assert_eq!(d.call("LOCK.ACQUIRE lock D"), Reply::NullArray);
    assert_eq!(a.acquire("lock A BLOCK 0").holds, 2);
    a.acquire("other A");
    let _e = server.waiter("other E BLOCK 0");
    drop(b);
    a.see_waiters("lock", 1);
    let _f = server.waiter("lock F BLOCK 0");
    assert_eq!(a.queue("lock"), ["C", "F"]);
}

#[test]
fn a_full_server_refuses_one_more_waiter() {
    let (server, mut a, b) = Setup::new().module("max-waiters-total 2").start_contended();
    a.acquire("other A");
    let _c = server.waiter("other C BLOCK 0");
    let mut d = server.client();
    for key in ["lock", "other"] {
        let reply = d.call(format!("LOCK.ACQUIRE {key} D BLOCK 0"));
        assert_eq!(reply.error_word(), "MAXWAITERS", "{key}");
    }
    drop(b);
    a.see_waiters("lock", 0);
    let _e = server.waiter("other E BLOCK 0");
    assert_eq!(a.queue("other"), ["C", "E"]);
}

#[test]
fn the_limits_of_the_queue_length_can_be_set_at_any_time() {
    let (server, mut a, _b) = Server::start_contended();
    let mut c = server.client();
    for setting in ["lock.max-waiters", "lock.max-waiters-total"] {
        assert_eq!(a.call(format!("CONFIG SET {setting} 1")), Reply::ok());
        assert_eq!(c.call("LOCK.ACQUIRE lock C BLOCK 0").error_word(), "MAXWAITERS", "{setting}");
        assert_eq!(a.call(format!("CONFIG SET {setting} 10000")), Reply::ok());
    }
    let _d = server.waiter("lock D BLOCK 0");
    assert_eq!(a.queue("lock"), ["B", "D"]);
}

#[test]
fn a_repeated_wait_takes_the_queue_position_of_the_first_and_needs_no_second() {
    let server = Server::start_with("max-waiters 1 max-waiters-total 1");
    let mut a = server.client();
    a.acquire("lock A");
    let mut first = server.waiter("lock B HOLDS 1 BLOCK 0");
    let mut second = server.client();
    second.ask("lock B HOLDS 1 BLOCK 0");
    assert_eq!(first.reply().error_word(), "SUPERSEDED");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(second.reply().grant().holds, 1);
}

#[test]
fn client_unblock_ends_a_wait_if_the_server_can_do_it_safely() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut c = server.waiter("lock C BLOCK 0");
    let ids: Vec<i64> = a
        .call("LOCK.INFO lock WAITERS 2")
        .info()
        .queue
        .unwrap()
        .iter()
        .map(|waiter| waiter.client_id)
        .collect();
    if server.has_redis(7, 4) {
        assert_eq!(a.call(format!("CLIENT UNBLOCK {}", ids[0])), Reply::Int(1));
        assert_eq!(b.reply(), Reply::NullArray);
        assert_eq!(a.call(format!("CLIENT UNBLOCK {} ERROR", ids[1])), Reply::Int(1));
        assert_eq!(c.reply().error_word(), "UNBLOCKED");
        a.see_waiters("lock", 0);
    } else {
        assert_eq!(a.call(format!("CLIENT UNBLOCK {}", ids[0])), Reply::Int(0));
        assert_eq!(a.call(format!("CLIENT UNBLOCK {} ERROR", ids[1])), Reply::Int(0));
        assert!(b.has_no_reply() && c.has_no_reply());
        assert_eq!(a.queue("lock"), ["B", "C"]);
    }
}

#[test]
fn a_waiter_that_is_unblocked_right_after_its_grant_gets_one_reply() {
    for how in ["TIMEOUT", "ERROR"] {
        let server = Server::start();
        let (mut a, mut b) = (server.client(), server.client());
        a.acquire("lock A");
        let id = b.id();
        b.ask("lock B BLOCK 0 PX 600000");
        a.see_waiters("lock", 1);
        a.transact(["LOCK.RELEASE lock A", &format!("CLIENT UNBLOCK {id} {how}")]);
        let granted = matches!(b.reply(), Reply::Array(_));
        assert_eq!(b.call("PING"), Reply::Simple("PONG".into()), "one reply for each command");
        if granted {
            assert_eq!(a.owner("lock").as_deref(), Some("B"));
        } else {
            eventually("the lock is free", || a.info("lock").is_none());
        }
    }
}

#[test]
fn a_waiter_whose_limit_is_reached_as_the_lease_ends_gets_one_reply() {
    let server = Server::start();
    let mut a = server.client();
    let mut waiters: Vec<Client> = (0..100)
        .map(|number| {
            a.acquire(&format!("lock-{number} A PX 200"));
            let mut waiter = server.client();
            waiter.ask(&format!("lock-{number} B PX 600000 BLOCK {}", 190 + number / 5));
            waiter
        })
        .collect();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let reply = waiter.reply();
        assert_eq!(waiter.call("PING"), Reply::Simple("PONG".into()), "one reply for each command");
        let owner = a.owner(&format!("lock-{number}"));
        match reply {
            Reply::NullArray => assert_ne!(owner.as_deref(), Some("B")),
            reply => assert_eq!((reply.grant().holds, owner.as_deref()), (1, Some("B"))),
        }
    }
}

#[test]
fn the_wait_command_counts_a_grant_as_a_write_of_the_waiter() {
    let (primary, mut a, mut b) = Server::start_contended();
    let replica = Server::start_replica_of(&primary);
    b.send("WAIT 1 0");
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    assert_eq!(b.reply(), Reply::Int(1));
    assert_eq!(replica.client().owner("lock").as_deref(), Some("B"));
}
