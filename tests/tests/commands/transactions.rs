//! MULTI/EXEC, WATCH, scripts and functions.

use lockward_tests::{Client, Reply, Server, eventually};

#[test]
fn a_transaction_does_not_wait() {
    let server = Server::start();
    server.client().acquire("lock A");
    let [nothing, after] = server.client().transact(["LOCK.ACQUIRE lock B BLOCK 0", "PING"]);
    assert_eq!((nothing, after), (Reply::NullArray, Reply::Simple("PONG".into())));
    let [nothing] = server.client3().transact(["LOCK.ACQUIRE lock B BLOCK 10000 HOLDS 1"]);
    assert_eq!(nothing, Reply::Null);
    assert_eq!(server.client().queue("lock"), [""; 0]);
}

#[test]
fn a_transaction_can_acquire_and_release() {
    let server = Server::start();
    let mut a = server.client();
    let [first, second, left, none, info] = a.transact([
        "LOCK.ACQUIRE lock A BLOCK 0",
        "LOCK.ACQUIRE lock A",
        "LOCK.RELEASE lock A",
        "LOCK.RELEASE lock A",
        "LOCK.INFO lock",
    ]);
    assert_eq!((first.grant().holds, second.grant().holds), (1, 2));
    assert_eq!((left, none, info), (Reply::Int(1), Reply::Int(0), Reply::NullArray));
}

