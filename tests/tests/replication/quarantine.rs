//! Quarantine: the time after a start or a promotion in which the server grants no new tenure.

use lockward_tests::{Client, Grant, Reply, Server, Setup, eventually, rounds};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A quarantine that outlasts every test.
const LONG: &str = "quarantine 600000";

fn long() -> Server {
    Server::start_with(LONG)
}

#[track_caller]
fn restore(client: &mut Client, claim: &str) -> Reply {
    client.call(format!("LOCK.RENEW lock {claim}"))
}

#[test]
fn a_server_in_quarantine_grants_no_new_tenure() {
    let server = long();
    for request in ["LOCK.ACQUIRE lock A", "LOCK.ACQUIRE lock A BLOCK 20", "LOCK.ACQUIRE lock A HOLDS 1"] {
        assert_eq!(server.client().call(request), Reply::NullArray, "{request}");
        assert_eq!(server.client3().call(request), Reply::Null, "{request}");
    }
    assert_eq!(server.client().call("EXISTS lock"), Reply::Int(0));
}

#[test]
fn there_is_no_quarantine_unless_it_is_set() {
    let server = Server::start();
    let mut a = server.client();
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 5").error_word(), "NOTHELD");
    assert_eq!(a.acquire("lock A").holds, 1);
}

#[test]
fn the_end_of_quarantine_serves_a_waiter_on_a_long_key() {
    let server = Server::start_with("quarantine 2000");
    let key = "long".repeat(100);
    let (mut b, mut observer) = (server.client(), server.client());
    b.ask(&format!("{key} B BLOCK 0"));
    // The key for which B waits does not exist. If a module asks for the TTL of a missing key, Redis from 8.2 on
    // crashes.
    observer.see_blocked(1);
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn the_end_of_quarantine_serves_the_waiters() {
    let begun = Instant::now();
    let server = Server::start_with("quarantine 2000");
    let (mut b, mut c, mut observer) = (server.client(), server.client(), server.client());
    b.ask("lock B BLOCK 0");
    observer.see_blocked(1);
    c.ask("lock C BLOCK 0");
    observer.see_blocked(2);
    assert_eq!(b.reply().grant().holds, 1);
    assert!(begun.elapsed() >= Duration::from_millis(2_000), "the quarantine has ended early");
    assert_eq!(observer.queue("lock"), ["C"]);
    b.call("LOCK.RELEASE lock B");
    assert_eq!(c.reply().grant().holds, 1);
}

#[test]
fn the_end_of_quarantine_serves_the_waiters_of_every_lock() {
    let server = Server::start_with("quarantine 700");
    let mut waiters: Vec<Client> = (0..50)
        .map(|number| {
            let mut waiter = server.client();
            waiter.ask(&format!("lock-{number} B BLOCK 0"));
            waiter
        })
        .collect();
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().grant().holds, 1);
    }
}

#[test]
fn a_forgotten_tenure_is_restored_by_its_token() {
    let server = long();
    let mut a = server.client();
    assert_eq!(restore(&mut a, "A TOKEN 4711 PX 100000"), Reply::Int(4_711));
    let holder = a.holder("lock");
    assert_eq!(holder.tenure(), ("A", 1, 4_711));
    assert!(50_000 < holder.lease_left && holder.lease_left <= 100_000, "{holder:?}");
    assert!(a.call("PTTL lock").int() > 50_000);
}

#[test]
fn a_forgotten_tenure_is_restored_with_its_holds() {
    let server = long();
    let mut a = server.client();
    assert_eq!(restore(&mut a, "A HOLDS 3 TOKEN 4711"), Reply::Int(4_711));
    assert_eq!(a.holder("lock").tenure(), ("A", 3, 4_711));
    assert_eq!(a.acquire("lock A HOLDS 4").token, 4_711);
    assert_eq!(a.call("LOCK.RELEASE lock A HOLDS 3"), Reply::Int(3));
    assert_eq!(a.call("LOCK.RELEASE lock A ALL TOKEN 4711"), Reply::Int(0));
}

