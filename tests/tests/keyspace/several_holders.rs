//! Locks with several holders, and every way in which such a lock can leave a server and come back.

use lockward_tests::{Client, Holder, Link, Reply, Server, Setup, WallClock, eventually};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3_600);

/// The number of holders of the lock `crowd`: large enough that the module indexes them.
const CROWD: usize = 40;

const KEYS: [&str; 5] = ["readers", "permits", "heavy", "downgraded", "crowd"];

/// The locks, each with the holders that it had before it left the server.
struct Left {
    locks: Vec<(&'static str, Vec<Holder>)>,
    at: Instant,
}

#[track_caller]
fn holders(client: &mut Client, key: &str) -> Vec<Holder> {
    let reply = client.call(["LOCK.INFO", key, "HOLDERS", "1000"]);
    if reply.is_null() { Vec::new() } else { reply.info().holders }
}

/// Creates a lock of every kind, and returns the state of the locks.
#[track_caller]
fn leave(server: &Server) -> Left {
    let mut client = server.client();
    for request in [
        "ACQUIRE readers A SHARED PX 600000",
        "ACQUIRE readers B SHARED PX 700000",
        "ACQUIRE readers B SHARED PX 1",
        "ACQUIRE readers 0f8fad5b-d9cb-469f-a165-70867728950e:7 SHARED PX 800000",
        "ACQUIRE permits A SLOTS 8 WEIGHT 3 PX 900000",
        "ACQUIRE permits B SLOTS 9 WEIGHT 2 PX 600000",
        "ACQUIRE permits C SLOTS 8 PX 700000",
        "ACQUIRE permits D SHARED PX 600000",
        "RELEASE permits D",
        "ACQUIRE heavy A SLOTS 1000000 WEIGHT 999999 PX 600000",
        "ACQUIRE downgraded A SLOTS 4 WEIGHT 4 PX 600000",
        "RENEW downgraded A SLOTS 6 PX 600000",
        "ACQUIRE downgraded B SHARED PX 600000",
    ] {
        let reply = client.call(format!("LOCK.{request}"));
        assert!(!matches!(reply, Reply::Error(_)) && !reply.is_null(), "{request}: {reply:?}");
    }
    client.call_all(
        (0..CROWD).map(|owner| format!("LOCK.ACQUIRE crowd owner-{owner} SLOTS 90 WEIGHT 2 PX 600000")),
    );
    let locks = KEYS.map(|key| (key, holders(&mut client, key))).to_vec();
    assert_eq!(locks.iter().map(|(_, holders)| holders.len()).collect::<Vec<_>>(), [3, 3, 1, 2, CROWD]);
    Left { locks, at: Instant::now() }
}

/// Asserts that all holders have come back, and that the lock admits exactly the other owners that it admitted before.
/// Then lets the holders release the locks.
#[track_caller]
fn assert_back(client: &mut Client, left: &Left, way: &str) {
    let gone = i64::try_from(left.at.elapsed().as_millis()).expect("a time");
    for (key, before) in &left.locks {
        let after = holders(client, key);
        let same = |holder: &Holder| (holder.described(), holder.token);
        let expected: Vec<_> = before.iter().map(same).collect();
        assert_eq!(after.iter().map(same).collect::<Vec<_>>(), expected, "{key}, {way}");
        for (before, after) in before.iter().zip(&after) {
            // A replica counts a lease from the arrival of the change, so on a promoted replica the lease may end
            // later.
            let most = before.lease_left + 5_000;
            let least = before.lease_left - gone - 20_000;
            assert!(
                least < after.lease_left && after.lease_left <= most,
                "{key}, {way}: {before:?} {after:?}"
            );
        }
        let longest = after.iter().map(|holder| holder.lease_left).max().unwrap();
        let ttl = client.call(["PTTL", key]).int();
        assert!((longest - 20_000..=longest + 5_000).contains(&ttl), "{key}, {way}: {ttl} of {longest}");
    }
    for (request, granted) in [
        ("readers X", false),
        ("readers X SLOTS 3", false),
        ("readers X SLOTS 4", true),
        ("permits X SLOTS 8 WEIGHT 3", false),
        ("permits X SLOTS 8 WEIGHT 2", true),
        ("permits X2 SHARED", false),
        ("heavy X SHARED", true),
        ("heavy X2 SHARED", false),
        ("downgraded X SLOTS 6 WEIGHT 2", false),
        ("downgraded X SHARED", true),
        ("downgraded X2 SHARED", false),
        ("crowd X SLOTS 80", false),
        ("crowd X SLOTS 90 WEIGHT 11", false),
        ("crowd X SLOTS 90 WEIGHT 10", true),
    ] {
        let reply = client.call(format!("LOCK.ACQUIRE {request}"));
        assert_eq!(!reply.is_null(), granted, "{request}, {way}");
    }
    assert_eq!(client.acquire("readers B SHARED HOLDS 3").holds, 3, "{way}");
    let error = client.call("LOCK.ACQUIRE permits A SLOTS 8 WEIGHT 2");
    assert_eq!(error.error_word(), "LIMIT", "{way}");
    for (key, before) in &left.locks {
        for Holder { owner, token, .. } in before {
            let renewal = client.call(format!("LOCK.RENEW {key} {owner} TOKEN {token} PX 600000"));
            assert_eq!(renewal, Reply::Int(*token), "{key}, {way}");
            assert_eq!(client.call(["LOCK.RELEASE", key, owner, "ALL"]), Reply::Int(0), "{key}, {way}");
        }
        assert_eq!(client.call(["LOCK.RELEASE", key, "X"]), Reply::Int(0), "{key}, {way}");
        assert_eq!(client.info(key), None, "{key}, {way}");
        let last = before.last().expect("a holder").token;
        assert!(client.acquire(&format!("{key} Y")).token > last, "{key}, {way}");
    }
}

// Files.

#[test]
fn all_holders_come_back_from_a_reload_and_a_snapshot() {
    let server = Server::start();
    let left = leave(&server);
    assert_eq!(server.client().call("DEBUG RELOAD"), Reply::ok());
    assert_back(&mut server.client(), &left, "DEBUG RELOAD");
    let mut server = Server::start();
    let left = leave(&server);
    assert_eq!(server.client().call("SAVE"), Reply::ok());
    server.kill_and_start_again();
    assert_back(&mut server.client(), &left, "SAVE");
}

#[test]
fn all_holders_come_back_from_an_aof() {
    for (preamble, rewritten) in [("yes", false), ("yes", true), ("no", true)] {
        let way = format!("aof-use-rdb-preamble {preamble}, rewritten {rewritten}");
        let config = format!("aof-use-rdb-preamble {preamble}");
        let setup = Setup::new().config("appendonly yes").config("appendfsync always");
        let mut server = setup.config(&config).start();
        let left = leave(&server);
        let mut client = server.client();
        if rewritten {
            client.call("BGREWRITEAOF");
            eventually("the AOF is rewritten", || {
                client.stat("persistence", "aof_rewrite_scheduled") == 0
                    && client.stat("persistence", "aof_rewrite_in_progress") == 0
            });
            // These two changes come after the rewrite, so they are in the AOF as commands.
            client.acquire("permits B SLOTS 9 PX 600000");
            assert_eq!(client.call("LOCK.RELEASE permits B"), Reply::Int(1));
        }
        server.kill_and_start_again();
        assert_back(&mut server.client(), &left, &way);
    }
}

// Keys.

#[test]
fn all_holders_come_back_from_a_dump_and_a_migration() {
    for way in ["DUMP", "MIGRATE"] {
        let (here, there) = (Server::start(), Server::start());
        let left = leave(&here);
        let (mut from, mut to) = (here.client(), there.client());
        for key in KEYS {
            if way == "DUMP" {
                let payload = from.call(["DUMP", key]).bytes().to_vec();
                let expiry = from.call(["PEXPIRETIME", key]).int().to_string();
                let restore = [b"RESTORE".as_slice(), key.as_bytes(), expiry.as_bytes(), &payload, b"ABSTTL"];
                assert_eq!(to.call(restore), Reply::ok(), "{key}");
            } else {
                let migrate = format!("MIGRATE 127.0.0.1 {} {key} 0 10000", there.port());
                assert_eq!(from.call(migrate), Reply::ok(), "{key}");
                assert_eq!(from.info(key), None, "{key}");
            }
        }
        assert_back(&mut to, &left, way);
    }
}

#[test]
fn all_holders_go_with_the_key_to_another_name_or_database() {
    for way in ["RENAME", "MOVE", "SWAPDB"] {
        let server = Server::start();
        let left = leave(&server);
        let mut client = server.client();
        for key in KEYS {
            if way == "RENAME" {
                client.call(format!("RENAME {key} elsewhere"));
                assert_eq!(client.info(key), None, "{key}");
                client.call(format!("RENAME elsewhere {key}"));
            } else if way == "MOVE" {
                assert_eq!(client.call(format!("MOVE {key} 1")), Reply::Int(1), "{key}");
            }
        }
        if way == "SWAPDB" {
            assert_eq!(client.call("SWAPDB 0 1"), Reply::ok());
        }
        if way != "RENAME" {
            client.call("SELECT 1");
        }
        assert_back(&mut client, &left, way);
    }
}

#[test]
fn all_holders_of_an_evicted_lock_keep_their_tenures() {
    let server = Server::start();
    let left = leave(&server);
    let mut client = server.client();
    KEYS.iter().for_each(|key| client.evict(key));
    assert_eq!(client.stat("lock", "lock_tenures_kept"), KEYS.len() as i64);
    for key in KEYS {
        let owner = &left.locks.iter().find(|(other, _)| *other == key).unwrap().1[0].owner;
        // The change of one tenure puts the lock back into the keyspace, with all its holders.
        client.call(format!("LOCK.RENEW {key} {owner} PX 600000")).int();
        assert_eq!(client.call(["EXISTS", key]), Reply::Int(1));
    }
    let renewed = Left { locks: KEYS.map(|key| (key, holders(&mut client, key))).to_vec(), at: left.at };
    for ((_, before), (key, after)) in left.locks.iter().zip(&renewed.locks) {
        let same = |holder: &Holder| (holder.described(), holder.token);
        assert!(before.iter().map(same).eq(after.iter().map(same)), "{key}");
    }
    assert_back(&mut client, &renewed, "eviction");
}

#[test]
fn a_release_by_one_holder_of_an_evicted_lock_leaves_the_others() {
    let server = Server::start();
    let replica = Server::start_replica_of(&server);
    let mut client = server.client();
    for owner in ["A", "B", "C"] {
        client.acquire(&format!("lock {owner} SHARED PX 600000"));
    }
    client.evict("lock");
    let mut writer = server.waiter("lock W BLOCK 0");
    assert_eq!(client.call("LOCK.RELEASE lock B"), Reply::Int(0));
    assert_eq!(client.holders("lock"), ["A x1 SHARED", "C x1 SHARED"]);
    replica.see_in_sync_with(&server);
    assert_eq!(replica.client().holders("lock"), ["A x1 SHARED", "C x1 SHARED"]);
    client.call_all(["LOCK.RELEASE lock A", "LOCK.RELEASE lock C"]);
    assert_eq!(writer.reply().grant().holds, 1);
}

#[test]
fn steps_of_the_wall_clock_end_no_tenure_of_a_lock_with_several_holders() {
    for forward in [true, false] {
        let mut clock = WallClock::new();
        let server = Setup::new().clock(&clock).start();
        let left = leave(&server);
        let mut client = server.client();
        client.call("SET plain value PX 600000");
        if forward {
            clock.forward(HOUR);
            eventually("a plain key is gone", || client.call("EXISTS plain") == Reply::Int(0));
            eventually("the locks are in the keyspace again", || {
                client.call("DBSIZE") == Reply::Int(KEYS.len() as i64)
            });
        } else {
            clock.back(HOUR);
        }
        for (key, before) in &left.locks {
            let same = |holder: &Holder| (holder.described(), holder.token);
            let after = holders(&mut client, key);
            assert!(before.iter().map(same).eq(after.iter().map(same)), "{key}: {after:?}");
            assert!(after.iter().all(|holder| holder.lease_left > 500_000), "{key}: {after:?}");
        }
        assert!(client.call("LOCK.ACQUIRE readers X").is_null());
        assert_eq!(client.acquire("readers X SHARED").holds, 1);
    }
}

#[test]
fn a_lock_with_several_holders_cannot_be_copied() {
    let server = Server::start();
    leave(&server);
    let reply = server.client().call("COPY readers copy");
    assert!(matches!(reply, Reply::Error(_) | Reply::Int(0)), "{reply:?}");
    assert_eq!(server.client().info("copy"), None);
}

#[test]
fn an_expiry_set_by_hand_ends_all_tenures_of_a_lock() {
    let server = Server::start();
    leave(&server);
    let mut client = server.client();
    let mut writer = server.waiter("readers W BLOCK 0");
    assert_eq!(client.call("PEXPIRE readers 1"), Reply::Int(1));
    assert_eq!(writer.reply().grant().holds, 1);
}

#[test]
fn a_release_does_not_undo_an_expiry_set_by_hand() {
    let server = Server::start();
    let mut client = server.client();
    client.call_all(["LOCK.ACQUIRE lock A SHARED PX 600000", "LOCK.ACQUIRE lock B SHARED PX 500000"]);
    client.call_all(["PEXPIRE lock 100000", "LOCK.RELEASE lock A"]);
    assert!(client.call("PTTL lock").int() <= 100_000);
}

#[test]
fn a_lease_that_begins_after_an_expiry_set_by_hand_is_not_shortened() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("lock A SHARED PX 600000");
    client.call("PEXPIRE lock 100000");
    client.acquire("lock B SHARED PX 500000");
    assert!(client.call("PTTL lock").int() > 400_000);
}

