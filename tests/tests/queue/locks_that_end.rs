//! Every way in which a lock can end. The waiters get their replies at once. The replies depend on the value
//! that the key then contains.

use lockward_tests::{Client, Reply, Server, Setup, eventually};
use std::time::{Duration, Instant};

/// Runs `command` while A holds `lock`, and B and C wait for `lock`. B must be granted a new tenure, and C must still
/// wait.
#[track_caller]
fn assert_served_after(command: &str) {
    let (server, mut a, mut b) = Server::start_contended();
    let before = a.holder("lock").token;
    let c = server.waiter("lock C BLOCK 0");
    let reply = a.call(command);
    assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
    let grant = b.reply().grant();
    assert_eq!(grant.holds, 1, "{command}");
    assert!(grant.token > before, "{command}");
    assert_eq!(a.owner("lock").as_deref(), Some("B"), "{command}");
    assert_eq!(a.queue("lock"), ["C"], "{command}");
    drop(c);
}

#[test]
fn the_end_of_the_lease_serves_the_first_waiter() {
    let (server, mut a, mut b) = Server::start_contended();
    let _c = server.waiter("lock C BLOCK 0");
    let asked = Instant::now();
    let before = a.call("LOCK.RENEW lock A PX 200").int();
    let grant = b.reply().grant();
    assert!(asked.elapsed() >= Duration::from_millis(200), "the lease ended early");
    assert!(grant.token > before);
    assert_eq!(a.queue("lock"), ["C"]);
}

#[test]
fn the_end_of_the_lease_serves_the_first_waiter_without_the_servers_own_expiry_cycle() {
    let server = Server::start();
    let mut a = server.client();
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    a.acquire("lock A PX 50");
    assert_eq!(server.client().acquire("lock B BLOCK 0").holds, 1);
}

#[test]
fn each_lease_that_ends_serves_the_next_waiter() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let mut waiters: Vec<Client> =
        ["B", "C", "D"].map(|owner| server.waiter(&format!("lock {owner} BLOCK 0 PX 100"))).into();
    a.call("LOCK.RENEW lock A PX 50").int();
    let tokens: Vec<i64> = waiters.iter_mut().map(|waiter| waiter.reply().grant().token).collect();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[test]
fn leases_that_end_together_serve_the_waiters_of_each_lock() {
    let server = Server::start();
    let mut a = server.client();
    let mut waiters: Vec<Client> = (0..100)
        .map(|number| {
            a.acquire(&format!("lock-{number} A PX 300"));
            let mut waiter = server.client();
            waiter.ask(&format!("lock-{number} B BLOCK 0"));
            waiter
        })
        .collect();
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().grant().holds, 1);
    }
}

/// The module ends very many leases in several steps. Between these steps it serves the waiters of other locks.
#[test]
fn very_many_leases_that_end_together_do_not_delay_the_waiters_of_other_locks() {
    let server = Server::start();
    let mut a = server.client();
    a.call_all((0..20_000).map(|number| format!("LOCK.ACQUIRE crowded owner-{number} SHARED PX 600000")));
    a.acquire("crowded last SHARED PX 600000");
    a.acquire("lock A PX 600000");
    let mut b = server.waiter("crowded B SLOTS 2 BLOCK 0");
    let mut c = server.waiter("lock C BLOCK 0");
    a.call("MULTI");
    a.call_all((0..20_000).map(|number| format!("LOCK.RENEW crowded owner-{number} PX 1")));
    a.call("LOCK.RENEW lock A PX 1");
    a.call("EXEC");
    let [b, c] = [&mut b, &mut c].map(|waiter| waiter.reply().grant().token);
    assert!(c < b, "C was granted its lock after B");
}

#[test]
fn del_serves_the_first_waiter() {
    assert_served_after("DEL lock");
}

#[test]
fn unlink_serves_the_first_waiter() {
    assert_served_after("UNLINK lock");
}

#[test]
fn flushdb_serves_the_first_waiter() {
    assert_served_after("FLUSHDB SYNC");
}

