//! Tenures survive a restart from an RDB snapshot or an AOF.

use lockward_tests::{Client, Holder, Reply, Server, Setup, eventually};
use std::time::{Duration, Instant};

/// Acquires `lock` twice with a lease of 100 s, and returns the holder.
#[track_caller]
fn held_twice(a: &mut Client) -> Holder {
    a.acquire("lock A PX 100000");
    a.acquire("lock A PX 100000");
    a.holder("lock")
}

/// Asserts that a restarted server has the same tenure, with at most 100 s left of its lease.
#[track_caller]
fn assert_goes_on(server: &Server, before: &Holder) {
    let mut a = server.client();
    let after = a.holder("lock");
    assert_eq!(after.tenure(), before.tenure());
    assert!(50_000 < after.lease_left && after.lease_left <= 100_000, "{after:?}");
    let ttl = a.call("PTTL lock").int();
    assert!(50_000 < ttl && ttl <= 101_000, "{ttl}");
    assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    assert_eq!(a.call(format!("LOCK.RENEW lock A TOKEN {}", before.token)), Reply::Int(before.token));
    assert_eq!(a.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
    assert!(a.acquire("lock B").token > before.token);
}

fn with_aof() -> Setup {
    Setup::new().config("appendonly yes").config("appendfsync always")
}

#[track_caller]
fn rewrite_aof(client: &mut Client) {
    assert!(!matches!(client.call("BGREWRITEAOF"), Reply::Error(_)));
    eventually("the AOF is rewritten", || {
        client.stat("persistence", "aof_rewrite_scheduled") == 0
            && client.stat("persistence", "aof_rewrite_in_progress") == 0
            && client.server_info("persistence", "aof_last_bgrewrite_status") == "ok"
    });
}

#[test]
fn a_tenure_goes_on_after_a_restart_from_a_snapshot() {
    let mut server = Server::start();
    let mut a = server.client();
    let before = held_twice(&mut a);
    assert_eq!(a.call("SAVE"), Reply::ok());
    server.kill_and_start_again();
    assert_goes_on(&server, &before);
}

#[test]
fn a_tenure_goes_on_after_a_restart_from_the_aof() {
    for preamble in ["yes", "no"] {
        let mut server = with_aof().config(&format!("aof-use-rdb-preamble {preamble}")).start();
        let before = held_twice(&mut server.client());
        server.kill_and_start_again();
        assert_goes_on(&server, &before);
    }
}

#[test]
fn a_tenure_goes_on_after_a_restart_from_a_rewritten_aof() {
    for preamble in ["yes", "no"] {
        let mut server = with_aof().config(&format!("aof-use-rdb-preamble {preamble}")).start();
        let mut a = server.client();
        let before = held_twice(&mut a);
        rewrite_aof(&mut a);
        server.kill_and_start_again();
        assert_goes_on(&server, &before);
    }
}

#[test]
fn a_tenure_goes_on_from_a_rewritten_aof_with_commands_after_it() {
    for preamble in ["yes", "no"] {
        let mut server = with_aof().config(&format!("aof-use-rdb-preamble {preamble}")).start();
        let mut a = server.client();
        a.acquire("gone A");
        a.acquire("lock A PX 5000");
        rewrite_aof(&mut a);
        a.acquire("lock A");
        a.acquire("lock A");
        a.call("LOCK.RELEASE lock A");
        a.call("LOCK.RENEW lock A PX 100000");
        a.call("LOCK.RELEASE gone A");
        let before = a.holder("lock");
        server.kill_and_start_again();
        assert_eq!(server.client().info("gone"), None, "preamble {preamble}");
        assert_goes_on(&server, &before);
    }
}

#[test]
fn a_hand_off_survives_a_restart() {
    let (mut server, mut a, mut b) = with_aof().start_contended();
    a.call("LOCK.RELEASE lock A");
    let grant = b.reply().grant();
    server.kill_and_start_again();
    assert_eq!(server.client().holder("lock").tenure(), ("B", 1, grant.token));
}

#[test]
fn a_hand_off_in_the_background_survives_a_restart() {
    let mut server = with_aof().start();
    let mut a = server.client();
    a.acquire("by-lease A");
    a.acquire("by-del A");
    let waiters = ["by-lease", "by-del"].map(|key| server.waiter(&format!("{key} B BLOCK 0 PX 600000")));
    a.call("LOCK.RENEW by-lease A PX 50").int();
    a.call("DEL by-del");
    let tokens = waiters.map(|mut waiter| waiter.reply().grant().token);
    server.kill_and_start_again();
    let mut a = server.client();
    assert_eq!(a.holder("by-lease").tenure(), ("B", 1, tokens[0]));
    assert_eq!(a.holder("by-del").tenure(), ("B", 1, tokens[1]));
}

#[test]
fn a_lock_that_was_freed_stays_free_after_a_restart() {
    let mut server = with_aof().start();
    let mut a = server.client();
    for (key, ending) in [("released", "LOCK.RELEASE released A"), ("deleted", "DEL deleted")] {
        a.acquire(&format!("{key} A"));
        a.call(ending);
    }
    a.acquire("ended A PX 50");
    eventually("the lease is over", || a.info("ended").is_none());
    server.kill_and_start_again();
    let mut a = server.client();
    for key in ["released", "deleted", "ended"] {
        assert_eq!(a.info(key), None, "{key}");
        assert_eq!(a.call(["EXISTS", key]), Reply::Int(0), "{key}");
    }
}

#[test]
fn locks_of_every_database_survive_a_restart() {
    let mut server = with_aof().start();
    let mut a = server.client();
    for db in [0, 3, 9] {
        a.call(format!("SELECT {db}"));
        a.acquire(&format!("lock A{db}"));
    }
    server.kill_and_start_again();
    let mut a = server.client();
    for db in [0, 3, 9] {
        a.call(format!("SELECT {db}"));
        assert_eq!(a.owner("lock"), Some(format!("A{db}")));
    }
}

#[test]
fn binary_owners_and_keys_survive_a_restart() {
    let bytes: Vec<u8> = (0..=255).collect();
    let mut server = with_aof().config("aof-use-rdb-preamble no").start();
    let mut a = server.client();
    let token = a.call([b"LOCK.ACQUIRE".as_slice(), &bytes, &bytes]).grant().token;
    rewrite_aof(&mut a);
    server.kill_and_start_again();
    let mut a = server.client();
    let reply = a.call([b"LOCK.RENEW".as_slice(), &bytes, &bytes]);
    assert_eq!(reply, Reply::Int(token));
}

/// Acquires a lock with a lease of 300 ms, kills the server, and starts it again when the lease is over. The lock must
/// be free.
#[track_caller]
fn assert_gone_after_a_restart(mut server: Server) {
    let mut a = server.client();
    let token = a.acquire("lock A PX 300").token;
    a.call("SAVE");
    let saved = Instant::now();
    server.kill();
    eventually("the lease is over", || saved.elapsed() > Duration::from_millis(320));
    server.start_again();
    let mut a = server.client();
    assert_eq!(a.info("lock"), None);
    assert!(a.acquire("lock B").token > token);
}

#[test]
fn a_snapshot_loads_no_lease_that_ended_while_the_server_was_down() {
    assert_gone_after_a_restart(Server::start());
}

#[test]
fn an_aof_loads_no_lease_that_ended_while_the_server_was_down() {
    assert_gone_after_a_restart(with_aof().start());
}

#[test]
fn the_time_that_the_server_was_down_counts_against_the_lease() {
    for mut server in [Server::start(), with_aof().start()] {
        let mut a = server.client();
        a.acquire("lock A PX 100000");
        a.call("SAVE");
        let saved = Instant::now();
        server.kill();
        eventually("300 ms have passed", || saved.elapsed() > Duration::from_millis(300));
        server.start_again();
        assert!(server.client().holder("lock").lease_left <= 100_000 - 300);
    }
}

#[test]
fn a_loaded_lease_ends_and_serves_the_waiters() {
    let mut server = with_aof().start();
    server.client().acquire("lock A PX 1000");
    server.kill_and_start_again();
    assert_eq!(server.client().acquire("lock B BLOCK 0").holds, 1);
}

#[test]
fn a_server_loads_an_aof_that_it_has_rewritten_without_the_preamble() {
    let server = with_aof().config("aof-use-rdb-preamble no").start();
    let mut a = server.client();
    let before = held_twice(&mut a);
    rewrite_aof(&mut a);
    assert_eq!(a.call("DEBUG LOADAOF"), Reply::ok());
    assert_eq!(a.holder("lock").tenure(), before.tenure());
}

#[test]
fn a_shutdown_saves_the_locks_if_the_server_has_a_save_setting() {
    let mut server = Setup::new().config("save 3600 1").start();
    let before = held_twice(&mut server.client());
    assert!(server.terminate().success());
    server.start_again();
    assert_goes_on(&server, &before);
}

#[test]
fn a_server_with_waiters_shuts_down_normally() {
    let (mut server, _a, mut b) = Server::start_contended();
    assert!(server.terminate().success());
    assert!(b.is_closed());
}
