//! Dropped locks: held locks that the server has evicted or expired early. Replicas, snapshots and AOFs contain the
//! dropped locks too, and every command finds them.

use super::eviction_policies::POLICIES;
use lockward_tests::{
    Client, Holder, ReplicationStream, Reply, Server, Setup, WallClock, appended_commands, eventually,
};
use std::fs;
use std::time::Duration;

/// A server on which A holds `lock` and the key of `lock` has been evicted. Also returns a connection, and the holder
/// as it was before the eviction.
#[track_caller]
fn start_evicted(setup: Setup) -> (Server, Client, Holder) {
    let server = setup.start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.acquire("lock A");
    let holder = a.holder("lock");
    a.evict("lock");
    (server, a, holder)
}

fn kept(client: &mut Client) -> i64 {
    client.stat("lock", "lock_tenures_kept")
}

/// Waits until a replica has as many dropped locks as its primary, and the same keys.
#[track_caller]
fn see_replicated(primary: &mut Client, replica: &mut Client) {
    eventually("the replica has the dropped locks", || kept(replica) == kept(primary));
    eventually("both have the same keys", || {
        primary.call("DBSIZE") == replica.call("DBSIZE")
            && primary.call("DEBUG DIGEST") == replica.call("DEBUG DIGEST")
    });
}