#[test]
fn a_renewal_in_quarantine_raises_a_hold_count_that_is_too_low() {
    let (server, token) = restarted_from_an_older_file("600000");
    let mut a = server.client();
    assert_eq!(a.holder("lock").tenure(), ("A", 1, token));
    assert_eq!(restore(&mut a, &format!("A TOKEN {token} HOLDS 3")), Reply::Int(token));
    assert_eq!(a.holder("lock").tenure(), ("A", 3, token));
    assert_eq!(a.acquire("lock A").holds, 4);
    assert_eq!(restore(&mut a, &format!("A TOKEN {token} HOLDS 3")), Reply::Int(token));
    assert_eq!(a.holder("lock").tenure(), ("A", 4, token), "a late renewal has taken a hold away");
}

#[test]
fn a_tenure_whose_last_renewal_was_lost_is_restored() {
    let (server, token) = restarted_from_an_older_file("3000");
    let (mut a, mut b) = (server.client(), server.client());
    b.ask("lock B BLOCK 0");
    a.see_blocked(1);
    eventually("the lease in the file is over", || a.info("lock").is_none());
    assert_eq!(restore(&mut a, &format!("A PX 600000 TOKEN {token}")), Reply::Int(token));
    assert!(b.has_no_reply());
}

#[test]
fn a_request_for_the_first_hold_is_not_granted_although_the_server_has_the_tenure() {
    let (server, token) = restarted_from_an_older_file("600000");
    let (mut a, mut waiter, mut b) = (server.client(), server.client(), server.client());
    assert_eq!(
        a.call("LOCK.ACQUIRE lock A HOLDS 1"),
        Reply::NullArray,
        "the lock is granted although another owner may hold it by now"
    );
    waiter.ask("lock A BLOCK 0 HOLDS 1");
    a.see_blocked(1);
    assert_eq!(restore(&mut b, &format!("B TOKEN {}", token + 1)), Reply::Int(token + 1));
    assert!(waiter.has_no_reply());
    assert_eq!(b.owner("lock").as_deref(), Some("B"));
}

#[test]
fn a_renewal_in_quarantine_confirms_the_holder_and_grants_its_waits() {
    let (server, token) = restarted_from_an_older_file("600000");
    let (mut a, mut waiter) = (server.client(), server.client());
    waiter.ask("lock A BLOCK 0 HOLDS 1");
    a.see_blocked(1);
    assert_eq!(restore(&mut a, "A"), Reply::Int(token));
    assert_eq!(waiter.reply().grant(), Grant { token, holds: 1 });
    assert_eq!(a.acquire("lock A HOLDS 1"), Grant { token, holds: 1 });
    assert_eq!(a.acquire("lock A HOLDS 2"), Grant { token, holds: 2 });
}

/// A server in quarantine after a restart from a file in which A holds `lock`. As far as the server knows, the file may
/// lack later changes. Also returns A's token.
#[track_caller]
fn restarted_from_an_older_file(lease: &str) -> (Server, i64) {
    let mut server = Server::start();
    let mut a = server.client();
    let token = a.acquire(&format!("lock A PX {lease}")).token;
    assert_eq!(a.call("SAVE"), Reply::ok());
    server.kill();
    server.change_setup(|setup| setup.module(LONG));
    server.start_again();
    (server, token)
}

