//! The option KEEP: an owner keeps its place in the queue after a wait that was not granted.

use lockward_tests::{Client, Reply, Server, Setup, eventually};
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The options of a request whose place is kept for the whole test.
const KEEP: &str = "HOLDS 1 KEEP 60000";

/// A server on which A holds `lock` exclusively. Also returns A's connection.
#[track_caller]
fn start_held() -> (Server, Client) {
    start_held_with("")
}

#[track_caller]
fn start_held_with(mode: &str) -> (Server, Client) {
    let server = Server::start();
    let mut a = server.client();
    a.acquire(&format!("lock A {mode} PX 600000"));
    (server, a)
}

/// Lets `owner` wait for `lock` until the wait limit is reached. The place of `owner` is then kept.
#[track_caller]
fn wait_a_slice(server: &Server, owner: &str) {
    let mut client = server.client();
    assert!(client.call(format!("LOCK.ACQUIRE lock {owner} BLOCK 1 {KEEP}")).is_null(), "{owner} is granted");
}

/// Lets `owner` wait for `lock` and disconnect. The place of `owner` is then kept.
#[track_caller]
fn wait_and_leave(server: &Server, owner: &str) {
    let mut observer = server.client();
    let before = observer.places_kept();
    drop(server.waiter(&format!("lock {owner} BLOCK 0 {KEEP}")));
    observer.see_places_kept(before + 1);
}

// When the server keeps a place.

#[test]
fn an_owner_that_asks_again_after_its_wait_limit_gets_its_place_and_waiting_time_back() {
    let (server, mut a) = start_held();
    let mut w = server.client();
    let asked = Instant::now();
    assert!(w.call(format!("LOCK.ACQUIRE lock W BLOCK 50 {KEEP}")).is_null());
    assert!(asked.elapsed() >= Duration::from_millis(50));
    let _c = server.waiter("lock C BLOCK 0");
    assert_eq!(a.queue("lock"), ["C"]);
    let _w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
    let queue = a.call("LOCK.INFO lock WAITERS 9").info().queue.unwrap();
    assert_eq!([queue[0].owner.as_str(), &queue[1].owner], ["W", "C"]);
    assert!(queue[0].waited >= 50 && queue[0].waited > queue[1].waited, "{queue:?}");
    assert_eq!(a.places_kept(), 0);
}

#[test]
fn an_owner_that_asks_again_after_its_connection_was_closed_gets_its_place_back() {
    for leave in [Client::break_off as fn(Client), drop] {
        let (server, mut a) = start_held();
        leave(server.waiter(&format!("lock W BLOCK 0 {KEEP}")));
        a.see_places_kept(1);
        let _c = server.waiter("lock C BLOCK 0");
        let mut w = server.waiter("lock W BLOCK 0 HOLDS 1");
        assert_eq!(a.queue("lock"), ["W", "C"]);
        a.call("LOCK.RELEASE lock A");
        assert_eq!(w.reply().grant().holds, 1);
        assert_eq!(a.places_kept(), 0);
    }
}

#[test]
fn a_killed_client_keeps_its_place() {
    let (server, mut a) = start_held();
    let mut w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
    let id = a.first_waiter("lock").client_id;
    assert_eq!(a.call(format!("CLIENT KILL ID {id}")), Reply::Int(1));
    assert!(w.is_closed());
    let _c = server.waiter("lock C BLOCK 0");
    let _w = server.waiter("lock W BLOCK 0 HOLDS 1");
    assert_eq!(a.queue("lock"), ["W", "C"]);
}

#[test]
fn an_unblocked_client_keeps_its_place() {
    for how in ["", "ERROR"] {
        let (server, mut a) = start_held();
        let mut w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
        let id = a.first_waiter("lock").client_id;
        if a.call(format!("CLIENT UNBLOCK {id} {how}")) == Reply::Int(0) {
            return; // this server cannot unblock the client safely
        }
        w.reply();
        let _c = server.waiter("lock C BLOCK 0");
        let _w = server.waiter("lock W BLOCK 0 HOLDS 1");
        assert_eq!(a.queue("lock"), ["W", "C"], "{how}");
    }
}