#[test]
fn flushdb_async_serves_the_first_waiter() {
    assert_served_after("FLUSHDB ASYNC");
}

#[test]
fn flushall_serves_the_first_waiter() {
    assert_served_after("FLUSHALL SYNC");
}

#[test]
fn flushall_async_serves_the_first_waiter() {
    assert_served_after("FLUSHALL ASYNC");
}

#[test]
fn rename_serves_the_first_waiter() {
    assert_served_after("RENAME lock other");
}

#[test]
fn move_serves_the_first_waiter() {
    assert_served_after("MOVE lock 1");
}

#[test]
fn swapdb_serves_the_first_waiter() {
    assert_served_after("SWAPDB 0 1");
}

#[test]
fn swapdb_the_other_way_round_serves_the_first_waiter() {
    assert_served_after("SWAPDB 1 0");
}

#[test]
fn an_expiry_in_the_past_serves_the_first_waiter() {
    assert_served_after("EXPIRE lock -1");
}

#[test]
fn an_expiry_set_by_hand_serves_the_first_waiter_when_it_ends() {
    assert_served_after("PEXPIRE lock 100");
}

#[test]
fn a_deletion_in_a_script_serves_the_first_waiter() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call(["EVAL", "redis.call('DEL', KEYS[1]) return redis.call('EXISTS', KEYS[1])", "1", "lock"]);
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_flush_of_another_database_leaves_the_waiters_waiting() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("SELECT 1");
    assert_eq!(a.call("FLUSHDB"), Reply::ok());
    a.call("SELECT 0");
    assert_eq!(a.owner("lock").as_deref(), Some("A"));
    assert_eq!(a.queue("lock"), ["B"]);
    assert!(b.has_no_reply());
}

#[test]
fn flushall_serves_the_waiters_of_every_database() {
    let (server, mut a, mut b) = Server::start_contended();
    let (mut c, mut d) = (server.client(), server.client());
    for client in [&mut c, &mut d] {
        client.call("SELECT 3");
    }
    c.acquire("lock C");
    d.ask("lock D BLOCK 0");
    c.see_waiters("lock", 1);
    a.call("FLUSHALL");
    assert_eq!(b.reply().grant().holds, 1);
    assert_eq!(d.reply().grant().holds, 1);
}

#[test]
fn a_flush_serves_a_thousand_queues() {
    let server = Server::start();
    let mut a = server.client();
    a.call_all((0..1_000).map(|number| format!("LOCK.ACQUIRE lock-{number} A PX 600000")));
    let mut waiters: Vec<Client> = (0..1_000)
        .map(|number| {
            let mut waiter = server.client();
            waiter.ask(&format!("lock-{number} B BLOCK 0"));
            waiter
        })
        .collect();
    a.see_blocked(1_000);
    a.call("FLUSHALL ASYNC");
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().grant().holds, 1);
    }
}

#[test]
fn a_value_written_over_the_lock_sends_every_waiter_away() {
    let server = Server::start();
    let mut a = server.client();
    let overwrites = [
        "SET lock value",
        "GETSET lock value",
        "SET lock value PX 100000",
        "MSET lock value",
        "SETEX lock 100 value",
        "SORT list STORE lock",
        "COPY string lock REPLACE",
        "RENAME string lock",
        "SUNIONSTORE lock set",
        "BITOP NOT lock string",
    ];
    for command in overwrites {
        a.call_all(["DEL lock list string set", "RPUSH list 1", "SET string value", "SADD set 1"]);
        a.acquire("lock A");
        let waiters = server.waiters("lock", ["B", "C"]);
        let reply = a.call(command);
        let refused = matches!(reply, Reply::Error(_));
        assert_eq!(refused, command.starts_with("GETSET"), "{command}: {reply:?}");
        if refused {
            a.call("SET lock value");
        }
        for mut waiter in waiters {
            assert_eq!(waiter.reply().error_word(), "WRONGTYPE", "{command}");
        }
    }
}