#[test]
fn a_waiter_on_a_long_key_that_was_evicted_is_served_after_its_holder() {
    let server = Server::start();
    let key = "long".repeat(100);
    let mut a = server.client();
    a.acquire(&format!("{key} A PX 600000"));
    a.evict(&key);
    let mut b = server.waiter(&format!("{key} B BLOCK 0"));
    assert_eq!(a.call(format!("LOCK.RELEASE {key} A")), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_promoted_replica_keeps_the_tenure_of_an_evicted_lock() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let (mut a, mut there) = (primary.client(), replica.client());
    let token = a.acquire("lock A PX 600000").token;
    a.evict("lock");
    see_replicated(&mut a, &mut there);
    assert_eq!(kept(&mut there), 1);
    assert_eq!(there.call("EXISTS lock"), Reply::Int(0));
    assert_eq!(there.holder("lock").tenure(), ("A", 1, token));
    let mut there = replica.promote();
    assert_eq!(there.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    assert_eq!(there.call(format!("LOCK.RENEW lock A PX 600000 TOKEN {token}")), Reply::Int(token));
    assert_eq!(there.call("EXISTS lock"), Reply::Int(1));
    assert_eq!(there.call(format!("LOCK.RELEASE lock A TOKEN {token}")), Reply::Int(0));
    assert!(there.acquire("lock B").token > token);
}

#[test]
fn changes_of_an_evicted_lock_reach_the_replica() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let (mut a, mut there) = (primary.client(), replica.client());
    for (how, holds) in [("LOCK.RENEW lock A PX 500000", 1), ("LOCK.ACQUIRE lock A", 2)] {
        a.call("LOCK.RELEASE lock A ALL");
        let token = a.acquire("lock A PX 600000").token;
        a.evict("lock");
        see_replicated(&mut a, &mut there);
        a.call(how);
        replica.see_in_sync_with(&primary);
        assert_eq!((kept(&mut a), kept(&mut there)), (0, 0), "{how}");
        assert_eq!(there.holder("lock").tenure(), ("A", holds, token), "{how}");
        see_replicated(&mut a, &mut there);
    }
    a.evict("lock");
    see_replicated(&mut a, &mut there);
    assert_eq!(a.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
    replica.see_in_sync_with(&primary);
    assert_eq!((there.info("lock"), kept(&mut there)), (None, 0));
}

#[test]
fn the_lease_of_a_dropped_lock_ends_on_the_replica_too() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let (mut a, mut there) = (primary.client(), replica.client());
    a.acquire("lock A PX 1500");
    a.evict("lock");
    eventually("the lease is over", || kept(&mut a) == 0);
    see_replicated(&mut a, &mut there);
    assert_eq!(there.info("lock"), None);
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn a_write_that_breaks_an_evicted_lock_breaks_it_on_the_replica_too() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let (mut a, mut there) = (primary.client(), replica.client());
    for how in ["SET lock value", "RENAME other lock", "RESTORE", "FLUSHALL", "FLUSHDB", "SWAPDB 0 1"] {
        a.acquire("lock A PX 600000");
        a.evict("lock");
        see_replicated(&mut a, &mut there);
        assert_eq!(kept(&mut there), 1, "{how}");
        match how {
            "RENAME other lock" => {
                a.acquire("other C PX 600000");
                a.call(how);
            }
            "RESTORE" => {
                a.acquire("other C PX 600000");
                let payload = a.call("DUMP other").bytes().to_vec();
                a.call([&b"RESTORE"[..], b"lock", b"600000", &payload]);
            }
            _ => {
                a.call(how);
            }
        }
        if how == "SWAPDB 0 1" {
            see_replicated(&mut a, &mut there);
            assert_eq!((a.info("lock"), there.info("lock")), (None, None));
            there.call("SELECT 1");
            assert_eq!(there.owner("lock").as_deref(), Some("A"));
            a.call("FLUSHALL");
        }
        eventually("the tenure is over", || kept(&mut a) == 0);
        see_replicated(&mut a, &mut there);
        a.call("FLUSHALL");
    }
}

#[test]
fn a_write_on_a_writable_replica_does_not_break_a_dropped_lock() {
    let (primary, mut a, _) = start_evicted(Setup::new());
    let replica = Setup::new().config("replica-read-only no").start_replica_of(&primary);
    let mut there = replica.client();
    see_replicated(&mut a, &mut there);
    assert_eq!(there.call("SET lock value"), Reply::ok());
    assert_eq!(there.call("LOCK.INFO lock").error_word(), "WRONGTYPE");
    assert_eq!(there.call("DEL lock"), Reply::Int(1));
    assert_eq!(there.owner("lock").as_deref(), Some("A"));
}

#[test]
fn a_full_resync_transfers_dropped_locks() {
    for (load, diskless) in
        [("disabled", "no"), ("disabled", "yes"), ("on-empty-db", "yes"), ("swapdb", "yes")]
    {
        let setup = Setup::new().config(&format!("repl-diskless-sync {diskless}"));
        let (primary, mut a, before) = start_evicted(setup);
        a.call("SELECT 3");
        a.acquire("lock B PX 600000");
        a.evict("lock");
        let replica = Setup::new().config(&format!("repl-diskless-load {load}")).start_replica_of(&primary);
        let mut there = replica.client();
        see_replicated(&mut a, &mut there);
        assert_eq!(there.call("KEYS *"), Reply::Array(Vec::new()));
        assert_eq!(there.holder("lock").tenure(), before.tenure(), "{load}, diskless {diskless}");
        there.call("SELECT 3");
        assert_eq!(there.owner("lock").as_deref(), Some("B"), "{load}, diskless {diskless}");
        there.call("SELECT 0");
        // A full resync with another primary removes the dropped locks of the old primary.
        let other = Server::start();
        replica.follow(&other);
        assert_eq!((there.info("lock"), kept(&mut there)), (None, 0), "{load}, diskless {diskless}");
    }
}

#[test]
fn a_restart_keeps_the_tenure_of_an_evicted_lock() {
    for (what, aof, preamble) in [
        ("SAVE", "no", "yes"),
        ("BGSAVE", "no", "yes"),
        ("SHUTDOWN SAVE", "no", "yes"),
        ("nothing", "yes", "yes"),
        ("BGREWRITEAOF", "yes", "yes"),
        ("BGREWRITEAOF", "yes", "no"),
        ("DEBUG RELOAD", "no", "yes"),
        ("DEBUG RELOAD", "yes", "yes"),
        ("DEBUG LOADAOF", "yes", "no"),
    ] {
        let case = format!("{what}, appendonly {aof}, aof-use-rdb-preamble {preamble}");
        let setup = Setup::new().config(&format!("appendonly {aof}")).config("appendfsync always");
        let setup = setup.config(&format!("aof-use-rdb-preamble {preamble}"));
        let (mut server, mut a, before) = start_evicted(setup);
        a.call("SELECT 3");
        a.acquire("lock B PX 600000");
        a.evict("lock");
        if aof == "yes" {
            let replicated = |command: &[Vec<u8>]| {
                command[0].eq_ignore_ascii_case(b"LOCK._APPLY") && command[2].get(1) == Some(&5)
            };
            eventually("the AOF has the dropped locks", || {
                appended_commands(&server, replicated).iter().filter(|c| replicated(c)).count() == 2
            });
        }
        match what {
            "nothing" => server.kill(),
            "SHUTDOWN SAVE" => {
                a.send(what);
                server.see_end();
            }
            "BGSAVE" | "BGREWRITEAOF" => {
                a.call(what);
                let running =
                    if what == "BGSAVE" { "rdb_bgsave_in_progress" } else { "aof_rewrite_in_progress" };
                let scheduled = if what == "BGSAVE" { running } else { "aof_rewrite_scheduled" };
                eventually("it is written", || {
                    a.stat("persistence", running) + a.stat("persistence", scheduled) == 0
                });
                for status in ["rdb_last_bgsave_status", "aof_last_bgrewrite_status"] {
                    assert_eq!(a.server_info("persistence", status), "ok");
                }
                server.kill();
            }
            _ => {
                assert_eq!(a.call(what), Reply::ok(), "{case}");
            }
        }
        if !server.is_running() {
            server.start_again();
        }
        let mut a = server.client();
        assert_eq!(a.holder("lock").tenure(), before.tenure(), "{case}");
        assert!(a.holder("lock").lease_left > 300_000, "{case}");
        assert_eq!((a.call("DBSIZE"), kept(&mut a)), (Reply::Int(0), 2), "{case}");
        assert_eq!(a.call("LOCK.ACQUIRE lock C"), Reply::NullArray);
        assert_eq!(a.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
        a.call("SELECT 3");
        assert_eq!(a.owner("lock").as_deref(), Some("B"), "{case}");
    }
}

#[test]
fn a_snapshot_of_dropped_locks_adds_no_key() {
    let (server, mut a, _) = start_evicted(Setup::new());
    for what in ["SAVE", "DEBUG RELOAD"] {
        assert_eq!(a.call(what), Reply::ok());
        assert_eq!(a.call("KEYS *"), Reply::Array(Vec::new()), "{what}");
    }
    // SAVE fails at its end, because `dump.rdb` is a directory now, so SAVE cannot give its new file this name.
    let file = server.dir().join("dump.rdb");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(matches!(a.call("SAVE"), Reply::Error(_)));
    assert_eq!((a.call("KEYS *"), kept(&mut a)), (Reply::Array(Vec::new()), 1));
}

#[test]
fn a_value_stored_in_place_of_an_evicted_lock_is_the_same_after_a_load() {
    let primary = Setup::new().config("appendonly yes").config("appendfsync always").start();
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    a.evict("lock");
    let replica = Server::start_replica_of(&primary);
    assert_eq!(a.call("INCR lock"), Reply::Int(1));
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().call("GET lock"), Reply::bulk("1"));
    let mut primary = primary;
    primary.kill_and_start_again();
    assert_eq!(primary.client().call("GET lock"), Reply::bulk("1"));
}

#[test]
fn a_dropped_lock_is_replicated_together_with_the_deletion_of_its_key() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let mut stream = ReplicationStream::attach(&server);
    a.evict("lock");
    let mut replicated = Vec::new();
    eventually("the dropped lock is replicated", || {
        replicated.extend(
            stream.commands(&mut a).into_iter().filter(|command| command.contains(&b"lock".to_vec())),
        );
        replicated.len() == 2
    });
    let names: Vec<String> =
        replicated.iter().map(|command| String::from_utf8_lossy(&command[0]).to_uppercase()).collect();
    assert!(names[0] == "LOCK._APPLY" && ["DEL", "UNLINK"].contains(&names[1].as_str()), "{names:?}");
    assert_eq!(replicated[0][2][..2], [1, 5]);
}