#[test]
fn digests_differ_by_limit_and_weight() {
    let server = Server::start();
    let mut client = server.client();
    let modes = ["", "SHARED", "SLOTS 5", "SLOTS 5 WEIGHT 2", "SLOTS 6 WEIGHT 2"];
    assert_eq!(client.call("CONFIG SET lock.quarantine 600000"), Reply::ok());
    let digest = |(number, mode)| {
        // During a quarantine, LOCK.RENEW can claim a tenure with a chosen token. So all locks get the same token, and
        // only the mode differs.
        client.call(format!("LOCK.RENEW lock-{number} A TOKEN 5 PX 60000 {mode}")).int();
        client.call(format!("DEBUG DIGEST-VALUE lock-{number}")).items()[0].text()
    };
    let mut digests: Vec<String> = modes.iter().enumerate().map(digest).collect();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), modes.len(), "{digests:?}");
}

// Replication.

#[track_caller]
fn assert_same(primary: &Server, replica: &Server) {
    replica.see_in_sync_with(primary);
    let [here, there] = [primary, replica].map(|server| server.client().call("DEBUG DIGEST"));
    assert_eq!(here, there);
}

/// The replica receives both grants at the same time. So on the replica the first lease ends last, and on the
/// primary the second lease.
#[test]
fn the_key_on_a_late_replica_has_a_ttl_if_the_key_of_the_primary_has_one() {
    for then in ["LOCK.RENEW lock B PX 590000", "LOCK.RELEASE lock B"] {
        let primary = Server::start();
        let replica = Server::start_replica_of(&primary);
        let mut client = primary.client();
        replica.freeze();
        client.acquire("lock A SHARED PX 600000");
        client.call("PERSIST lock");
        let acquired = Instant::now();
        eventually("300 ms later", || acquired.elapsed() > Duration::from_millis(300));
        client.acquire("lock B SHARED PX 599900");
        replica.thaw();
        assert_same(&primary, &replica);
        client.call_all(["PERSIST lock", then]);
        assert_same(&primary, &replica);
    }
}