#[test]
fn a_value_set_after_a_deletion_in_one_transaction_sends_the_waiters_away() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.transact(["DEL lock", "SET lock value"]);
    assert_eq!(b.reply().error_word(), "WRONGTYPE");
}

#[test]
fn nobody_overtakes_the_waiters_of_a_lock_deleted_in_the_same_transaction() {
    let (_server, mut a, mut b) = Server::start_contended();
    let results = a.transact(["DEL lock", "LOCK.ACQUIRE lock X", "LOCK.INFO lock"]);
    assert_eq!(results[1], Reply::NullArray);
    assert_eq!(results[2].info().holders[0].owner, "B");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_renamed_lock_goes_on_under_its_new_name() {
    let (_server, mut a, mut b) = Server::start_contended();
    let before = a.holder("lock");
    a.call("RENAME lock other");
    b.reply().grant();
    let after = a.holder("other");
    assert_eq!((after.owner, after.token, after.holds), (before.owner, before.token, before.holds));
    assert_eq!(a.call("LOCK.RELEASE other A"), Reply::Int(0));
}

#[test]
fn a_lock_renamed_over_another_keeps_the_waiters_waiting_for_it() {
    let (_server, mut a, mut b) = Server::start_contended();
    let x = a.acquire("other X");
    a.call("RENAME other lock");
    assert_eq!(a.call("LOCK.RELEASE lock A").error_word(), "NOTHELD");
    assert_eq!(a.owner("lock").as_deref(), Some("X"));
    assert_eq!(a.queue("lock"), ["B"]);
    assert!(b.has_no_reply());
    a.call("LOCK.RELEASE lock X");
    assert!(b.reply().grant().token > x.token);
}

#[test]
fn a_lock_renamed_over_another_still_ends_with_its_lease() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    a.acquire("other X PX 100");
    a.call("RENAME other lock");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_moved_lock_goes_on_in_its_new_database() {
    let (_server, mut a, mut b) = Server::start_contended();
    let token = a.holder("lock").token;
    a.call("MOVE lock 1");
    b.reply().grant();
    a.call("SELECT 1");
    assert_eq!(a.holder("lock").token, token);
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
}

#[test]
fn swapped_databases_keep_their_waiters_and_serve_them_from_the_new_keys() {
    let (server, mut a, mut b) = Server::start_contended();
    let (mut c, mut d) = (server.client(), server.client());
    for client in [&mut c, &mut d] {
        client.call("SELECT 1");
    }
    c.acquire("lock C PX 600000");
    d.ask("lock D BLOCK 0");
    c.see_waiters("lock", 1);
    assert_eq!(a.call("SWAPDB 0 1"), Reply::ok());
    assert_eq!(a.owner("lock").as_deref(), Some("C"));
    assert_eq!(a.queue("lock"), ["B"]);
    assert_eq!(c.owner("lock").as_deref(), Some("A"));
    assert_eq!(c.queue("lock"), ["D"]);
    assert_eq!(a.call("LOCK.RELEASE lock C"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
    assert!(d.has_no_reply());
    assert_eq!(c.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(d.reply().grant().holds, 1);
}

#[test]
fn a_lease_still_ends_in_a_swapped_database() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    b.call("SELECT 1");
    a.acquire("lock A PX 100");
    a.acquire("lock-two A PX 600000");
    let _waiting = server.waiter("lock-two B BLOCK 0");
    a.call("SWAPDB 0 1");
    assert_eq!(b.acquire("lock B BLOCK 0").holds, 1);
}

#[test]
fn a_restored_lock_keeps_the_waiters_waiting_for_it() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.acquire("other X PX 600000");
    let payload = a.call("DUMP other");
    a.call("DEL other");
    let restored = a.call([b"RESTORE".as_slice(), b"lock", b"0", payload.bytes(), b"REPLACE"]);
    assert_eq!(restored, Reply::ok());
    assert_eq!(a.owner("lock").as_deref(), Some("X"));
    assert_eq!(a.queue("lock"), ["B"]);
    assert!(b.has_no_reply());
    a.call("LOCK.RELEASE lock X");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_restored_value_of_another_type_sends_the_waiters_away() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("SET string value");
    let payload = a.call("DUMP string");
    a.call([b"RESTORE".as_slice(), b"lock", b"0", payload.bytes(), b"REPLACE"]);
    assert_eq!(b.reply().error_word(), "WRONGTYPE");
}

#[test]
fn a_waiter_whose_own_lock_gets_the_name_of_a_missing_lock_re_enters() {
    for then in ["PING", "LOCK.RENEW lock W PX 600000"] {
        let server = Server::start();
        let mut client = server.client();
        client.acquire("other W PX 600000");
        // In quarantine, clients wait for a lock that nobody holds.
        client.call("CONFIG SET lock.quarantine 700000");
        let [mut x, mut w] = [server.client(), server.client()];
        x.ask("lock X BLOCK 0");
        client.see_blocked(1);
        w.ask("lock W BLOCK 0");
        client.see_blocked(2);
        client.transact(["RENAME other lock", then]);
        assert_eq!(w.reply().grant().holds, 2, "{then}");
        assert!(x.has_no_reply());
    }
}

#[test]
fn a_later_expiry_set_by_hand_does_not_prolong_a_lease() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.transact(["LOCK.RENEW lock A PX 200", "PEXPIRE lock 600000"]);
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_lease_ends_although_the_expiry_of_the_key_was_removed() {
    let (_server, mut a, mut b) = Server::start_contended();
    let [_, persisted] = a.transact(["LOCK.RENEW lock A PX 200", "PERSIST lock"]);
    assert_eq!(persisted, Reply::Int(1));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_lock_without_waiters_ends_with_its_lease_although_the_expiry_of_its_key_was_removed() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 50");
    a.call("PERSIST lock");
    eventually("the lock is free", || a.info("lock").is_none());
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn an_expiry_set_by_hand_ends_a_lock_without_waiters() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.call("PEXPIRE lock 50");
    eventually("the lock is free", || a.info("lock").is_none());
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn a_renewal_after_an_expiry_set_by_hand_restores_the_lease() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.call("PEXPIRE lock 20000");
    a.call("LOCK.RENEW lock A PX 600000").int();
    assert!(a.call("PTTL lock").int() > 100_000);
}

#[test]
fn a_lock_renamed_to_its_own_name_does_not_change() {
    let (_server, mut a, mut b) = Server::start_contended();
    assert_eq!(a.call("RENAME lock lock"), Reply::ok());
    assert_eq!(a.owner("lock").as_deref(), Some("A"));
    assert_eq!(a.queue("lock"), ["B"]);
    assert!(b.has_no_reply());
}

#[test]
fn no_lock_is_granted_in_the_background_while_writes_are_paused() {
    for aof in ["no", "yes"] {
        let setup = Setup::new().config(&format!("appendonly {aof}"));
        let (server, mut a, mut b) = setup.start_contended();
        let mut c = server.waiter("lock C BLOCK 1500");
        a.transact(["LOCK.RENEW lock A PX 100", "CLIENT PAUSE 600000 WRITE"]);
        assert_eq!(c.reply(), Reply::NullArray, "a wait limit ends although writes are refused");
        assert!(b.has_no_reply());
        a.call("CLIENT UNPAUSE");
        assert_eq!(b.reply().grant().holds, 1);
    }
}

#[test]
fn no_grant_is_passed_on_while_writes_are_paused() {
    let server = Setup::new().config("appendonly yes").start();
    let (mut a, mut b) = (server.client(), server.client());
    a.acquire("lock A PX 600000");
    let id = b.id();
    b.ask("lock B BLOCK 0 PX 600000");
    a.see_waiters("lock", 1);
    let mut c = server.waiter("lock C BLOCK 0");
    let mut d = server.waiter("lock D BLOCK 1500");
    let kill = format!("CLIENT KILL ID {id}");
    a.transact(["LOCK.RELEASE lock A", "CLIENT PAUSE 600000 WRITE", &kill]);
    assert_eq!(d.reply(), Reply::NullArray, "D's wait limit ends although writes are refused");
    assert!(c.has_no_reply());
    a.call("CLIENT UNPAUSE");
    assert_eq!(c.reply().grant().holds, 1);
}

#[test]
fn no_lock_is_granted_in_the_background_while_replicas_are_missing() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut c = server.waiter("lock C BLOCK 1500");
    a.transact(["LOCK.RENEW lock A PX 100", "CONFIG SET min-replicas-to-write 1"]);
    for command in ["LOCK.ACQUIRE other C", "LOCK.RELEASE lock A", "LOCK.RENEW lock A"] {
        assert_eq!(server.client().call(command).error_word(), "NOREPLICAS", "{command}");
    }
    assert_eq!(c.reply(), Reply::NullArray, "a wait limit ends although writes are refused");
    assert!(b.has_no_reply());
    a.call("CONFIG SET min-replicas-to-write 0");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn no_lock_is_granted_in_the_background_while_snapshots_fail() {
    let server = Setup::new().config("save 3600 1000000").start();
    std::fs::create_dir_all(server.dir().join("dump.rdb/in-the-way")).unwrap();
    let mut a = server.client();
    a.call("CONFIG SET stop-writes-on-bgsave-error no");
    a.call("BGSAVE");
    eventually("the snapshot has failed", || a.server_info("persistence", "rdb_last_bgsave_status") == "err");
    a.acquire("lock A PX 600000");
    let mut b = server.waiter("lock B BLOCK 0");
    let mut c = server.waiter("lock C BLOCK 1500");
    a.transact(["LOCK.RENEW lock A PX 100", "CONFIG SET stop-writes-on-bgsave-error yes"]);
    for command in ["LOCK.ACQUIRE other C", "LOCK.RELEASE lock A", "LOCK.RENEW lock A"] {
        assert_eq!(server.client().call(command).error_word(), "MISCONF", "{command}");
    }
    assert_eq!(c.reply(), Reply::NullArray, "a wait limit ends although writes are refused");
    assert!(b.has_no_reply());
    a.call("CONFIG SET stop-writes-on-bgsave-error no");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn an_expiry_set_by_hand_serves_the_first_waiter_without_the_servers_own_expiry_cycle() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    assert_eq!(a.call("PEXPIRE lock 100"), Reply::Int(1));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn an_expiry_set_by_hand_serves_the_first_waiter_of_a_lock_with_a_long_name() {
    for length in [256, 257, 100_000] {
        let name = "k".repeat(length);
        let server = Server::start();
        if length > 256 && !server.tells_of_renames() {
            continue; // on this server the module gets no event of PEXPIRE
        }
        let mut a = server.client();
        a.call("DEBUG SET-ACTIVE-EXPIRE 0");
        a.acquire(&format!("{name} A PX 600000"));
        let [mut b, mut c] =
            ["B", "C"].map(|owner| server.waiter(&format!("{name} {owner} PX 600000 BLOCK 0")));
        assert_eq!(a.call(format!("PEXPIRE {name} 100")), Reply::Int(1));
        // D joins and leaves the queue. This must not delay B's grant.
        let mut d = server.client();
        d.ask(&format!("{name} D BLOCK 1"));
        assert_eq!(d.reply(), Reply::NullArray);
        assert_eq!(b.reply().grant().holds, 1, "{length}");
        drop(b);
        assert_eq!(a.call(format!("PEXPIRE {name} 100")), Reply::Int(1));
        assert_eq!(c.reply().grant().holds, 1, "{length}, again");
        // E begins to wait when the expiry is already set.
        assert_eq!(a.call(format!("PEXPIRE {name} 300")), Reply::Int(1));
        let mut e = server.client();
        e.ask(&format!("{name} E BLOCK 0"));
        assert_eq!(e.reply().grant().holds, 1, "{length}, set before");
    }
}