#[test]
fn asking_for_an_evicted_lock_does_not_bring_it_back() {
    let (_server, mut a, before) = start_evicted(Setup::new());
    a.call("CONFIG SET maxmemory-policy allkeys-lru");
    let limit = a.stat("memory", "used_memory") + 2_000_000;
    a.call(format!("CONFIG SET maxmemory {limit}"));
    let evicted = a.stat("stats", "evicted_keys");
    for _ in 0..200 {
        assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
        assert_eq!(a.holder("lock").tenure(), before.tenure());
        assert_eq!(a.call("LOCK.RELEASE lock B").error_word(), "NOTHELD");
        assert_eq!(a.call("LOCK.RENEW lock B").error_word(), "NOTHELD");
    }
    assert_eq!(a.call("EXISTS lock"), Reply::Int(0));
    assert_eq!((a.stat("stats", "evicted_keys"), kept(&mut a)), (evicted, 1));
}

#[test]
fn the_owner_of_an_evicted_lock_goes_on_beyond_the_memory_limit() {
    let (_server, mut a, before) = start_evicted(Setup::new());
    a.call("CONFIG SET maxmemory-policy volatile-lru");
    a.call("CONFIG SET maxmemory 1");
    let token = before.token;
    assert_eq!(a.call("LOCK.ACQUIRE lock A").error_word(), "OOM");
    assert_eq!(a.holder("lock").tenure(), before.tenure());
    for _ in 0..3 {
        assert_eq!(a.call(format!("LOCK.RENEW lock A TOKEN {token}")), Reply::Int(token));
    }
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(1));
    assert_eq!(a.call("LOCK.RELEASE lock A HOLDS 0"), Reply::Int(0));
    assert_eq!((a.info("lock"), kept(&mut a)), (None, 0));
}