#[test]
fn a_lock_with_a_restored_tenure_is_not_granted_to_others() {
    let server = long();
    let mut a = server.client();
    restore(&mut a, "A TOKEN 4711");
    assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    assert_eq!(a.call("LOCK.RELEASE lock B").error_word(), "NOTHELD");
    let mut b = server.waiter("lock B BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert!(b.has_no_reply(), "a hand-off has granted a new tenure");
}

#[test]
fn a_restored_tenure_can_be_renewed() {
    let server = long();
    let mut a = server.client();
    restore(&mut a, "A TOKEN 4711 HOLDS 2 PX 10000");
    assert_eq!(restore(&mut a, "A TOKEN 4711 HOLDS 2 PX 500000"), Reply::Int(4_711));
    assert_eq!(restore(&mut a, "A PX 500000"), Reply::Int(4_711));
    let holder = a.holder("lock");
    assert_eq!(holder.tenure(), ("A", 2, 4_711));
    assert!(holder.lease_left > 100_000);
}

#[test]
fn a_renewal_without_a_token_restores_nothing() {
    let server = long();
    let mut a = server.client();
    assert_eq!(restore(&mut a, "A").error_word(), "NOTHELD");
    assert_eq!(restore(&mut a, "A HOLDS 2").error_word(), "NOTHELD");
    assert_eq!(a.info("lock"), None);
}

#[test]
fn of_two_claims_the_larger_token_wins() {
    let server = long();
    let mut client = server.client();
    assert_eq!(restore(&mut client, "A TOKEN 100"), Reply::Int(100));
    assert_eq!(restore(&mut client, "B TOKEN 200"), Reply::Int(200));
    assert_eq!(client.holder("lock").tenure(), ("B", 1, 200));
    assert_eq!(restore(&mut client, "A TOKEN 100").error_word(), "NOTHELD");
    assert_eq!(client.holder("lock").tenure(), ("B", 1, 200));
    assert_eq!(client.call("LOCK.RELEASE lock A TOKEN 100").error_word(), "NOTHELD");
}

#[test]
fn of_two_claims_with_the_same_token_the_first_stays() {
    let server = long();
    let mut client = server.client();
    restore(&mut client, "A TOKEN 100");
    assert_eq!(restore(&mut client, "B TOKEN 100").error_word(), "NOTHELD");
    assert_eq!(client.holder("lock").owner, "A");
}

fn micros_now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

#[test]
fn the_next_token_is_larger_than_a_restored_one() {
    let server = Server::start_with("quarantine 2000");
    let mut a = server.client();
    let ahead = micros_now() + 3_600_000_000;
    assert_eq!(restore(&mut a, &format!("A TOKEN {ahead} PX 2000")), Reply::Int(ahead));
    a.call("LOCK.RELEASE lock A");
    assert!(a.acquire("lock B BLOCK 0").token > ahead);
}

#[test]
fn a_tenure_with_a_token_a_day_ahead_is_not_restored() {
    let server = long();
    let mut a = server.client();
    for token in [micros_now() + 2 * 86_400_000_000, (1 << 53) - 1] {
        let reply = restore(&mut a, &format!("A TOKEN {token}"));
        assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
        assert_eq!(a.info("lock"), None);
    }
}

#[test]
fn a_restored_hold_count_must_be_below_2_to_the_32() {
    let server = long();
    let mut a = server.client();
    assert_eq!(restore(&mut a, "A TOKEN 5 HOLDS 4294967296").error_word(), "ERR");
    assert_eq!(restore(&mut a, "A TOKEN 5 HOLDS 0").error_word(), "ERR");
    assert_eq!(a.info("lock"), None);
    assert_eq!(restore(&mut a, "A TOKEN 5 HOLDS 4294967295"), Reply::Int(5));
    assert_eq!(a.call("LOCK.ACQUIRE lock A").error_word(), "ERR");
    assert_eq!(a.holder("lock").holds, 4_294_967_295);
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(4_294_967_294));
}

#[test]
fn a_lease_longer_than_the_quarantine_is_an_error() {
    let server = Server::start_with("quarantine 300");
    let mut a = server.client();
    for _ in 0..2 {
        for command in
            ["LOCK.ACQUIRE lock A PX 301", "LOCK.ACQUIRE lock A EX 1", "LOCK.RENEW lock A PX 301 TOKEN 5"]
        {
            let reply = a.call(command);
            assert!(reply.error().starts_with("ERR invalid expire time in 'lock."), "{command}: {reply:?}");
            assert!(
                reply.error().ends_with("' command: at most 300 (lock.quarantine)"),
                "{command}: {reply:?}"
            );
        }
        a.acquire("other A BLOCK 0 PX 300");
        a.call("LOCK.RELEASE other A");
    }
}

#[test]
fn a_lease_longer_than_the_quarantine_is_an_error_once_the_setting_is_changed() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    assert_eq!(a.call("CONFIG SET lock.quarantine 5000"), Reply::ok());
    assert!(a.call("LOCK.RENEW lock A PX 5001").error().starts_with("ERR invalid expire time"));
    a.call("LOCK.RENEW lock A PX 5000").int();
    a.call("LOCK.RENEW lock A").int();
    assert!(a.holder("lock").lease_left <= 5_000);
}

