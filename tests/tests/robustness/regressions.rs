//! Regression tests: one for each fault that was found. The name of a test states the correct behaviour.

use lockward_tests::{Reply, Server, Setup, appended_files, commands_in, eventually};
use std::fs;
use std::time::Duration;

#[test]
fn a_value_that_replaces_a_lock_is_not_changed_when_the_waiters_get_their_replies() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A");
    let mut b = primary.waiter("lock B BLOCK 0");
    a.transact(["DEL lock", "SADD lock lock other"]);
    assert_eq!(b.reply().error_word(), "WRONGTYPE");
    assert_eq!(a.call("SCARD lock"), Reply::Int(2));
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().call("DEBUG DIGEST"), a.call("DEBUG DIGEST"));
}

#[test]
fn background_grants_need_no_command_that_can_be_renamed() {
    let server = Setup::new().config("rename-command SREM \"\"").config("rename-command DEL \"\"").start();
    let mut a = server.client();
    a.acquire("lock A PX 100");
    assert_eq!(server.client().acquire("lock B BLOCK 0").holds, 1);
}

#[test]
fn internal_commands_are_not_shown_to_monitors() {
    let server = Server::start();
    let mut monitor = server.client();
    assert_eq!(monitor.call("MONITOR"), Reply::ok());
    let mut a = server.client();
    a.acquire("lock A PX 50");
    server.client().acquire("lock B BLOCK 0");
    a.call("ECHO the-end");
    let mut seen = Vec::new();
    while !seen.last().is_some_and(|line: &String| line.contains("the-end")) {
        seen.push(monitor.reply().text());
    }
    let known = ["lock.acquire", "echo", "hello", "client"];
    let asked = |line: &String| known.iter().any(|command| line.to_lowercase().contains(command));
    assert!(seen.iter().all(asked), "{seen:?}");
}

#[test]
fn an_expiry_set_by_hand_remains_on_the_replica_after_a_re_entry() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    a.call("PEXPIRE lock 100000");
    a.acquire("lock A PX 1");
    replica.see_in_sync_with(&primary);
    assert!(replica.client().call("PTTL lock").int() <= 100_000);
}

#[test]
fn an_expiry_removed_by_hand_stays_removed_on_the_replica_after_a_re_entry() {
    let (primary, replica) = Server::start_with_replica();
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    a.call("PERSIST lock");
    a.acquire("lock A PX 1");
    a.call("LOCK.RELEASE lock A");
    replica.see_in_sync_with(&primary);
    let mut there = replica.client();
    assert_eq!((a.call("PTTL lock"), there.call("PTTL lock")), (Reply::Int(-1), Reply::Int(-1)));
    assert_eq!(there.call("DEBUG DIGEST"), a.call("DEBUG DIGEST"));
}

#[test]
fn an_expiry_set_by_hand_remains_in_the_aof_after_a_re_entry() {
    let mut server = Setup::new().config("appendonly yes").config("appendfsync always").start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.call("PEXPIRE lock 100000");
    a.acquire("lock A PX 1");
    server.kill_and_start_again();
    assert!(server.client().call("PTTL lock").int() <= 100_000);
}

#[test]
fn a_value_written_over_an_evicted_lock_sends_the_waiters_away() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.evict("lock");
    a.call("SET lock value");
    assert_eq!(b.reply().error_word(), "WRONGTYPE");
    a.call("DEL lock");
    assert_eq!(a.acquire("lock C").holds, 1);
}

#[test]
fn a_value_written_where_waiters_wait_for_the_end_of_quarantine_sends_them_away() {
    let server = Server::start_with("quarantine 600000");
    let (mut a, mut b) = (server.client(), server.client());
    b.ask("lock B BLOCK 0");
    a.see_blocked(1);
    a.call("SET lock value");
    assert_eq!(b.reply().error_word(), "WRONGTYPE");
}

#[test]
fn a_lock_deleted_before_its_name_is_evicted_does_not_come_back() {
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET maxmemory-policy volatile-random");
    a.acquire("lock A PX 600000");
    // All commands run in one event loop iteration, so the module's background work does not run in between.
    let commands = ["DEL lock", "SET lock value PX 600000", "CONFIG SET maxmemory 1", "PING", "EXISTS lock"];
    a.call_all(commands);
    eventually("the value is evicted", || {
        a.call("SET filler value");
        a.call("EXISTS lock") == Reply::Int(0)
    });
    a.call("CONFIG SET maxmemory 0");
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn a_late_renewal_does_not_restore_a_tenure_released_in_this_quarantine() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711"), Reply::Int(4_711));
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    for claim in ["A TOKEN 4711", "B TOKEN 4710"] {
        assert_eq!(a.call(format!("LOCK.RENEW lock {claim}")).error(), "NOTHELD the lock is free", "{claim}");
    }
    assert_eq!(a.call("LOCK.RENEW lock C TOKEN 4712"), Reply::Int(4_712));
}