#[test]
fn a_grant_that_is_passed_on_keeps_the_place() {
    let (server, mut a) = start_held();
    let _w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
    let mut c = server.waiter("lock C BLOCK 0");
    let _d = server.waiter("lock D BLOCK 0");
    let id = a.first_waiter("lock").client_id;
    a.transact(["LOCK.RELEASE lock A", &format!("CLIENT KILL ID {id}")]);
    assert_eq!(c.reply().grant().holds, 1);
    a.see_places_kept(1);
    let mut w = server.waiter("lock W BLOCK 0 HOLDS 1");
    assert_eq!(a.queue("lock"), ["W", "D"]);
    a.call("LOCK.RELEASE lock C");
    assert_eq!(w.reply().grant().holds, 1);
}

#[test]
fn the_place_of_a_grant_that_was_passed_on_ends_in_time() {
    let (server, mut a) = start_held();
    let _w = server.waiter("lock W BLOCK 0 HOLDS 1 KEEP 300");
    let id = a.first_waiter("lock").client_id;
    a.transact(["LOCK.RELEASE lock A", &format!("CLIENT KILL ID {id}")]);
    a.see_places_kept(1);
    a.see_places_kept(0);
    assert_eq!(a.acquire("lock C").holds, 1);
}

#[test]
fn a_place_is_kept_again_and_again() {
    let (server, mut a) = start_held();
    for _ in 0..5 {
        wait_a_slice(&server, "W");
        drop(server.waiter(&format!("lock X BLOCK 0 {KEEP}")));
        a.see_waiters("lock", 0);
        assert_eq!(a.places_kept(), 2);
    }
    let _waiters = server.waiters("lock", ["C", "D"]);
    let mut again = ["X", "W"].map(|owner| server.waiter(&format!("lock {owner} BLOCK 0 {KEEP}")));
    assert_eq!(a.queue("lock"), ["W", "X", "C", "D"]);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(again[1].reply().grant().holds, 1);
}

#[test]
fn without_keep_no_place_is_kept() {
    let (server, mut a) = start_held();
    assert!(a.call("LOCK.ACQUIRE lock W BLOCK 1 HOLDS 1").is_null());
    drop(server.waiter("lock W BLOCK 0 HOLDS 1"));
    a.see_waiters("lock", 0);
    assert_eq!(a.places_kept(), 0);
    let _c = server.waiter("lock C BLOCK 0");
    let _w = server.waiter("lock W BLOCK 0 HOLDS 1");
    assert_eq!(a.queue("lock"), ["C", "W"]);
}

#[test]
fn only_a_request_with_block_and_holds_gets_the_place_back() {
    let (server, mut a) = start_held();
    wait_and_leave(&server, "W");
    let _c = server.waiter("lock C BLOCK 0");
    for request in ["lock W", "lock W HOLDS 1", "lock W BLOCK 1", "lock X BLOCK 1 HOLDS 1"] {
        assert!(a.call(format!("LOCK.ACQUIRE {request}")).is_null(), "{request}");
        assert_eq!(a.places_kept(), 1, "{request}");
    }
    let _w = server.waiter("lock W BLOCK 0");
    assert_eq!(a.queue("lock"), ["C", "W"]);
    assert_eq!(a.places_kept(), 1);
}

#[test]
fn an_owner_may_come_back_as_a_reader() {
    let (server, mut a) = start_held_with("SHARED");
    wait_and_leave(&server, "W");
    let mut x = server.waiter("lock X BLOCK 0");
    assert_eq!(a.acquire("lock W SHARED HOLDS 1 BLOCK 0").holds, 1);
    assert_eq!(a.places_kept(), 0);
    assert!(x.has_no_reply());
}

#[test]
fn a_place_is_kept_for_as_long_as_was_asked_and_no_longer() {
    let (server, mut a) = start_held();
    let begun = Instant::now();
    assert!(a.call("LOCK.ACQUIRE lock W BLOCK 10 HOLDS 1 KEEP 400").is_null());
    a.see_places_kept(0);
    assert!(begun.elapsed() >= Duration::from_millis(410), "the place ended early");
    drop(server.waiter("lock X BLOCK 0 HOLDS 1 KEEP 30"));
    a.see_waiters("lock", 0);
    a.see_places_kept(0);
    let _c = server.waiter("lock C BLOCK 0");
    let _w = server.waiter("lock W BLOCK 0 HOLDS 1");
    assert_eq!(a.queue("lock"), ["C", "W"]);
}