#[test]
fn the_default_lease_is_no_longer_than_the_quarantine() {
    let server = Server::start_with("quarantine 400");
    let mut a = server.client();
    a.send_all(["LOCK.ACQUIRE lock A BLOCK 0", "LOCK.INFO lock"]);
    a.reply().grant();
    assert!(a.reply().info().holders[0].lease_left <= 400);
}

#[test]
fn holders_can_re_enter_renew_and_release_in_quarantine() {
    let mut server = Setup::new().config("appendonly yes").config("appendfsync always").start();
    let grant = server.client().acquire("lock A PX 100000");
    server.kill();
    server.change_setup(|setup| setup.module(LONG));
    server.start_again();
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    assert_eq!(a.acquire("lock A").token, grant.token);
    assert_eq!(a.call("LOCK.RENEW lock A"), Reply::Int(grant.token));
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(1));
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(a.call("LOCK.ACQUIRE lock A"), Reply::NullArray);
}

#[test]
fn a_promotion_begins_quarantine() {
    let primary = Server::start();
    let replica = Setup::new().module("quarantine 2000").start_replica_of(&primary);
    let grant = primary.client().acquire("lock A PX 600000");
    replica.see_in_sync_with(&primary);
    let uptime = |client: &mut Client| client.stat("server", "uptime_in_seconds");
    let mut client = replica.client();
    eventually("the quarantine of the start is over", || uptime(&mut client) > 2);
    client.call("REPLICAOF NO ONE");
    assert_eq!(client.call("LOCK.ACQUIRE other B"), Reply::NullArray);
    assert_eq!(client.acquire("lock A PX 2000").token, grant.token);
    assert_eq!(client.call("LOCK.RENEW forgotten C TOKEN 5 PX 2000"), Reply::Int(5));
    assert_eq!(client.acquire("other B BLOCK 0").holds, 1);
}

#[test]
fn quarantine_ends_when_it_is_set_to_zero() {
    let server = long();
    let (mut a, mut b) = (server.client(), server.client());
    b.ask("lock B BLOCK 0");
    a.see_blocked(1);
    assert_eq!(a.call("CONFIG SET lock.quarantine 0"), Reply::ok());
    assert_eq!(b.reply().grant().holds, 1);
    assert_eq!(a.acquire("other A PX 1000000").holds, 1);
}

#[test]
fn quarantine_begins_again_when_it_is_set_to_more_than_has_passed() {
    let server = long();
    let mut a = server.client();
    assert_eq!(a.call("CONFIG SET lock.quarantine 0"), Reply::ok());
    let token = a.acquire("lock A PX 600000").token;
    assert_eq!(a.call("CONFIG SET lock.quarantine 600000"), Reply::ok());
    assert_eq!(a.call("LOCK.ACQUIRE other B"), Reply::NullArray);
    assert_eq!(a.call("LOCK.RENEW lock A PX 600000"), Reply::Int(token));
}

#[test]
fn a_tenure_that_ended_before_the_quarantine_began_again_cannot_be_restored() {
    let server = long();
    let (mut a, mut b) = (server.client(), server.client());
    assert_eq!(a.call("CONFIG SET lock.quarantine 0"), Reply::ok());
    let ended = a.acquire("lock A PX 600000").token;
    a.call("LOCK.RELEASE lock A");
    let token = b.acquire("lock B PX 600000").token;
    b.call("LOCK.RELEASE lock B");
    assert_eq!(a.call("CONFIG SET lock.quarantine 600000"), Reply::ok());
    assert_eq!(a.call(format!("LOCK.RENEW lock A TOKEN {ended}")).error_word(), "NOTHELD");
    assert_eq!(b.call(format!("LOCK.RENEW lock B TOKEN {token}")).error_word(), "NOTHELD");
}