#[test]
fn a_late_renewal_does_not_restore_a_tenure_deleted_in_this_quarantine() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711"), Reply::Int(4_711));
    a.call("DEL lock");
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711").error_word(), "NOTHELD");
}

#[test]
fn a_late_renewal_does_not_restore_a_tenure_flushed_in_this_quarantine() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711"), Reply::Int(4_711));
    a.call("FLUSHALL");
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711").error_word(), "NOTHELD");
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4712"), Reply::Int(4_712));
}

#[test]
fn a_tenure_that_ended_in_quarantine_is_remembered_after_swapdb() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    a.call("LOCK.RENEW lock A TOKEN 4711");
    a.call("DEL lock");
    a.call("SWAPDB 0 1");
    a.call("SELECT 1");
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711").error_word(), "NOTHELD");
}

#[test]
fn a_holder_whose_key_was_evicted_restores_its_tenure_after_a_promotion() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 20000").token;
    a.call("CONFIG SET lock.quarantine 600000");
    a.evict("lock");
    a.call("REPLICAOF 127.0.0.1 1");
    a.call("REPLICAOF NO ONE");
    assert_eq!(a.call(format!("LOCK.RENEW lock A PX 600000 TOKEN {token}")), Reply::Int(token));
}

#[test]
fn a_grant_that_a_renewal_confirms_is_not_taken_back() {
    let (server, mut a, _b) = Server::start_contended();
    let mut c = server.client();
    let id = c.id();
    c.ask("lock C BLOCK 0");
    a.see_waiters("lock", 2);
    let replies = a.call_all([
        "LOCK.RELEASE lock A".to_owned(),
        "LOCK.RELEASE lock B".to_owned(),
        format!("CLIENT KILL ID {id}"),
        "LOCK.RENEW lock C PX 600000".to_owned(),
    ]);
    let token = replies[3].int();
    assert_eq!(a.call("LOCK.ACQUIRE lock D BLOCK 20"), Reply::NullArray);
    assert_eq!(a.holder("lock").tenure(), ("C", 1, token));
}

#[test]
fn an_aof_loaded_while_writes_are_paused_loads_its_locks() {
    let server = Setup::new()
        .config("appendonly yes")
        .config("aof-use-rdb-preamble no")
        .config("appendfsync always")
        .start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 600000").token;
    a.call("CLIENT PAUSE 500 WRITE");
    assert_eq!(a.call("DEBUG LOADAOF"), Reply::ok());
    assert_eq!(a.holder("lock").token, token);
}

#[test]
fn locks_evicted_while_memory_is_freed_in_the_background_are_kept() {
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET maxmemory-policy allkeys-random");
    let for_all = |owner: &'static str| {
        (0..10_000).map(move |lock| format!("LOCK.ACQUIRE lock-{lock} {owner} PX 600000"))
    };
    a.call_all(for_all("A").collect::<Vec<_>>());
    let fill = "for i = 1, 20000 do redis.call('HSET', KEYS[1], i, string.rep('x', 100)) end";
    eventually("evictions run while the background thread frees memory", || {
        let before = a.stat("memory", "used_memory");
        a.call(["EVAL", fill, "1", "big"]);
        let limit = before + (a.stat("memory", "used_memory") - before) / 3;
        // The background thread needs some time to free the large value, so the thread is still busy when the evictions
        // begin.
        a.call_all([
            "UNLINK big".to_owned(),
            format!("CONFIG SET maxmemory {limit}"),
            "SET filler value".to_owned(),
        ]);
        a.call("CONFIG SET maxmemory 0");
        a.stat("stats", "evicted_keys") > 2_000
    });
    let second = a.call_all(for_all("B").collect::<Vec<_>>());
    assert!(second.iter().all(|reply| *reply == Reply::NullArray), "a lock has a second holder");
}

#[test]
fn a_wait_begun_before_the_quarantine_was_set_is_granted_the_lease_it_asked_for() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut b = server.waiter("lock B BLOCK 0 PX 600000");
    a.call("CONFIG SET lock.quarantine 1");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    assert!(a.holder("lock").lease_left > 500_000, "B has got a shorter lease than it asked for");
}