#[test]
fn a_lock_that_a_step_of_the_clock_has_dropped_goes_back_into_the_keyspace() {
    let mut clock = WallClock::new();
    let primary = Setup::new().clock(&clock).start();
    let replica = Server::start_replica_of(&primary);
    let (mut a, mut there) = (primary.client(), replica.client());
    a.acquire("lock A PX 600000");
    let before = a.holder("lock");
    clock.forward(Duration::from_secs(3_600));
    eventually("the key was dropped and is in the keyspace again", || {
        a.stat("lock", "lock_tenures_kept_from_clock_steps") == 1 && a.call("EXISTS lock") == Reply::Int(1)
    });
    assert!(a.call("PTTL lock").int() > 300_000);
    assert_eq!(a.holder("lock").tenure(), before.tenure());
    see_replicated(&mut a, &mut there);
    assert_eq!(there.holder("lock").tenure(), before.tenure());
    assert_eq!((kept(&mut a), a.stat("lock", "lock_tenures_kept_from_eviction")), (0, 0));
}

#[test]
fn a_transaction_that_watches_the_key_fails_when_the_lock_goes_back_into_the_keyspace() {
    let mut clock = WallClock::new();
    let server = Setup::new().clock(&clock).start();
    let (mut a, mut b) = (server.client(), server.client());
    a.acquire("lock A PX 600000");
    // With this setting the server refuses writes. So the lock does not go back into the keyspace before the WATCH.
    a.call("CONFIG SET min-replicas-to-write 1");
    clock.forward(Duration::from_secs(3_600));
    eventually("the key was dropped", || kept(&mut a) == 1 && a.call("EXISTS lock") == Reply::Int(0));
    b.call("WATCH lock");
    a.call("CONFIG SET min-replicas-to-write 0");
    eventually("the key is back", || a.call("EXISTS lock") == Reply::Int(1));
    b.call_all(["MULTI", "PING"]);
    assert!(b.call("EXEC").is_null());
}

#[test]
fn dropped_locks_are_counted() {
    let (_server, mut a, _) = start_evicted(Setup::new());
    a.acquire("other A PX 600000");
    a.evict("other");
    let count = |a: &mut Client, field: &str| a.stat("lock", &format!("lock_tenures_kept{field}"));
    assert_eq!(
        [count(&mut a, ""), count(&mut a, "_from_eviction"), count(&mut a, "_from_clock_steps")],
        [2, 2, 0]
    );
    a.call("LOCK.RELEASE lock A ALL");
    a.call("DEL other");
    a.call("LOCK.RENEW other A");
    assert_eq!([count(&mut a, ""), count(&mut a, "_from_eviction")], [0, 2]);
    assert!(a.call("INFO everything").text().contains("lock_tenures_kept:0"));
    assert!(!a.call("INFO memory").text().contains("lock_tenures_kept"));
}

#[test]
fn the_log_warns_of_an_evicting_policy_at_the_start_and_when_it_is_set() {
    let warning = |policy: &str| format!("maxmemory-policy is {policy}: ");
    let server = Setup::new().config("maxmemory-policy allkeys-lru").start();
    server.see_log(&warning("allkeys-lru"));
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET maxmemory 100000000");
    a.call("CONFIG SET maxmemory-policy noeviction");
    assert!(!server.log().contains("maxmemory-policy is"), "{}", server.log());
    for policy in &POLICIES[1..] {
        assert_eq!(a.call(format!("CONFIG SET maxmemory-policy {policy}")), Reply::ok());
        server.see_log(&warning(policy));
    }
}