#[test]
fn a_tenure_that_is_deleted_just_before_its_database_is_swapped_cannot_be_restored() {
    let server = long();
    let mut client = server.client();
    let token = micros_now();
    let claim = format!("A TOKEN {token}");
    assert_eq!(restore(&mut client, &claim), Reply::Int(token));
    client.transact(["DEL lock", "SWAPDB 0 1"]);
    client.call("SELECT 1");
    assert_eq!(restore(&mut client, &claim).error_word(), "NOTHELD");
    client.call("SELECT 0");
    assert_eq!(restore(&mut client, &claim), Reply::Int(token), "nothing has ended in this database");
}

#[test]
fn a_restored_tenure_reaches_replicas_and_the_aof() {
    let mut primary = Setup::new().module(LONG).config("appendonly yes").config("appendfsync always").start();
    let replica = Server::start_replica_of(&primary);
    restore(&mut primary.client(), "A TOKEN 4711 HOLDS 2");
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().holder("lock").tenure(), ("A", 2, 4_711));
    primary.kill_and_start_again();
    assert_eq!(primary.client().holder("lock").tenure(), ("A", 2, 4_711));
}

/// Commands that claim a tenure that never existed, and release it.
fn make_up(key: &str, token: usize) -> [String; 2] {
    [format!("LOCK.RENEW {key} A TOKEN {token}"), format!("LOCK.RELEASE {key} A")]
}

#[test]
fn ended_tenures_are_remembered_without_their_names() {
    let server = long();
    let mut a = server.client();
    let key = |number: usize| format!("{}-{number}", "k".repeat(100_000));
    a.call_all(make_up(&key(0), 1));
    let before = a.stat("memory", "used_memory");
    for number in 1..200 {
        assert_eq!(a.call_all(make_up(&key(number), number)).pop(), Some(Reply::Int(0)));
    }
    eventually("the server does not keep 20 MB of names", || {
        a.stat("memory", "used_memory") < before + 2_000_000
    });
    let again = |a: &mut Client, token: usize| a.call(format!("LOCK.RENEW {} A TOKEN {token}", key(7)));
    assert_eq!(again(&mut a, 7).error_word(), "NOTHELD");
    assert_eq!(again(&mut a, 8), Reply::Int(8));
}

#[test]
fn ended_tenures_are_remembered_for_a_limited_number_of_locks() {
    const TOLD_APART: usize = 200_000;
    const BATCH: usize = 500;
    let server = long();
    let mut a = server.client();
    let before = a.stat("memory", "used_memory");
    let mut make_up_to = |from: usize, to: usize| {
        for from in (from..to).step_by(BATCH) {
            a.call_all(
                (from..from + BATCH).flat_map(|number| make_up(&format!("lock-{number}"), number + 10)),
            );
        }
        a.stat("memory", "used_memory")
    };
    let told_apart = make_up_to(0, TOLD_APART);
    assert_eq!(restore(&mut server.client(), "B TOKEN 1"), Reply::Int(1));
    let more = make_up_to(TOLD_APART, TOLD_APART + rounds(2_000, 1_000_000));
    println!("used_memory: {before}, {told_apart} with {TOLD_APART}, {more} with more");
    assert!(told_apart < before + 25_000_000, "{before} bytes grew to {told_apart}");
    assert!(more < told_apart + 500_000, "{told_apart} bytes grew to {more}");
    let late = |token: usize| server.client().call(format!("LOCK.RENEW other C TOKEN {token}"));
    assert_eq!(late(TOLD_APART + 10).error_word(), "NOTHELD", "a tenure older than an ended one is restored");
    assert_eq!(late(TOLD_APART + 1_500_000), Reply::Int(TOLD_APART as i64 + 1_500_000));
    assert_eq!(server.client().call("LOCK.RENEW lock B"), Reply::Int(1), "a held lock is lost");
}

#[test]
fn commands_from_a_thread_of_another_module_see_the_same_quarantine() {
    let server = Setup::new().module("quarantine 600000").beside_another().start();
    let mut a = server.client();
    assert_eq!(a.call("EMPTY.CALL LOCK.ACQUIRE lock A"), Reply::NullArray);
    assert_eq!(a.call("EMPTY.CALL LOCK.RENEW lock A TOKEN 4711"), Reply::Int(4_711));
    a.call("CONFIG SET lock.quarantine 0");
    let mut b = server.waiter("lock B BLOCK 0");
    assert_eq!(a.call("EMPTY.CALL LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}