// When a kept place holds back the waiters behind the place.

/// When a wait limit is reached, the kept place holds back the waiters behind the place for at least 100 ms more.
#[test]
fn after_its_wait_limit_a_place_holds_back_the_waiters_behind_it_for_a_while() {
    const BLOCK: Duration = Duration::from_millis(20);
    const HELD_BACK: Duration = Duration::from_millis(120);
    let (server, mut a) = start_held_with("SHARED");
    let mut reader = server.client();
    let mut attempts = 0;
    eventually("a request within the 100 ms", || {
        attempts += 1;
        let owner = format!("W{attempts}");
        let begun = Instant::now();
        let wait = format!("LOCK.ACQUIRE lock {owner} BLOCK {} {KEEP}", BLOCK.as_millis());
        assert!(a.call(wait).is_null());
        let reply = reader.call("LOCK.ACQUIRE lock R SHARED");
        // If the machine was too slow, the reader may have asked too late, and this attempt proves nothing.
        let in_time = begun.elapsed() < HELD_BACK;
        assert!(!in_time || reply.is_null(), "the place is overtaken");
        a.call(format!("LOCK.RELEASE lock {owner} HOLDS 0"));
        a.call("LOCK.RELEASE lock R HOLDS 0");
        in_time
    });
    let begun = Instant::now();
    assert!(a.call(format!("LOCK.ACQUIRE lock W BLOCK {} {KEEP}", BLOCK.as_millis())).is_null());
    assert_eq!(reader.acquire("lock R SHARED BLOCK 0").holds, 1);
    assert!(begun.elapsed() >= HELD_BACK, "{:?}", begun.elapsed());
    assert_eq!(a.places_kept(), 1, "the place is still kept");
}

#[test]
fn waiters_behind_a_place_that_is_passed_over_are_served() {
    let (server, mut a) = start_held_with("SHARED");
    let mut w = server.client();
    w.ask(&format!("lock W BLOCK 500 {KEEP}"));
    a.see_waiters("lock", 1);
    let mut readers = ["R", "S"].map(|owner| server.waiter(&format!("lock {owner} SHARED BLOCK 0")));
    assert!(w.reply().is_null());
    readers.iter_mut().for_each(|reader| assert_eq!(reader.reply().grant().holds, 1));
    assert_eq!(a.places_kept(), 1);
    let _w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
    assert!(a.call("LOCK.ACQUIRE lock T SHARED").is_null(), "W is first in the queue again");
}

#[test]
fn the_place_of_a_closed_connection_holds_no_waiter_back() {
    let (server, mut a) = start_held_with("SHARED");
    // W waits without limit. If W's kept place held back the waiters behind it, the place would do so for the whole
    // test.
    let w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
    let mut reader = server.waiter("lock R SHARED BLOCK 0");
    drop(w);
    assert_eq!(reader.reply().grant().holds, 1);
    assert_eq!(a.places_kept(), 1);
    assert_eq!(a.acquire("lock S SHARED").holds, 1);
}

#[test]
fn a_free_lock_is_granted_past_an_absent_owner() {
    let (server, mut a) = start_held();
    wait_and_leave(&server, "W");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(a.acquire("lock C").holds, 1);
    let mut w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
    a.call("LOCK.RELEASE lock C");
    assert_eq!(w.reply().grant().holds, 1);
}

// How a place ends.

