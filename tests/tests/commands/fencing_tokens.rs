//! Fencing tokens grow with each new tenure of a lock.

use lockward_tests::{Client, Server, Setup};

/// Acquires `lock` and returns its token, which must be larger than `before` and exact as a double.
#[track_caller]
fn next(client: &mut Client, before: i64) -> i64 {
    let grant = client.acquire("lock A");
    assert_eq!(grant.holds, 1, "a new tenure");
    assert!(grant.token > before, "{} after {before}", grant.token);
    assert!(grant.token < 1 << 53);
    grant.token
}

#[test]
fn tokens_grow_from_tenure_to_tenure() {
    let server = Server::start();
    let mut a = server.client();
    let mut token = 0;
    for _ in 0..1_000 {
        token = next(&mut a, token);
        a.call("LOCK.RELEASE lock A");
    }
}

#[test]
fn tokens_grow_even_after_the_lock_is_forgotten() {
    let server = Server::start();
    let mut a = server.client();
    let mut token = 0;
    for command in [
        "DEL lock",
        "UNLINK lock",
        "FLUSHDB",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "RENAME lock other",
        "SET lock 1",
    ] {
        token = next(&mut a, token);
        a.call(command);
        a.call("DEL lock");
    }
    next(&mut a, token);
}

#[test]
fn tokens_grow_across_a_restart_without_data() {
    let mut server = Server::start();
    let mut token = 0;
    for _ in 0..3 {
        token = next(&mut server.client(), token);
        server.kill_and_start_again();
    }
    next(&mut server.client(), token);
}

#[test]
fn tokens_grow_across_a_restart_with_data() {
    let mut server = Setup::new().config("appendonly yes").config("appendfsync always").start();
    let mut token = 0;
    for _ in 0..3 {
        let mut a = server.client();
        token = next(&mut a, token);
        a.call("LOCK.RELEASE lock A");
        server.kill_and_start_again();
    }
    next(&mut server.client(), token);
}

#[test]
fn tokens_grow_in_a_transaction_although_its_time_stands_still() {
    let server = Server::start();
    let mut a = server.client();
    a.call("MULTI");
    for _ in 0..100 {
        a.call("LOCK.ACQUIRE lock A");
        a.call("LOCK.RELEASE lock A");
    }
    let results = a.call("EXEC");
    let tokens: Vec<i64> = results.items().iter().step_by(2).map(|reply| reply.grant().token).collect();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[test]
fn tokens_grow_with_each_hand_off() {
    let (server, mut a, mut b) = Server::start_contended();
    let before = a.holder("lock").token;
    a.call("LOCK.RELEASE lock A");
    let mut c = server.waiter("lock C BLOCK 0");
    let handed = b.reply().grant().token;
    assert!(handed > before);
    b.call("LOCK.RELEASE lock B");
    assert!(c.reply().grant().token > handed);
}