#[test]
fn a_demoted_primary_keeps_the_dropped_locks_that_its_new_primary_has() {
    let one = Server::start();
    let other = Server::start_replica_of(&one);
    let (mut a, mut there) = (one.client(), other.client());
    let token = a.acquire("lock A PX 600000").token;
    a.evict("lock");
    see_replicated(&mut a, &mut there);
    assert_eq!(a.call(format!("FAILOVER TO 127.0.0.1 {}", other.port())), Reply::ok());
    eventually("the roles have changed", || a.server_info("replication", "role") == "slave");
    one.see_in_sync_with(&other);
    assert_eq!(a.holder("lock").tenure(), ("A", 1, token));
    assert_eq!(there.call("LOCK.RELEASE lock A"), Reply::Int(0));
    one.see_in_sync_with(&other);
    assert_eq!((a.info("lock"), kept(&mut a)), (None, 0));
}

/// The number of locks that A holds while every command evicts keys.
const PRESSED: usize = 60;

fn pressed() -> impl Iterator<Item = String> {
    (0..PRESSED).map(|number| format!("lock-{number}"))
}

/// Lets A acquire locks on a server that then evicts keys with every command. A renews all locks, so each
/// lock is stored and evicted again. Then the function sends two renewals and `last` in one packet, so that
/// these three commands run in one event loop iteration.
#[track_caller]
fn press(client: &mut Client, last: &str) {
    client.call_all(pressed().map(|lock| format!("LOCK.ACQUIRE {lock} A PX 600000")));
    client.call("CONFIG SET maxmemory-policy allkeys-random");
    client.call("CONFIG SET maxmemory 1");
    client.call_all(pressed().map(|lock| format!("LOCK.RENEW {lock} A PX 600000")));
    client.send_all(["LOCK.RENEW lock-0 A PX 600000", "LOCK.RENEW lock-1 A PX 600000", last]);
}

/// Checks that A holds all locks of [`press`], and that B is granted no lock.
#[track_caller]
fn see_all_held(client: &mut Client) {
    client.call("CONFIG SET maxmemory 0");
    for lock in pressed() {
        assert_eq!(client.call(format!("LOCK.ACQUIRE {lock} B")), Reply::NullArray, "{lock}");
        assert!(client.call(format!("LOCK.RENEW {lock} A")).int() > 0, "{lock}");
    }
}

#[test]
fn a_lock_evicted_in_the_event_loop_iteration_of_a_failover_is_held_on_the_new_primary() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let mut there = replica.client();
    press(&mut primary.client(), "FAILOVER");
    eventually("the replica has taken over", || there.server_info("replication", "role") == "master");
    see_all_held(&mut there);
}

#[test]
fn a_lock_evicted_in_the_event_loop_iteration_of_a_shutdown_is_held_after_the_restart() {
    let mut server = Setup::new().config("appendonly yes").config("appendfsync always").start();
    press(&mut server.client(), "SHUTDOWN NOSAVE");
    assert!(server.see_end().success());
    server.start_again();
    see_all_held(&mut server.client());
}

