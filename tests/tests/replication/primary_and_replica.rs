//! Primaries and replicas.

use lockward_tests::{Client, Info, Reply, Server, Setup, eventually};

/// A primary and its replica, in sync.
#[track_caller]
/// Owner, holds and token of each holder: the fields of LOCK.INFO that do not depend on the time.
fn timeless(info: Option<Info>) -> Option<Vec<(String, i64, i64)>> {
    let tenure = |holder: lockward_tests::Holder| (holder.owner, holder.holds, holder.token);
    info.map(|info| info.holders.into_iter().map(tenure).collect())
}

#[track_caller]
fn assert_same(primary: &Server, replica: &Server, key: &str) {
    replica.see_in_sync_with(primary);
    let (mut here, mut there) = (primary.client(), replica.client());
    assert_eq!(timeless(there.info(key)), timeless(here.info(key)));
    assert_eq!(there.call("DEBUG DIGEST"), here.call("DEBUG DIGEST"));
}

#[track_caller]
fn promote(replica: &Server) -> Client {
    let mut client = replica.client();
    assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
    client
}

#[test]
fn a_replica_has_the_same_tenure_after_every_command() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    let commands = [
        "LOCK.ACQUIRE lock A",
        "LOCK.ACQUIRE lock A",
        "LOCK.ACQUIRE lock B",
        "LOCK.RENEW lock A PX 100000",
        "LOCK.RELEASE lock A",
        "LOCK.ACQUIRE lock A HOLDS 2",
        "LOCK.RELEASE lock A HOLDS 1",
        "LOCK.RELEASE lock A",
        "LOCK.ACQUIRE lock B",
        "LOCK.RELEASE lock B ALL",
        "LOCK.ACQUIRE lock *",
        "PERSIST lock",
        "RENAME lock other",
        "DEL other",
    ];
    for command in commands {
        let reply = a.call(command);
        assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
        assert_same(&primary, &replica, "lock");
    }
}

#[test]
fn debug_digest_differs_when_a_replica_differs() {
    let (primary, replica) = Server::start_with_replica();
    primary.client().acquire("lock A");
    replica.see_in_sync_with(&primary);
    let digest = |server: &Server| server.client().call("DEBUG DIGEST");
    assert_eq!(digest(&primary), digest(&replica));
    promote(&replica).acquire("lock A");
    assert_ne!(digest(&primary), digest(&replica));
}

#[test]
fn a_replica_ends_when_a_command_from_its_primary_fails() {
    for change in ["LOCK.RENEW lock A", "LOCK.RELEASE lock A"] {
        let (primary, mut replica) = Server::start_with_replica();
        let mut a = primary.client();
        a.acquire("lock A");
        replica.see_in_sync_with(&primary);
        let mut there = replica.client();
        there.call("CONFIG SET replica-read-only no");
        assert_eq!(there.call("SET lock value"), Reply::ok());
        there.call("CONFIG SET replica-read-only yes");
        assert!(!matches!(a.call(change), Reply::Error(_)), "{change}");
        let log = replica.see_crash();
        assert!(log.contains("This replica panicked sending an error"), "{change}: {log}");
        assert!(log.contains("WRONGTYPE"), "{change}: {log}");
    }
}

#[test]
fn a_replica_that_attaches_later_gets_the_existing_locks() {
    let primary = Server::start();
    let mut a = primary.client();
    a.acquire("lock A PX 100000");
    a.acquire("lock A");
    let replica = Server::start_replica_of(&primary);
    assert_same(&primary, &replica, "lock");
    let left = replica.client().holder("lock").lease_left;
    assert!(50_000 < left && left <= 100_000, "{left}");
    a.call("LOCK.RELEASE lock A");
    assert_same(&primary, &replica, "lock");
}

#[test]
fn a_hand_off_reaches_the_replica() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A");
    let [mut b, _c] = primary.waiters("lock", ["B", "C"]);
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    assert_same(&primary, &replica, "lock");
    assert_eq!(replica.client().info("lock").unwrap().waiters, 0, "a replica has waiters");
}

#[test]
fn every_hand_off_in_the_background_reaches_the_replica() {
    for ending in
        ["PEXPIRE lock 50", "DEL lock", "UNLINK lock", "FLUSHALL", "RENAME lock other", "MOVE lock 1"]
    {
        let (primary, replica) = Server::start_with_replica();
        let mut a = primary.client();
        a.acquire("lock A PX 600000");
        let mut b = primary.waiter("lock B BLOCK 0");
        a.call(ending);
        b.reply().grant();
        assert_same(&primary, &replica, "lock");
        assert_eq!(replica.client().owner("lock").as_deref(), Some("B"), "{ending}");
    }
}