#[test]
fn a_transaction_that_pauses_writes_and_then_writes_completes() {
    let server = Server::start();
    let mut a = server.client();
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    a.acquire("lock A PX 1");
    eventually("the lease is over", || a.info("lock").is_none());
    let [_, acquired, released, renewed] = a.transact([
        "CLIENT PAUSE 1 WRITE",
        "LOCK.ACQUIRE lock B",
        "LOCK.RELEASE lock A",
        "LOCK.RENEW lock A",
    ]);
    for reply in [acquired, released, renewed] {
        assert_eq!(reply.error_word(), "TRYAGAIN");
    }
    eventually("the pause is over", || server.client().acquire("lock B").holds > 0);
}

#[test]
fn a_grant_that_a_later_hold_count_confirms_is_not_taken_back() {
    let (server, mut a, _b) = Server::start_contended();
    let mut c = server.client();
    let id = c.id();
    c.ask("lock C BLOCK 0 HOLDS 1");
    a.see_waiters("lock", 2);
    // All commands run in one event loop iteration: C is granted the lock, C's connection is killed before the
    // reply, and C acquires the lock again over another connection.
    let replies = a.call_all([
        "LOCK.RELEASE lock A".to_owned(),
        "LOCK.RELEASE lock B".to_owned(),
        format!("CLIENT KILL ID {id}"),
        "LOCK.ACQUIRE lock C HOLDS 2".to_owned(),
    ]);
    assert_eq!(replies[3].grant().holds, 2);
    // D waits for 20 ms. When this wait has ended, the module has done all its pending work, such as taking a grant
    // back.
    assert_eq!(a.call("LOCK.ACQUIRE lock D BLOCK 20"), Reply::NullArray);
    assert_eq!(a.holder("lock").holds, 2);
}

#[test]
fn a_full_resync_counts_a_lease_from_its_arrival_although_the_replicas_clock_is_ahead() {
    use lockward_tests::WallClock;
    let primary = Server::start();
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    let mut clock = WallClock::new();
    let setup = Setup::new().clock(&clock);
    clock.forward(Duration::from_secs(3_600));
    let replica = setup.start_replica_of(&primary);
    let mut there = replica.client();
    assert_eq!(there.call("REPLICAOF NO ONE"), Reply::ok());
    assert_eq!(there.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    assert_eq!(there.owner("lock").as_deref(), Some("A"));
}

#[test]
fn a_renewal_that_a_promoted_replica_has_missed_can_be_repeated() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    // The server plays a promoted replica that has missed the last renewal: the tenure still has the short lease from
    // before the missed renewal.
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711 PX 2000"), Reply::Int(4_711));
    // Without a TTL on the key, only the module can end the lease.
    assert_eq!(a.call("PERSIST lock"), Reply::Int(1));
    let mut b = server.waiter("lock B BLOCK 0");
    eventually("the lease is over", || a.info("lock").is_none());
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4710").error_word(), "NOTHELD");
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711"), Reply::Int(4_711));
    assert!(b.has_no_reply());
}

#[test]
fn no_tenure_older_than_one_expired_in_this_quarantine_is_restored() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    assert_eq!(a.call("LOCK.RENEW lock B TOKEN 4712 PX 100"), Reply::Int(4_712));
    eventually("the key is dropped", || a.call("EXISTS lock") == Reply::Int(0));
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 4711").error_word(), "NOTHELD");
}

#[test]
fn a_release_missing_from_the_aof_never_leads_to_two_owners() {
    let mut server = Setup::new().config("appendonly yes").config("appendfsync always").start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.call("LOCK.RELEASE lock A");
    let token = a.acquire("lock B PX 600000").token;
    server.kill();
    let path = appended_files(&server).remove(0);
    let aof = fs::read(&path).expect("an AOF");
    let commands = commands_in(&aof);
    let release = commands.windows(2).find(|pair| pair[1].0[0] == b"LOCK.RELEASE").expect("the release");
    let damaged = [&aof[..release[0].1], &aof[release[1].1..]].concat();
    fs::write(&path, damaged).expect("an AOF");
    server.start_again();
    let mut a = server.client();
    assert_eq!(a.holder("lock").tenure(), ("B", 1, token));
    assert_eq!(a.call("DEBUG RELOAD"), Reply::ok());
    assert_eq!(a.holder("lock").tenure(), ("B", 1, token));
}