#[test]
fn a_transaction_hands_the_lock_over_at_once() {
    let (_server, mut a, mut b) = Server::start_contended();
    let [left, info, again] = a.transact(["LOCK.RELEASE lock A", "LOCK.INFO lock", "LOCK.ACQUIRE lock A"]);
    assert_eq!(left, Reply::Int(0));
    assert_eq!((info.info().holders[0].owner.as_str(), again), ("B", Reply::NullArray));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn an_error_in_a_transaction_does_not_affect_its_other_commands() {
    let server = Server::start();
    let mut a = server.client();
    a.call("SET string value");
    let [wrong, not_held, grant] =
        a.transact(["LOCK.ACQUIRE string A", "LOCK.RELEASE lock A", "LOCK.ACQUIRE lock A"]);
    assert_eq!((wrong.error_word(), not_held.error_word()), ("WRONGTYPE", "NOTHELD"));
    assert_eq!(grant.grant().holds, 1);
}

#[test]
fn a_command_with_too_few_arguments_discards_the_transaction() {
    let server = Server::start();
    let mut a = server.client();
    a.call("MULTI");
    assert_eq!(a.call("LOCK.ACQUIRE lock").error_word(), "ERR");
    a.call("LOCK.ACQUIRE lock A");
    assert_eq!(a.call("EXEC").error_word(), "EXECABORT");
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_discarded_transaction_changes_nothing() {
    let server = Server::start();
    let mut a = server.client();
    a.call("MULTI");
    a.call("LOCK.ACQUIRE lock A");
    assert_eq!(a.call("DISCARD"), Reply::ok());
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_script_does_not_wait() {
    let server = Server::start();
    server.client().acquire("lock A");
    let mut b = server.client();
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'B', 'BLOCK', '0')";
    let is_null = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'B', 'BLOCK', '0') == false";
    let is_nil = "redis.setresp(3) return redis.call('LOCK.ACQUIRE', KEYS[1], 'B', 'BLOCK', '0') == nil";
    assert!(b.call(["EVAL", script, "1", "lock"]).is_null());
    assert_eq!(b.call(["EVAL", is_null, "1", "lock"]), Reply::Int(1));
    assert_eq!(b.call(["EVAL", is_nil, "1", "lock"]), Reply::Int(1));
    assert_eq!(server.client().queue("lock"), [""; 0]);
}

#[test]
fn a_script_can_acquire_renew_and_release() {
    let server = Server::start();
    let mut a = server.client();
    let script = "
        local grant = redis.call('LOCK.ACQUIRE', KEYS[1], 'A', 'HOLDS', '1')
        local renewed = redis.call('LOCK.RENEW', KEYS[1], 'A', 'TOKEN', string.format('%.0f', grant[1]))
        local info = redis.call('LOCK.INFO', KEYS[1])
        local left = redis.call('LOCK.RELEASE', KEYS[1], 'A')
        return {grant[2], grant[1] == renewed, info[2], left, redis.call('EXISTS', KEYS[1])}";
    let expected = [1, 1, 1, 0, 0].map(Reply::Int).to_vec();
    assert_eq!(a.call(["EVAL", script, "1", "lock"]), Reply::Array(expected));
}

#[test]
fn a_script_hands_the_lock_over() {
    let (_server, mut a, mut b) = Server::start_contended();
    let script = "redis.call('LOCK.RELEASE', KEYS[1], 'A') return redis.call('LOCK.ACQUIRE', KEYS[1], 'A')";
    assert!(a.call(["EVAL", script, "1", "lock"]).is_null());
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_script_can_catch_an_error() {
    let server = Server::start();
    let script = "return redis.pcall('LOCK.RELEASE', KEYS[1], 'A')['err']";
    let text = server.client().call(["EVAL", script, "1", "lock"]).text();
    assert!(text.trim_start_matches('-').starts_with("NOTHELD"), "{text}");
}

#[test]
fn a_read_only_script_can_read_a_lock_but_not_acquire_it() {
    let server = Server::start();
    let mut a = server.client();
    let look = "return redis.call('LOCK.INFO', KEYS[1])";
    let take = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'A')";
    assert!(a.call(["EVAL_RO", look, "1", "lock"]).is_null());
    assert_eq!(a.call(["EVAL_RO", take, "1", "lock"]).error_word(), "ERR");
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_function_does_not_wait_and_hands_over() {
    let (_server, mut a, mut b) = Server::start_contended();
    let library = "#!lua name=locks
        redis.register_function('take', function(keys, args)
            return redis.call('LOCK.ACQUIRE', keys[1], args[1], 'BLOCK', '0')
        end)
        redis.register_function('leave', function(keys, args)
            return redis.call('LOCK.RELEASE', keys[1], args[1])
        end)";
    assert_eq!(a.call(["FUNCTION", "LOAD", library]), Reply::bulk("locks"));
    assert!(a.call("FCALL take 1 lock C").is_null());
    assert_eq!(a.queue("lock"), ["B"]);
    assert_eq!(a.call("FCALL leave 1 lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
    assert_eq!(a.call("FCALL take 1 other C").grant().holds, 1);
}

/// Whether EXEC succeeds if a client watches `lock`, another client makes the `change`, and then the first client runs
/// a transaction.
#[track_caller]
fn comes_through(server: &Server, change: impl FnOnce(&mut Client)) -> bool {
    let (mut watcher, mut other) = (server.client(), server.client());
    assert_eq!(watcher.call("WATCH lock"), Reply::ok());
    change(&mut other);
    let replies = watcher.call_all(["MULTI", "PING", "EXEC"]);
    replies[2] != Reply::NullArray
}

#[test]
fn a_change_of_a_watched_lock_aborts_the_transaction() {
    let server = Server::start();
    let changes = [
        "LOCK.ACQUIRE lock A",
        "LOCK.ACQUIRE lock A",
        "LOCK.RENEW lock A PX 600000",
        "LOCK.RELEASE lock A",
        "LOCK.RELEASE lock A",
    ];
    for change in changes {
        let through = comes_through(&server, |client| {
            let reply = client.call(change);
            assert!(!matches!(reply, Reply::Error(_)), "{change}: {reply:?}");
        });
        assert!(!through, "{change}");
    }
}

#[test]
fn commands_that_change_nothing_do_not_abort_a_transaction() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000 HOLDS 1");
    let attempts = [
        "LOCK.ACQUIRE lock B",
        "LOCK.ACQUIRE lock B BLOCK 20",
        "LOCK.ACQUIRE lock A HOLDS 5",
        "LOCK.ACQUIRE lock A HOLDS 1 PX 1000",
        "LOCK.ACQUIRE lock A PX 0",
        "LOCK.RELEASE lock B",
        "LOCK.RELEASE lock A HOLDS 1",
        "LOCK.RENEW lock B",
        "LOCK.INFO lock WAITERS 1",
        "LOCK.TOP",
    ];
    for attempt in attempts {
        assert!(comes_through(&server, |client| drop(client.call(attempt))), "{attempt}");
    }
}

#[test]
fn a_waiter_that_joins_or_leaves_does_not_abort_the_transaction() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    assert!(comes_through(&server, |_| {
        let b = server.waiter("lock B BLOCK 0");
        drop(b);
        a.see_waiters("lock", 0);
    }));
}

#[test]
fn a_hand_off_in_the_background_aborts_the_transaction() {
    let (server, mut a, mut b) = Server::start_contended();
    a.call("LOCK.RENEW lock A PX 2000").int();
    assert!(!comes_through(&server, |_| assert_eq!(b.reply().grant().holds, 1)));
}

#[test]
fn a_lease_that_ends_aborts_the_transaction() {
    let server = Server::start();
    server.client().acquire("lock A PX 2000");
    let through = comes_through(&server, |client| {
        eventually("the lease is over", || client.info("lock").is_none());
    });
    assert!(!through);
}

#[test]
fn a_client_that_moves_a_key_stays_in_its_database() {
    let server = Server::start();
    let mut a = server.client();
    // When a client waits for a long key, the module subscribes to the events of EXPIRE, RENAME, MOVE and new keys,
    // except on servers that handle these events wrongly.
    let long = "k".repeat(300);
    a.acquire(&format!("{long} A PX 600000"));
    let _waiting = server.waiter(&format!("{long} B BLOCK 0"));
    for commands in [["SET one 1", "MOVE one 1"], ["SET two 1", "COPY two other DB 1"]] {
        a.call_all(commands);
        assert!(a.call("CLIENT INFO").text().contains(" db=0 "), "{commands:?}");
    }
    for commands in [["SET three 1", "MOVE three 1"], ["SET four 1", "COPY four another DB 1"]] {
        assert_eq!(a.transact(commands), [Reply::ok(), Reply::Int(1)]);
        assert!(a.call("CLIENT INFO").text().contains(" db=0 "), "{commands:?}");
    }
}