#[test]
fn all_holders_are_on_a_replica_that_is_promoted() {
    for way in ["as it happens", "full resync", "partial resync", "restart"] {
        let primary = Server::start();
        let link = Link::to(&primary);
        let mut replica = Setup::new().config("repl-diskless-load swapdb").start();
        if way != "full resync" {
            replica.follow_through(&link, &primary);
        }
        if way == "partial resync" {
            link.swallow();
        }
        let left = leave(&primary);
        match way {
            "full resync" => replica.follow_through(&link, &primary),
            "partial resync" => link.mend(),
            "restart" => {
                replica.see_in_sync_with(&primary);
                replica.client().call("SAVE");
                replica.kill_and_start_again();
                replica.follow(&primary);
            }
            _ => {}
        }
        assert_same(&primary, &replica);
        if way == "partial resync" {
            assert_eq!(primary.client().stat("stats", "sync_full"), 1, "a second full resync");
            assert!(primary.client().stat("stats", "sync_partial_ok") > 0);
        }
        assert_back(&mut replica.promote(), &left, way);
    }
}

#[test]
fn a_replica_follows_every_change_of_several_holders() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let (mut here, mut there) = (primary.client(), replica.client());
    for command in [
        "ACQUIRE lock A SLOTS 9 WEIGHT 3 PX 600000",
        "ACQUIRE lock B SLOTS 9 WEIGHT 2 PX 600000",
        "ACQUIRE lock A SLOTS 9 HOLDS 2 PX 700000",
        "ACQUIRE lock C SHARED PX 600000",
        "RENEW lock B SHARED PX 600000",
        "RELEASE lock A HOLDS 1",
        "RELEASE lock A",
        "ACQUIRE lock D SLOTS 4 PX 600000",
        "RELEASE lock B TOKEN 1",
        "RELEASE lock B ALL",
        "RENEW lock D SLOTS 5 WEIGHT 1 PX 1000",
        "RELEASE lock C",
        "RELEASE lock D",
    ] {
        here.call(format!("LOCK.{command}"));
        replica.see_in_sync_with(&primary);
        assert_eq!(there.holders("lock"), here.holders("lock"), "{command}");
        assert_eq!(there.call("DEBUG DIGEST"), here.call("DEBUG DIGEST"), "{command}");
    }
    assert_eq!(there.info("lock"), None);
}

