//! Steps of the wall clock: no lease ends early or late, and no waiter stalls.

use lockward_tests::{Client, Reply, Server, Setup, WallClock, eventually};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

/// A server with a wall clock that can be stepped.
#[track_caller]
fn start() -> (WallClock, Server) {
    let clock = WallClock::new();
    let server = Setup::new().clock(&clock).start();
    (clock, server)
}

/// Checks the test's clock itself: the server, the module and the server's log all see the step.
#[test]
fn a_step_of_the_clock_changes_every_time_of_day_that_the_server_reads() {
    let (mut clock, server) = start();
    let mut a = server.client();
    let seconds = |a: &mut Client| a.call("TIME").items()[0].text().parse::<i64>().unwrap();
    let before = seconds(&mut a);
    clock.forward(10 * 365 * 24 * HOUR);
    let (least, most) = (before + 10 * 365 * 86_400, before + 10 * 365 * 86_400 + 3_600);
    a.call("SAVE");
    a.call("SET plain value PX 1000");
    let mut token = 0;
    eventually("the module has read the clock", || {
        a.call("DEL lock");
        token = a.acquire("lock A PX 1000").token;
        token / 1_000_000 >= least
    });
    for (what, shown) in [
        ("TIME", seconds(&mut a)),
        ("INFO", a.stat("server", "server_time_usec") / 1_000_000),
        ("LASTSAVE", a.call("LASTSAVE").int()),
        ("a key's TTL", a.call("PEXPIRETIME plain").int() / 1_000),
        ("a lock's TTL", a.call("PEXPIRETIME lock").int() / 1_000),
        ("a token", token / 1_000_000),
    ] {
        assert!(least <= shown && shown <= most, "{what}: {shown}, not {least} to {most}");
    }
    let year = 1970 + least / 31_556_952;
    server.see_log(&format!(" {year} "));
}

#[test]
fn a_step_forward_ends_no_lease() {
    let (mut clock, server) = start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let before = a.holder("lock");
    a.call("SET plain value PX 600000");
    clock.forward(HOUR);
    eventually("a plain key is gone", || a.call("EXISTS plain") == Reply::Int(0));
    assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    let after = a.holder("lock");
    assert_eq!(after.tenure(), before.tenure());
    assert!(after.lease_left > 300_000, "{after:?}");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
}