#[test]
fn a_place_ends_when_its_owner_holds_the_lock() {
    for request in ["lock W", "lock W HOLDS 1", "lock W BLOCK 0", "lock W SHARED"] {
        let (server, mut a) = start_held();
        wait_and_leave(&server, "W");
        a.call("LOCK.RELEASE lock A");
        assert_eq!(a.acquire(request).holds, 1, "{request}");
        assert_eq!(a.places_kept(), 0, "{request}");
    }
    let (server, mut a) = start_held();
    wait_and_leave(&server, "W");
    let mut w = server.waiter("lock W BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(w.reply().grant().holds, 1);
    assert_eq!(a.places_kept(), 0);
}

#[test]
fn a_release_that_names_its_count_ends_the_places_that_name_more() {
    let (server, mut a) = start_held();
    wait_and_leave(&server, "W");
    for (release, kept) in [
        ("LOCK.RELEASE lock W", 1),
        ("LOCK.RELEASE lock W ALL", 1),
        ("LOCK.RELEASE lock W HOLDS 1", 1),
        ("LOCK.RELEASE lock W HOLDS 0 TOKEN 5", 1),
        ("LOCK.RELEASE lock X HOLDS 0", 1),
        ("LOCK.RELEASE lock W HOLDS 0", 0),
    ] {
        a.call(release);
        assert_eq!(a.places_kept(), kept, "{release}");
    }
    let mut w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
    assert_eq!(a.call("LOCK.RELEASE lock W HOLDS 0"), Reply::Int(0));
    assert_eq!(w.reply().error_word(), "SUPERSEDED");
    assert_eq!((a.places_kept(), a.info("lock").unwrap().waiters), (0, 0));
}

#[test]
fn a_release_leaves_waits_that_name_no_count() {
    let (server, mut a) = start_held();
    let mut without = server.waiter("lock W BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE lock W HOLDS 0"), Reply::Int(0));
    assert_eq!(a.call("LOCK.RELEASE lock W HOLDS 0 TOKEN 5"), Reply::Int(0));
    assert!(without.has_no_reply());
    assert_eq!(a.queue("lock"), ["W"]);
}

#[test]
fn giving_up_a_kept_place_lets_the_waiters_behind_it_in() {
    let (server, mut a) = start_held_with("SHARED");
    // When W's wait limit is reached, W's kept place holds back the waiters behind it. The LOCK.RELEASE for W ends this
    // place, so the reader is granted the lock at once.
    for number in 0..20 {
        let mut w = server.client();
        assert!(w.call(format!("LOCK.ACQUIRE lock W BLOCK 5 {KEEP}")).is_null());
        let replies = a.call_all([
            "LOCK.RELEASE lock W HOLDS 0".to_owned(),
            format!("LOCK.ACQUIRE lock R{number} SHARED"),
        ]);
        assert_eq!(replies[0], Reply::Int(0));
        assert_eq!(replies[1].grant().holds, 1);
    }
}

#[test]
fn a_value_of_another_type_ends_waits_and_places() {
    for how in ["SET lock value", "RENAME string lock", "COPY string lock REPLACE"] {
        let (server, mut a) = start_held();
        a.call("SET string value");
        wait_and_leave(&server, "V");
        let mut w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
        a.call(how);
        assert_eq!(w.reply().error_word(), "WRONGTYPE", "{how}");
        a.see_places_kept(0);
        a.call("DEL lock");
        a.acquire("lock A PX 600000");
        let _c = server.waiter("lock C BLOCK 0");
        let _w = server.waiters("lock", ["W"]);
        assert_eq!(a.queue("lock"), ["C", "W"], "{how}");
    }
}

#[test]
fn places_end_when_a_value_of_another_type_comes_while_nobody_waits() {
    let (server, mut a) = start_held();
    wait_and_leave(&server, "V");
    a.call("SET lock value");
    a.see_places_kept(0);
}

#[test]
fn a_deletion_of_the_lock_leaves_the_places() {
    for how in ["DEL lock", "UNLINK lock", "FLUSHALL"] {
        let (server, mut a) = start_held();
        wait_and_leave(&server, "W");
        a.call(how);
        a.acquire("lock B PX 600000");
        let _c = server.waiter("lock C BLOCK 0");
        let _w = server.waiter("lock W BLOCK 0 HOLDS 1");
        assert_eq!(a.queue("lock"), ["W", "C"], "{how}");
    }
}