#[test]
fn an_overwritten_lock_stays_broken_when_the_new_value_is_evicted_in_the_same_iteration() {
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET maxmemory-policy volatile-ttl");
    a.call("CONFIG SET maxmemory-samples 64");
    a.call_all((0..40).map(|number| format!("SET filler-{number} {} PX 30000", "x".repeat(1_000))));
    a.acquire("lock A PX 600000");
    let used = a.stat("memory", "used_memory");
    a.call(format!("CONFIG SET maxmemory {used}"));
    // The values are so small that the server reads the whole packet at once.
    let large = |name: &str| format!("SET {name} {}", "y".repeat(5_000));
    let packet = [
        large("first"),
        "SET lock value PX 20000".to_owned(),
        large("second"),
        "EXISTS lock".to_owned(),
        "LOCK.INFO lock".to_owned(),
    ];
    let replies = a.call_all(packet);
    // Valkey 9 sometimes evicts the value only in the next event loop iteration. In this case EXISTS in the packet
    // still finds the value.
    if replies[replies.len() - 2] == Reply::Int(0) {
        assert!(replies[replies.len() - 1].is_null(), "{:?}", replies.last());
    }
    eventually("the value is evicted", || a.call("EXISTS lock") == Reply::Int(0));
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_value_stored_in_place_of_a_dropped_lock_breaks_it_even_if_it_is_deleted_at_once() {
    for (made, gone) in
        [("SET lock value", "DEL lock"), ("LPUSH lock x", "LPOP lock"), ("RENAME other lock", "UNLINK lock")]
    {
        let (server, mut a, _) = start_evicted(Setup::new());
        let replica = Server::start_replica_of(&server);
        a.acquire("other C PX 600000");
        let mut b = server.waiter("lock B BLOCK 0");
        a.call_all([made, gone]);
        assert_eq!(b.reply().grant().holds, 1, "{made}");
        assert_eq!(a.call("LOCK.RELEASE lock B"), Reply::Int(0));
        assert_eq!(a.info("lock"), None, "{made}");
        see_replicated(&mut a, &mut replica.client());
        assert_eq!(kept(&mut a), 0, "{made}");
    }
}

#[test]
fn a_value_that_is_stored_and_deleted_breaks_a_dropped_lock_after_a_restart() {
    for aof in ["no", "yes"] {
        let setup = Setup::new().config(&format!("appendonly {aof}")).config("aof-use-rdb-preamble no");
        let (mut server, mut a, _) = start_evicted(setup);
        a.send("SHUTDOWN SAVE");
        server.see_end();
        server.start_again();
        let mut a = server.client();
        assert_eq!(a.owner("lock").as_deref(), Some("A"), "appendonly {aof}");
        a.call_all(["SET lock value", "DEL lock"]);
        assert_eq!(a.info("lock"), None, "appendonly {aof}");
    }
}

#[test]
fn a_value_that_is_stored_and_deleted_breaks_a_dropped_lock_after_a_promotion() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let (mut a, mut there) = (primary.client(), replica.client());
    a.acquire("lock A PX 600000");
    a.evict("lock");
    see_replicated(&mut a, &mut there);
    let mut there = replica.promote();
    assert_eq!(there.owner("lock").as_deref(), Some("A"));
    there.call_all(["SET lock value", "DEL lock"]);
    assert_eq!(there.info("lock"), None);
}

#[test]
fn a_deleted_lock_stays_free_when_the_new_value_is_evicted_in_the_same_iteration() {
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET maxmemory-policy volatile-ttl");
    a.call("CONFIG SET maxmemory-samples 64");
    // With this setting, a command evicts only a few keys, and the server's timer evicts the others in the background.
    a.call("CONFIG SET maxmemory-eviction-tenacity 0");
    let mut evicted = 0;
    for round in 0..20 {
        a.call("CONFIG SET maxmemory 1gb");
        a.call("FLUSHALL");
        let filler = "x".repeat(5_000);
        a.call_all((0..300).map(|number| format!("SET filler-{number} {filler} PX {}", 900_000 + number)));
        a.acquire("lock A PX 600000");
        let less = a.stat("memory", "used_memory") - 100_000 - 25_000 * round;
        a.call_all([
            "DEL lock".to_owned(),
            format!("CONFIG SET maxmemory {less}"),
            "SET lock v PX 800000".to_owned(),
        ]);
        // If the server has evicted enough other keys, it keeps `lock`, and this round tests nothing.
        let mut is_gone = false;
        eventually("the server is within its limit", || {
            is_gone = a.call("EXISTS lock") == Reply::Int(0);
            is_gone || a.stat("memory", "used_memory") <= less
        });
        if is_gone {
            evicted += 1;
            assert_eq!(a.info("lock"), None, "round {round}");
        }
    }
    assert!(evicted > 0);
}

#[test]
fn a_key_of_the_same_name_in_another_database_does_not_break_a_dropped_lock() {
    let (_server, mut a, _) = start_evicted(Setup::new());
    a.call("SET string value");
    // In a transaction, Valkey 9 gives modules the wrong database of the key that COPY writes.
    a.transact(["COPY string lock DB 1", "PING"]);
    // Valkey 8.1 leaves the client in database 1 if a module receives events of new keys.
    a.call("SELECT 0");
    assert_eq!(a.owner("lock").as_deref(), Some("A"));
}