#[test]
fn a_grant_in_the_background_reaches_the_replica_in_its_own_database() {
    let (primary, replica) = Server::start_with_replica();
    let (mut a, mut b, mut there) = (primary.client(), primary.client(), replica.client());
    for client in [&mut a, &mut b, &mut there] {
        client.call("SELECT 5");
    }
    a.acquire("lock A PX 300");
    b.ask("lock B BLOCK 0 PX 600000");
    b.reply().grant();
    assert_same(&primary, &replica, "lock");
    assert_eq!(there.owner("lock").as_deref(), Some("B"));
    assert_eq!(replica.client().info("lock"), None);
}

#[test]
fn changes_by_scripts_reach_the_replica() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    let script = "
        redis.call('LOCK.ACQUIRE', 'one', 'A')
        redis.call('LOCK.ACQUIRE', 'one', 'A')
        redis.call('LOCK.ACQUIRE', 'two', 'A')
        redis.call('LOCK.RELEASE', 'two', 'A')
        return redis.call('LOCK.RELEASE', 'one', 'A')";
    assert_eq!(a.call(["EVAL", script, "2", "one", "two"]), Reply::Int(1));
    assert_same(&primary, &replica, "one");
    assert_same(&primary, &replica, "two");
}

#[test]
fn an_evicted_lock_is_in_the_keyspace_of_the_replica_again_after_its_next_change() {
    for change in
        ["LOCK.RENEW lock A", "LOCK.ACQUIRE lock A", "LOCK.RELEASE lock A HOLDS 1", "LOCK.RELEASE lock A ALL"]
    {
        let (primary, replica) = Server::start_with_replica();
        let mut a = primary.client();
        a.acquire("lock A PX 600000");
        a.acquire("lock A PX 600000");
        let mut b = primary.waiter("lock B BLOCK 0 PX 600000");
        a.call("CONFIG SET maxmemory-policy volatile-random");
        a.call("CONFIG SET maxmemory 1");
        eventually("the lock is evicted", || {
            a.call("SET filler value");
            a.call("EXISTS lock") == Reply::Int(0)
        });
        a.call("CONFIG SET maxmemory 0");
        let reply = a.call(change);
        assert!(!matches!(reply, Reply::Error(_)), "{change}: {reply:?}");
        if change.ends_with("ALL") {
            b.reply().grant();
        }
        assert_same(&primary, &replica, "lock");
        assert!(replica.client().info("lock").is_some(), "{change}");
    }
}

#[test]
fn a_replica_that_loads_beside_its_old_data_has_the_same_tenure() {
    let primary = Server::start();
    primary.client().acquire("lock A PX 600000");
    let replica = Setup::new().config("repl-diskless-load swapdb").start();
    replica.client().acquire("lock X");
    replica.client().acquire("gone X");
    replica.follow(&primary);
    assert_same(&primary, &replica, "lock");
    assert_eq!(replica.client().info("gone"), None);
}

#[test]
fn in_a_failover_waiters_get_an_error_and_the_tenure_goes_on() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    a.acquire("ending A PX 100");
    let before = a.holder("lock");
    let mut b = primary.waiter("lock B BLOCK 0");
    let mut c = primary.client();
    c.ask("ending C BLOCK 0 PX 300");
    assert_eq!(a.call("FAILOVER"), Reply::ok());
    eventually("the replica is the primary", || {
        replica.client().server_info("replication", "role") == "master"
    });
    assert_eq!(b.reply().error_word(), "UNBLOCKED");
    c.reply();
    primary.see_in_sync_with(&replica);
    assert_eq!(replica.client().holder("lock").tenure(), before.tenure());
    assert_same(&replica, &primary, "lock");
    assert_eq!(replica.client().acquire("ending D BLOCK 0").holds, 1);
}

#[test]
fn a_server_that_shuts_down_while_a_replica_lags_grants_nothing() {
    let mut primary = Setup::new().config("shutdown-timeout 1").start();
    let replica = Server::start_replica_of(&primary);
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    let mut b = primary.waiter("lock B BLOCK 0");
    replica.freeze();
    a.call("LOCK.RENEW lock A PX 300").int();
    assert!(primary.terminate().success());
    assert!(primary.log().contains("before shutting down"), "{}", primary.log());
    assert!(b.is_closed());
    replica.thaw();
}