// Memory.

#[test]
fn memory_usage_counts_every_holder() {
    let server = Server::start();
    let mut client = server.client();
    let mut usage = |count: usize| {
        let owner = |number: usize| format!("{}-{number}", "owner".repeat(20));
        client.call("DEL lock");
        client.call_all((0..count).map(|number| format!("LOCK.ACQUIRE lock {} SHARED", owner(number))));
        client.call("MEMORY USAGE lock SAMPLES 0").int()
    };
    let sizes = [1, 2, 16, 17, 1_000].map(&mut usage);
    assert!(sizes.is_sorted(), "{sizes:?}");
    let each = (sizes[4] - sizes[0]) / 999;
    assert!((150..600).contains(&each), "{each} bytes for each holder with a name of 105 bytes");
    let mut client = server.client();
    client.call_all((1..1_000).map(|number| format!("LOCK.RELEASE lock {}-{number}", "owner".repeat(20))));
    let after = client.call("MEMORY USAGE lock SAMPLES 0").int();
    assert!(after < sizes[1], "{after} bytes for one holder, {sizes:?}");
}

#[test]
fn the_memory_of_very_many_holders_is_given_back() {
    const HOLDERS: usize = 20_000;
    for how in ["release", "DEL", "leases", "FLUSHALL"] {
        let server = Server::start();
        let mut client = server.client();
        let before = client.stat("memory", "used_memory");
        let lease = if how == "leases" { 5_000 } else { 600_000 };
        let acquire = |number| format!("LOCK.ACQUIRE lock owner-{number} SHARED PX {lease}");
        client.call_all((0..HOLDERS).map(acquire));
        let mut writer = server.waiter("lock W BLOCK 0");
        match how {
            "release" => {
                client.call_all((0..HOLDERS).map(|number| format!("LOCK.RELEASE lock owner-{number}")));
            }
            "DEL" => drop(client.call("DEL lock")),
            "FLUSHALL" => drop(client.call("FLUSHALL")),
            _ => {}
        }
        assert_eq!(writer.reply().grant().holds, 1, "{how}");
        eventually("the memory is given back", || client.stat("memory", "used_memory") < before + 500_000);
        assert_eq!(client.holders("lock"), ["W x1 SLOTS 1 WEIGHT 1"], "{how}");
    }
}