#[test]
fn the_place_of_an_owner_ends_when_its_lock_gets_the_name() {
    for how in ["RENAME other lock", "MOVE lock 0", "RESTORE"] {
        let (server, mut a) = start_held();
        wait_and_leave(&server, "W");
        a.call("LOCK.RELEASE lock A");
        if how.starts_with("MOVE") {
            a.call_all(["SELECT 1", "LOCK.ACQUIRE lock W PX 600000", how, "SELECT 0"]);
        } else {
            a.acquire("other W PX 600000");
            let payload = a.call("DUMP other");
            match how {
                "RESTORE" => a.call([b"RESTORE".as_slice(), b"lock", b"0", payload.bytes()]),
                _ => a.call(how),
            };
        }
        assert_eq!(a.owner("lock").as_deref(), Some("W"), "{how}");
        a.see_places_kept(0);
    }
}

#[test]
fn places_end_when_the_role_changes() {
    for quickly in [false, true] {
        let (server, mut a) = start_held();
        let other = Server::start();
        wait_and_leave(&server, "V");
        let w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
        if quickly {
            a.send_all([format!("REPLICAOF 127.0.0.1 {}", other.port()), "REPLICAOF NO ONE".to_owned()]);
            assert_eq!((a.reply(), a.reply()), (Reply::ok(), Reply::ok()));
        } else {
            server.begin_to_follow(other.port());
        }
        a.see_places_kept(0);
        drop(w);
        if quickly {
            a.see_waiters("lock", 0);
            let _c = server.waiter("lock C BLOCK 0");
            let _v = server.waiter("lock V BLOCK 0 HOLDS 1");
            assert_eq!(a.queue("lock"), ["C", "V"]);
        }
    }
}

#[test]
fn a_wait_that_a_failover_ends_keeps_no_place() {
    let (server, mut a) = start_held();
    let _replica = Server::start_replica_of(&server);
    let _w = server.waiter(&format!("lock W BLOCK 0 {KEEP}"));
    assert_eq!(a.call("FAILOVER"), Reply::ok());
    eventually("the server is a replica", || a.server_info("replication", "role") == "slave");
    assert_eq!(a.places_kept(), 0);
}

#[test]
fn a_replica_has_no_places() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    wait_and_leave(&primary, "W");
    replica.see_in_sync_with(&primary);
    let mut there = replica.promote();
    assert_eq!(there.places_kept(), 0);
    let _c = replica.waiter("lock C BLOCK 0");
    let _w = replica.waiter("lock W BLOCK 0 HOLDS 1");
    assert_eq!(there.queue("lock"), ["C", "W"]);
}

// Limits and statistics.

#[test]
fn kept_places_count_for_the_limit_of_a_lock_and_the_oldest_is_dropped() {
    let server = Server::start_with("max-waiters 3");
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    wait_and_leave(&server, "V");
    wait_and_leave(&server, "W");
    let _c = server.waiter("lock C BLOCK 0");
    assert_eq!(a.places_kept(), 2);
    let _d = server.waiter("lock D BLOCK 0");
    assert_eq!(a.places_kept(), 1);
    let _w = server.waiter("lock W BLOCK 0 HOLDS 1");
    assert_eq!(a.queue("lock"), ["W", "C", "D"]);
    assert_eq!(a.places_kept(), 0);
    for request in ["lock V BLOCK 0 HOLDS 1", "lock E BLOCK 0"] {
        assert_eq!(a.call(format!("LOCK.ACQUIRE {request}")).error_word(), "MAXWAITERS", "{request}");
    }
}

#[test]
fn kept_places_count_for_the_limit_of_all_locks() {
    let server = Server::start_with("max-waiters-total 3");
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.acquire("other A PX 600000");
    ["V", "W", "X"].iter().for_each(|owner| wait_and_leave(&server, owner));
    let _c = server.waiter("other C BLOCK 0");
    assert_eq!(a.places_kept(), 2);
    let _d = server.waiter("other D BLOCK 0");
    assert_eq!(a.places_kept(), 1);
    let _x = server.waiter("lock X BLOCK 0 HOLDS 1");
    assert_eq!(a.places_kept(), 0);
    assert_eq!(a.call("LOCK.ACQUIRE other E BLOCK 0").error_word(), "MAXWAITERS");
}