#[test]
fn the_end_of_a_lease_and_the_hand_off_reach_the_replica() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    a.acquire("alone A PX 50");
    let mut b = primary.waiter("lock B BLOCK 0 PX 600000");
    a.call("LOCK.RENEW lock A PX 100").int();
    b.reply().grant();
    eventually("the other lease is over", || a.info("alone").is_none());
    assert_same(&primary, &replica, "lock");
    eventually("the replica has dropped the key", || {
        replica.client().call("DBSIZE") == primary.client().call("DBSIZE")
    });
    assert_same(&primary, &replica, "alone");
}

#[test]
fn primary_and_replica_are_identical_after_a_mixture_of_commands() {
    let (primary, replica) = Server::start_with_replica();
    let mut clients = [primary.client(), primary.client(), primary.client()];
    let mut seed = 7_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..3_000 {
        let (key, owner) = (random(5), random(3));
        let command = match random(12) {
            0..=3 => format!("LOCK.ACQUIRE lock-{key} O{owner} PX {}", 1 + random(2_000)),
            4 => format!("LOCK.ACQUIRE lock-{key} O{owner} HOLDS {}", 1 + random(3)),
            5 => format!("LOCK.ACQUIRE lock-{key} O{owner} BLOCK {}", 1 + random(3)),
            6 | 7 => format!("LOCK.RELEASE lock-{key} O{owner}"),
            8 => format!("LOCK.RELEASE lock-{key} O{owner} HOLDS {}", random(3)),
            9 => format!("LOCK.RENEW lock-{key} O{owner} PX {}", 1 + random(2_000)),
            10 => format!("DEL lock-{key}"),
            _ => format!("LOCK.RELEASE lock-{key} O{owner} ALL"),
        };
        clients[usize::try_from(owner).unwrap()].call(command);
    }
    for key in 0..5 {
        clients[0].call(format!("DEL lock-{key}"));
        clients[0].call(format!("LOCK.ACQUIRE lock-{key} A{key} PX 600000"));
    }
    for key in 0..5 {
        assert_same(&primary, &replica, &format!("lock-{key}"));
    }
}