/// If a lock is renamed while a grant is not delivered yet, the module must not store the new name once for each holder
/// of the renamed lock.
#[test]
fn a_rename_of_a_lock_with_many_holders_takes_no_memory_while_a_grant_is_delivered() {
    let (_server, mut client, mut b) = Server::start_contended();
    client.call_all((0..50_000).map(|number| format!("LOCK.ACQUIRE crowded owner-{number} SHARED")));
    let [_, before, _, after] =
        client.transact(["LOCK.RELEASE lock A", "INFO memory", "RENAME crowded renamed", "INFO memory"]);
    let used_memory = |info: &Reply| {
        let text = info.text();
        let number = text.lines().find_map(|line| line.strip_prefix("used_memory:")).map(str::parse::<i64>);
        number.expect("used_memory").expect("a number")
    };
    let (before, after) = (used_memory(&before), used_memory(&after));
    assert!(after < before + 500_000, "{before} bytes grew to {after}");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_demoted_primary_gives_back_the_memory_of_tenures_that_ended_before() {
    let server = Server::start();
    let mut client = server.client();
    let before = client.stat("memory", "used_memory");
    let acquire = |number| format!("LOCK.ACQUIRE lock owner-{number} SHARED PX 1000");
    client.call_all((0..20_000).map(acquire));
    client.call("PERSIST lock");
    eventually("the leases are over", || {
        client.call("LOCK.GUARD lock 1").error() == "FENCED the lock is free"
    });
    client.transact(["LOCK.ACQUIRE lock W PX 600000", "REPLICAOF 127.0.0.1 1"]);
    eventually("the memory is given back", || client.stat("memory", "used_memory") < before + 500_000);
}

#[test]
fn a_lock_with_many_holders_is_freed_in_the_background() {
    let server = Server::start();
    let mut client = server.client();
    client.call_all((0..1_000).map(|number| format!("LOCK.ACQUIRE lock owner-{number} SHARED")));
    let before = client.stat("memory", "lazyfreed_objects");
    assert_eq!(client.call("UNLINK lock"), Reply::Int(1));
    eventually("the lock is freed in the background", || {
        client.stat("memory", "lazyfreed_objects") == before + 1 && client.stat("lock", "lock_held") == 0
    });
    client.acquire("lock A");
    client.call("UNLINK lock");
    eventually("the lock is freed", || client.stat("lock", "lock_held") == 0);
    assert_eq!(
        client.stat("memory", "lazyfreed_objects"),
        before + 1,
        "a lock with one holder is freed at once"
    );
}

#[test]
fn holders_stay_intact_during_defragmentation() {
    const HOLDERS: usize = 20_000;
    let server = Server::start();
    let mut client = server.client();
    if client.call("CONFIG SET activedefrag yes") != Reply::ok() {
        return; // the server was built without jemalloc, which defragmentation needs
    }
    let owner = |number: usize| format!("{}-{number}", "A".repeat(200));
    client
        .send_all((0..HOLDERS).map(|number| format!("LOCK.ACQUIRE lock {} SHARED PX 600000", owner(number))));
    let tokens: Vec<i64> = (0..HOLDERS).map(|_| client.reply().grant().token).collect();
    let gone = (0..HOLDERS).filter(|number| number % 5 != 0);
    client.call_all(gone.map(|number| format!("LOCK.RELEASE lock {}", owner(number))));
    for setting in
        ["active-defrag-ignore-bytes 1", "active-defrag-threshold-lower 1", "active-defrag-cycle-min 50"]
    {
        assert_eq!(client.call(format!("CONFIG SET {setting}")), Reply::ok(), "{setting}");
    }
    eventually("owners have been moved", || client.stat("stats", "active_defrag_hits") > 1_000);
    client.call("CONFIG SET activedefrag no");
    // The new locks overwrite the memory in which the moved owners were before. If the module still read that memory,
    // the checks below would fail.
    let other = "B".repeat(200);
    client.call_all((0..HOLDERS).map(|number| format!("LOCK.ACQUIRE other-{number} {other} PX 600000")));
    let after = holders_of(&mut client, HOLDERS);
    assert_eq!(after.len(), HOLDERS / 5);
    for (holder, number) in after.iter().zip((0..HOLDERS).step_by(5)) {
        assert_eq!(holder.tenure(), (owner(number).as_str(), 1, tokens[number]));
        assert_eq!(client.call(["LOCK.RELEASE", "lock", &holder.owner]), Reply::Int(0));
    }
}

#[track_caller]
fn holders_of(client: &mut Client, most: usize) -> Vec<Holder> {
    client.call(format!("LOCK.INFO lock HOLDERS {most}")).info().holders
}