#[test]
fn a_place_that_is_dropped_at_the_front_lets_the_waiters_behind_it_in() {
    let server = Server::start_with("max-waiters 2");
    let mut a = server.client();
    for number in 0..10 {
        a.acquire("lock A SHARED PX 600000");
        let mut w = server.client();
        assert!(w.call(format!("LOCK.ACQUIRE lock W{number} BLOCK 5 {KEEP}")).is_null());
        let mut readers = ["R", "S"].map(|_| server.client());
        for (reader, owner) in readers.iter_mut().zip(["R", "S"]) {
            reader.ask(&format!("lock {owner} SHARED BLOCK 0"));
        }
        readers.iter_mut().for_each(|reader| assert_eq!(reader.reply().grant().holds, 1));
        a.call("DEL lock");
    }
}

#[test]
fn info_and_top_do_not_count_kept_places() {
    let (server, mut a) = start_held();
    wait_and_leave(&server, "V");
    wait_a_slice(&server, "W");
    assert_eq!(a.info("lock").unwrap().waiters, 0);
    assert_eq!(a.call("LOCK.INFO lock WAITERS 9").info().queue, Some(vec![]));
    assert_eq!(a.call("LOCK.TOP"), Reply::Array(vec![]));
    assert_eq!((a.stat("lock", "lock_waiting"), a.places_kept()), (0, 2));
    let _c = server.waiter("lock C BLOCK 0");
    assert_eq!(a.info("lock").unwrap().waiters, 1);
    assert_eq!(a.call("LOCK.TOP").items()[0].field("waiters"), &Reply::Int(1));
    assert_eq!(a.queue("lock"), ["C"]);
}

#[test]
fn of_a_wait_in_slices_only_the_last_slice_counts_as_a_wait_limit() {
    let (server, mut a) = start_held();
    wait_a_slice(&server, "V");
    wait_and_leave(&server, "W");
    let read = |a: &mut Client, field: &str| a.stat("lock", &format!("lock_{field}"));
    assert_eq!(read(&mut a, "wait_limits_reached"), 0);
    assert!(server.client().call("LOCK.ACQUIRE lock X BLOCK 1 HOLDS 1").is_null());
    assert_eq!(read(&mut a, "wait_limits_reached"), 1);
    assert_eq!(read(&mut a, "disconnected_while_waiting"), 1);
    assert_eq!(read(&mut a, "superseded"), 0);
    assert_eq!(a.call("CONFIG RESETSTAT"), Reply::ok());
    assert_eq!(a.places_kept(), 2);
}

#[test]
fn very_many_places_are_kept_and_end() {
    const PLACES: usize = 1_000;
    let (server, mut a) = start_held();
    let before = a.stat("memory", "used_memory");
    let mut client = server.client();
    for batch in 0..PLACES / 500 {
        let owners = batch * 500..(batch + 1) * 500;
        // The requests run one after the other, because the server reads the next request of a waiting client only
        // after the reply to the wait.
        client.send_all(
            owners.map(|owner| format!("LOCK.ACQUIRE lock owner-{owner} BLOCK 1 HOLDS 1 KEEP 60000")),
        );
        (0..500).for_each(|_| assert!(client.reply().is_null()));
    }
    assert_eq!(a.places_kept(), PLACES as i64);
    a.call("SET lock value");
    a.see_places_kept(0);
    eventually("the memory is freed", || a.stat("memory", "used_memory") < before + 500_000);
}

#[test]
fn a_client_that_waits_in_slices_gets_the_lock_under_a_load_of_readers() {
    let server = Setup::new().start();
    let mut writer = server.client();
    let mut readers: Vec<Client> = (0..4).map(|_| server.client()).collect();
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        for (number, reader) in readers.iter_mut().enumerate() {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    reader.acquire(&format!("lock R{number} SHARED BLOCK 0 PX 60000"));
                    reader.call_all(iter::repeat_n("PING", 50));
                    assert_eq!(reader.call(format!("LOCK.RELEASE lock R{number}")), Reply::Int(0));
                }
            });
        }
        for _ in 0..5 {
            eventually("the writer holds the lock", || {
                !writer.call(format!("LOCK.ACQUIRE lock W BLOCK 20 PX 60000 {KEEP}")).is_null()
            });
            assert_eq!(writer.call("LOCK.RELEASE lock W"), Reply::Int(0));
        }
        over.store(true, Ordering::Relaxed);
    });
}