#[test]
fn a_promoted_replica_goes_on_with_the_same_tenure() {
    let (mut primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A PX 100000");
    a.acquire("lock A");
    let before = a.holder("lock");
    replica.see_in_sync_with(&primary);
    primary.kill();
    let mut a = promote(&replica);
    let after = a.holder("lock");
    assert_eq!(after.tenure(), before.tenure());
    assert!(50_000 < after.lease_left && after.lease_left <= 100_000, "{after:?}");
    let mut b = replica.waiter("lock B BLOCK 0");
    assert_eq!(a.acquire("lock A HOLDS 3").token, before.token);
    assert_eq!(a.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
    assert!(b.reply().grant().token > before.token);
}

#[test]
fn a_lease_ends_on_a_promoted_replica_too() {
    let (mut primary, replica) = Server::start_with_replica();
    primary.client().acquire("lock A PX 1000");
    replica.see_in_sync_with(&primary);
    primary.kill();
    assert_eq!(promote(&replica).acquire("lock B BLOCK 0").holds, 1);
}

#[test]
fn a_replica_refuses_every_write() {
    let (primary, replica) = Server::start_with_replica();
    let token = primary.client().acquire("lock A").token;
    replica.see_in_sync_with(&primary);
    let mut client = replica.client();
    for read_only in ["yes", "no"] {
        client.call(format!("CONFIG SET replica-read-only {read_only}"));
        for command in [
            "LOCK.ACQUIRE other A".to_owned(),
            "LOCK.ACQUIRE lock A".to_owned(),
            "LOCK.ACQUIRE lock B BLOCK 0".to_owned(),
            "LOCK.RELEASE lock A".to_owned(),
            format!("LOCK.RENEW lock A TOKEN {token}"),
        ] {
            let reply = client.call(command.clone());
            assert_eq!(reply.error_word(), "READONLY", "{command}, replica-read-only {read_only}");
        }
    }
    assert_same(&primary, &replica, "lock");
    assert_eq!(client.info("other"), None);
}

#[test]
fn a_replica_ends_no_lease_by_itself() {
    let (primary, replica) = Server::start_with_replica();
    primary.client().call("DEBUG SET-ACTIVE-EXPIRE 0");
    primary.client().acquire("lock A PX 100");
    replica.see_in_sync_with(&primary);
    let mut client = replica.client();
    eventually("the lease is over", || client.call("PTTL lock").int() < 0);
    client.call("LOCK.INFO lock");
    assert_eq!(client.call("DBSIZE"), Reply::Int(1));
    primary.client().call("DEBUG SET-ACTIVE-EXPIRE 1");
    eventually("the primary has freed the lock", || client.call("DBSIZE") == Reply::Int(0));
}

#[test]
fn waiters_get_an_error_when_their_server_becomes_a_replica() {
    let (server, mut a, mut b) = Server::start_contended();
    let other = Server::start();
    other.client().acquire("lock X");
    a.call(format!("REPLICAOF 127.0.0.1 {}", other.port()));
    assert_eq!(b.reply().error_word(), "UNBLOCKED");
    server.see_in_sync_with(&other);
    assert_eq!(server.client().owner("lock").as_deref(), Some("X"));
    assert_eq!(server.client().stat("clients", "blocked_clients"), 0);
    assert_same(&other, &server, "lock");
}

#[test]
fn a_server_that_was_a_replica_serves_its_waiters_again() {
    let (server, mut a, mut b) = Server::start_contended();
    let other = Server::start();
    server.follow(&other);
    assert_eq!(b.reply().error_word(), "UNBLOCKED");
    promote(&server);
    a.acquire("lock A");
    let mut c = server.waiter("lock C BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(c.reply().grant().holds, 1);
}

#[test]
fn a_replica_of_a_replica_has_the_same_tenure() {
    let (primary, replica) = Server::start_with_replica();
    let last = Server::start_replica_of(&replica);
    let mut a = primary.client();
    a.acquire("lock A");
    let mut b = primary.waiter("lock B BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    assert_same(&primary, &replica, "lock");
    assert_same(&replica, &last, "lock");
}

#[test]
fn a_replica_appends_replicated_changes_to_its_own_aof() {
    let primary = Server::start();
    let mut replica =
        Setup::new().config("appendonly yes").config("appendfsync always").start_replica_of(&primary);
    let mut observer = replica.client();
    eventually("the replica has begun a new AOF", || {
        observer.stat("persistence", "aof_rewrite_scheduled") == 0
            && observer.stat("persistence", "aof_rewrite_in_progress") == 0
    });
    let mut a = primary.client();
    for command in [
        "LOCK.ACQUIRE taken A PX 600000",
        "LOCK.ACQUIRE entered A PX 600000",
        "LOCK.ACQUIRE entered A",
        "LOCK.ACQUIRE left A PX 600000",
        "LOCK.ACQUIRE left A",
        "LOCK.RELEASE left A",
        "LOCK.ACQUIRE gone A PX 600000",
        "LOCK.RELEASE gone A",
    ] {
        a.call(command);
    }
    replica.see_in_sync_with(&primary);
    replica.kill_and_start_again();
    let mut there = replica.client();
    for key in ["taken", "entered", "left", "gone"] {
        assert_eq!(timeless(there.info(key)), timeless(a.info(key)), "{key}");
    }
}

#[test]
fn a_replicated_change_invalidates_what_a_client_of_the_replica_has_cached() {
    let (primary, replica) = Server::start_with_replica();
    let mut reader = replica.client3();
    assert_eq!(reader.call("CLIENT TRACKING ON"), Reply::ok());
    for change in ["LOCK.ACQUIRE lock A", "LOCK.RENEW lock A", "LOCK.RELEASE lock A"] {
        reader.call("LOCK.INFO lock");
        primary.client().call(change);
        assert_eq!(reader.push().items()[1], Reply::Array(vec![Reply::bulk("lock")]), "{change}");
    }
}

#[test]
fn the_wait_command_waits_for_an_acquisition_to_reach_replicas() {
    let (primary, _replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A");
    assert_eq!(a.call("WAIT 1 0"), Reply::Int(1));
}

#[test]
fn tokens_after_a_promotion_are_larger_than_replicated_ones() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A");
    let token = a.acquire("other A").token;
    a.call("LOCK.RELEASE other A");
    replica.see_in_sync_with(&primary);
    assert!(promote(&replica).acquire("other B").token > token);
}