#[test]
fn a_step_forward_serves_no_waiter_early() {
    let mut clock = WallClock::new();
    let (server, mut a, mut b) = Setup::new().clock(&clock).start_contended();
    a.call("SET plain value PX 600000");
    clock.forward(HOUR);
    eventually("a plain key is gone", || a.call("EXISTS plain") == Reply::Int(0));
    assert_eq!(server.client().call("LOCK.ACQUIRE lock C BLOCK 300"), Reply::NullArray);
    assert!(b.has_no_reply());
    assert_eq!(a.queue("lock"), ["B"]);
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_lease_the_server_has_dropped_early_still_ends() {
    let mut clock = WallClock::new();
    let (_server, mut a, mut b) = Setup::new().clock(&clock).start_contended();
    a.call("LOCK.RENEW lock A PX 500").int();
    clock.forward(HOUR);
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_step_back_extends_no_lease() {
    let mut clock = WallClock::new();
    let (_server, mut a, mut b) = Setup::new().clock(&clock).start_contended();
    a.acquire("alone A PX 300");
    a.call("LOCK.RENEW lock A PX 300").int();
    clock.back(HOUR);
    assert_eq!(b.reply().grant().holds, 1);
    eventually("the other lease is over", || a.info("alone").is_none());
    assert_eq!(a.acquire("alone B").holds, 1);
}

#[test]
fn a_step_back_delays_no_wait_limit() {
    let (mut clock, server) = start();
    server.client().acquire("lock A");
    let mut b = server.waiter("lock B BLOCK 2000");
    clock.back(HOUR);
    assert_eq!(b.reply(), Reply::NullArray);
    assert_eq!(server.client().call("LOCK.ACQUIRE lock B BLOCK 50"), Reply::NullArray);
}

#[test]
fn a_step_forward_ends_no_wait_limit_early() {
    let (mut clock, server) = start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let mut b = server.waiter("lock B BLOCK 600000");
    clock.forward(HOUR);
    assert_eq!(server.client().call("LOCK.ACQUIRE lock C BLOCK 300"), Reply::NullArray);
    assert!(b.has_no_reply());
    let left = a.first_waiter("lock").wait_left;
    assert!(300_000 < left && left <= 600_000, "{left}");
}

#[test]
fn a_renewal_after_a_step_sets_the_ttl_to_the_lease_again() {
    let (mut clock, server) = start();
    let mut a = server.client();
    for back in [true, false] {
        a.acquire("lock A PX 600000");
        if back {
            clock.back(HOUR)
        } else {
            clock.forward(HOUR / 12)
        }
        eventually("the server has noticed the step", || {
            a.call("LOCK.RENEW lock A PX 600000").int();
            let left = a.call("PTTL lock").int();
            500_000 < left && left <= 600_010
        });
        a.call("LOCK.RELEASE lock A");
    }
}

#[test]
fn a_renewal_right_after_a_step_back_does_not_end_the_lease() {
    let (mut clock, server) = start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 600000").token;
    for _ in 0..20 {
        clock.back(HOUR);
        // The server's cache may still contain the time before the step. By this cached time, the new expiry has
        // already passed, so the server could delete the key.
        let replies = a.call_all(["LOCK.RENEW lock A PX 600000", "EXISTS lock"]);
        assert_eq!(replies[0], Reply::Int(token));
        assert_eq!(a.holder("lock").tenure(), ("A", 1, token));
        assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    }
}

#[test]
fn tokens_grow_across_steps_of_the_clock() {
    let (mut clock, server) = start();
    let mut a = server.client();
    let mut token = 0;
    for step in 0..6 {
        let grant = a.acquire("lock A");
        assert!(grant.token > token, "{} after {token}", grant.token);
        token = grant.token;
        a.call("LOCK.RELEASE lock A");
        if step % 2 == 0 { clock.back(2 * HOUR) } else { clock.forward(HOUR) }
    }
}

#[test]
fn a_load_by_a_clock_that_is_behind_never_extends_the_lease() {
    for aof in ["no", "yes"] {
        let mut clock = WallClock::new();
        let mut server = Setup::new().clock(&clock).config(&format!("appendonly {aof}")).start();
        let mut a = server.client();
        a.acquire("lock A PX 100000");
        let before = a.holder("lock");
        a.call("SAVE");
        server.kill();
        clock.back(HOUR);
        server.start_again();
        let mut a = server.client();
        let after = a.holder("lock");
        assert_eq!(after.tenure(), before.tenure());
        assert!(50_000 < after.lease_left && after.lease_left <= 100_000, "appendonly {aof}: {after:?}");
        a.call("LOCK.RELEASE lock A");
        assert!(a.acquire("lock B").token > before.token);
    }
}

#[test]
fn a_replica_whose_clock_is_ahead_counts_a_lease_from_its_arrival() {
    let primary = Server::start();
    let mut clock = WallClock::new();
    clock.forward(HOUR);
    let replica = Setup::new().clock(&clock).start_replica_of(&primary);
    primary.client().acquire("lock A PX 600000");
    replica.see_in_sync_with(&primary);
    let mut client = replica.client();
    client.call("REPLICAOF NO ONE");
    let holder = client.holder("lock");
    assert_eq!(holder.owner, "A");
    assert!(300_000 < holder.lease_left && holder.lease_left <= 600_000, "{holder:?}");
    assert_eq!(client.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
}

#[test]
fn a_replica_whose_clock_is_ahead_counts_a_restored_lease_from_its_arrival() {
    let primary = Server::start();
    let mut clock = WallClock::new();
    clock.forward(HOUR);
    let replica = Setup::new().clock(&clock).start_replica_of(&primary);
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    let dump = a.call("DUMP lock");
    a.call("DEL lock");
    // The primary replicates RESTORE verbatim, with a deadline by its own wall clock. The same happens when a slot
    // moves.
    assert_eq!(a.call([b"RESTORE".as_slice(), b"lock", b"0", dump.bytes()]), Reply::ok());
    replica.see_in_sync_with(&primary);
    let mut client = replica.promote();
    let holder = client.holder("lock");
    assert!(300_000 < holder.lease_left && holder.lease_left <= 600_000, "{holder:?}");
    assert_eq!(client.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
}

#[test]
fn a_replica_whose_clock_is_days_behind_takes_a_restored_lock() {
    let mut clock = WallClock::new();
    clock.forward(72 * HOUR);
    let primary = Setup::new().clock(&clock).start();
    let mut a = primary.client();
    let token = a.acquire("lock A PX 600000").token;
    let dump = a.call("DUMP lock");
    a.call("DEL lock");
    let replica = Server::start_replica_of(&primary);
    assert_eq!(a.call([b"RESTORE".as_slice(), b"lock", b"0", dump.bytes()]), Reply::ok());
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().holder("lock").token, token);
}

#[test]
fn a_replica_whose_clock_is_behind_never_extends_a_lease_and_gives_larger_tokens() {
    let primary = Server::start();
    let mut clock = WallClock::new();
    clock.back(HOUR);
    let replica = Setup::new().clock(&clock).start_replica_of(&primary);
    let token = primary.client().acquire("lock A PX 600000").token;
    replica.see_in_sync_with(&primary);
    let mut client = replica.client();
    client.call("REPLICAOF NO ONE");
    let holder = client.holder("lock");
    assert!(300_000 < holder.lease_left && holder.lease_left <= 600_000, "{holder:?}");
    client.call("LOCK.RELEASE lock A");
    assert!(client.acquire("lock B").token > token);
}

#[test]
fn a_token_the_server_knows_is_not_far_ahead_after_a_step_back() {
    let mut clock = WallClock::new();
    let given = Setup::new().clock(&clock).start().client().acquire("lock A").token;
    let server = Setup::new().clock(&clock).module("quarantine 600000").start();
    let mut a = server.client();
    let token = a.call(format!("LOCK.RENEW lock A TOKEN {given} PX 600000")).int();
    clock.back(72 * HOUR);
    let dumped = a.call("DUMP lock").bytes().to_vec();
    assert_eq!(a.call([b"RESTORE", &b"copy"[..], b"0", &dumped]), Reply::ok());
    a.call("DEL lock copy");
    // Both tokens are more than a day ahead of the clock. The server refuses the larger token. The server
    // accepts the smaller token, because it has restored a tenure with this token before.
    let claim = |token: i64| format!("LOCK.RENEW other A TOKEN {token}");
    assert!(a.call(claim(token + 1)).error().contains("a day ahead"));
    assert_eq!(a.call(claim(token)), Reply::Int(token));
}
