//! A lock is an ordinary key.

use crate::persistence::restore_payloads::varint;
use lockward_tests::{Client, Reply, Server, eventually};

/// Restores the payload of a DUMP under a key.
#[track_caller]
fn restore(client: &mut Client, key: &str, payload: &[u8]) -> Reply {
    client.call([b"RESTORE".as_slice(), key.as_bytes(), b"0", payload, b"REPLACE"])
}

#[test]
fn exists_type_and_scan_find_a_lock() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    a.call("SET string value");
    assert_eq!(a.call("EXISTS lock"), Reply::Int(1));
    let name = a.call("TYPE lock").text();
    assert!(!["none", "string", "hash", "list", "set", "zset", "stream"].contains(&name.as_str()));
    let found = a.call(format!("SCAN 0 COUNT 1000 TYPE {name}"));
    assert_eq!(found.items()[1], Reply::Array(vec![Reply::bulk("lock")]));
}

#[test]
fn a_locks_time_to_live_is_its_lease() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 100000");
    let (seconds, millis) = (a.call("TTL lock").int(), a.call("PTTL lock").int());
    assert!(90 < seconds && seconds <= 101, "{seconds}");
    assert!(90_000 < millis && millis <= 100_010, "{millis}");
}

#[test]
fn the_server_can_describe_a_lock() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert!(matches!(a.call("OBJECT ENCODING lock"), Reply::Bulk(_)));
    assert!(a.call("OBJECT IDLETIME lock").int() >= 0);
    assert_eq!(a.call("OBJECT REFCOUNT lock"), Reply::Int(1));
    assert!(matches!(a.call("DEBUG OBJECT lock"), Reply::Simple(_)));
}

#[test]
fn the_memory_of_a_lock_counts_its_owner() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("small A");
    a.acquire(&format!("large {}", "A".repeat(1_000)));
    let (small, large) = (a.call("MEMORY USAGE small").int(), a.call("MEMORY USAGE large").int());
    assert!(small > 0 && large >= small + 900, "{small} {large}");
}

#[test]
fn copy_is_refused() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert_eq!(a.call("COPY lock other").error_word(), "ERR");
    assert_eq!(a.call("EXISTS other"), Reply::Int(0));
    assert_eq!(a.holder("lock").holds, 1);
}

#[test]
fn commands_of_other_types_are_refused() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    for command in ["GET lock", "APPEND lock x", "INCR lock", "LPUSH lock x", "HSET lock f v", "SADD lock x"]
    {
        assert_eq!(a.call(command).error_word(), "WRONGTYPE", "{command}");
    }
    assert_eq!(a.call("SETNX lock x"), Reply::Int(0));
    assert_eq!(a.holder("lock").holds, 1);
}

#[test]
fn a_dumped_lock_is_restored_with_the_same_tenure() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 100000");
    a.acquire("lock A PX 100000");
    let before = a.holder("lock");
    let payload = a.call("DUMP lock");
    a.call("DEL lock");
    assert_eq!(restore(&mut a, "lock", payload.bytes()), Reply::ok());
    let after = a.holder("lock");
    assert_eq!(after.tenure(), before.tenure());
    assert!(50_000 < after.lease_left && after.lease_left <= before.lease_left, "{after:?}");
    assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    assert_eq!(a.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
}

#[test]
fn a_restored_lock_ends_with_its_lease_although_restore_gave_it_no_expiry() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 500");
    let payload = a.call("DUMP lock");
    a.call("DEL lock");
    restore(&mut a, "lock", payload.bytes());
    let mut b = server.client();
    assert_eq!(b.acquire("lock B BLOCK 0").holds, 1);
}

#[test]
fn a_lock_restored_with_an_expiry_ends_at_that_expiry() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let payload = a.call("DUMP lock");
    a.call("DEL lock");
    assert_eq!(a.call([b"RESTORE".as_slice(), b"lock", b"100", payload.bytes()]), Reply::ok());
    assert_eq!(server.client().acquire("lock B BLOCK 0").holds, 1);
}

#[test]
fn a_restored_lock_whose_lease_is_over_is_free() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 100");
    let payload = a.call("DUMP lock");
    eventually("the lease is over", || a.info("lock").is_none());
    restore(&mut a, "lock", payload.bytes());
    // A payload stores times in whole milliseconds, so the restored lease may last up to a millisecond
    // longer.
    eventually("the restored lock is free", || a.info("lock").is_none());
    assert_eq!(a.acquire("lock B").holds, 1);
}

/// A DUMP in which the token is replaced by a different token of the same length.
#[track_caller]
fn with_token(payload: &[u8], token: i64, other: i64) -> Vec<u8> {
    let (from, to) = (varint(token.cast_unsigned()), varint(other.cast_unsigned()));
    let at = payload.windows(from.len()).position(|window| window == from).expect("the token in the payload");
    let mut forged = payload.to_vec();
    forged[at..at + to.len()].copy_from_slice(&to);
    forged
}

#[test]
fn the_next_token_is_larger_than_a_restored_one() {
    let server = Server::start();
    let mut a = server.client();
    a.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    let token = a.acquire("lock A").token;
    let payload = a.call("DUMP lock");
    let ahead = token + 3_600_000_000;
    assert_eq!(restore(&mut a, "lock", &with_token(payload.bytes(), token, ahead)), Reply::ok());
    assert_eq!(a.holder("lock").token, ahead);
    a.call("LOCK.RELEASE lock A");
    assert!(a.acquire("lock B").token > ahead);
}

#[test]
fn a_restored_token_that_is_a_day_ahead_is_refused() {
    let server = Server::start();
    let mut a = server.client();
    a.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    let token = a.acquire("lock A").token;
    let payload = a.call("DUMP lock");
    let ahead = token + 2 * 86_400_000_000;
    let reply = restore(&mut a, "other", &with_token(payload.bytes(), token, ahead));
    assert_eq!(reply.error_word(), "ERR");
    assert_eq!(a.call("EXISTS other"), Reply::Int(0));
    assert!(a.acquire("next A").token < ahead);
}

#[test]
fn no_restore_payload_crashes_the_server() {
    let server = Server::start();
    let mut a = server.client();
    a.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    a.call("CONFIG SET sanitize-dump-payload no");
    a.acquire("lock A PX 100000");
    let payload = a.call("DUMP lock").bytes().to_vec();
    let mut forged: Vec<Vec<u8>> = Vec::new();
    let body = payload.len() - 10; // the version and the checksum come after the body
    for at in 0..body {
        for value in [0x00, 0x01, 0x02, 0x05, 0x7f, 0x80, 0x81, 0xff, payload[at] ^ 0x01, payload[at] ^ 0x40]
        {
            let mut other = payload.clone();
            other[at] = value;
            forged.push(other);
        }
        let mut shorter = payload.clone();
        shorter.remove(at);
        forged.push(shorter);
        forged.push([&payload[..at], &payload[body..]].concat());
        forged.push([&payload[..at], &[0xff; 16], &payload[at..]].concat());
    }
    for payload in &forged {
        restore(&mut a, "forged", payload);
        a.call("LOCK.INFO forged");
        a.call("LOCK.RELEASE forged A");
        a.call("DEL forged");
    }
    assert_eq!(a.call("PING"), Reply::Simple("PONG".into()));
    assert_eq!(a.holder("lock").owner, "A");
}

#[test]
fn a_lock_and_its_waiters_survive_a_reload() {
    let (server, mut a, mut b) = Server::start_contended();
    let before = a.holder("lock");
    assert_eq!(a.call("DEBUG RELOAD"), Reply::ok());
    assert_eq!(a.holder("lock").tenure(), before.tenure());
    eventually("B waits for the lock", || a.queue("lock") == ["B"]);
    assert!(b.has_no_reply());
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert!(b.reply().grant().token > before.token);
    drop(server);
}

#[test]
fn a_migrated_lock_is_the_same_on_its_new_server() {
    let (here, there) = (Server::start(), Server::start());
    let (mut a, mut far) = (here.client(), there.client());
    a.acquire("lock A PX 100000");
    a.acquire("lock A");
    let before = a.holder("lock");
    assert_eq!(a.call(format!("MIGRATE 127.0.0.1 {} lock 0 10000", there.port())), Reply::ok());
    assert_eq!(a.info("lock"), None);
    let after = far.holder("lock");
    assert_eq!(after.tenure(), before.tenure());
    assert!(50_000 < after.lease_left && after.lease_left <= 100_000, "{after:?}");
    far.call("LOCK.RELEASE lock A ALL");
    assert!(far.acquire("lock B").token > before.token);
}

#[test]
fn digests_of_different_locks_differ() {
    let server = Server::start();
    let mut a = server.client();
    let mut digests = Vec::new();
    for step in [
        "ACQUIRE lock A",
        "ACQUIRE lock A",
        "RELEASE lock A",
        "RELEASE lock A",
        "ACQUIRE lock B",
        "RELEASE lock B",
        "ACQUIRE lock B",
    ] {
        a.call(format!("LOCK.{step}"));
        digests.push(a.call("DEBUG DIGEST-VALUE lock").items()[0].text());
    }
    assert_eq!(digests[3], digests[5], "no lock: {digests:?}");
    digests.remove(5);
    digests.sort();
    let count = digests.len();
    digests.dedup();
    // The lock after the third step is the same as after the first step, so these two digests are equal.
    assert_eq!(digests.len(), count - 1, "{digests:?}");
}

#[test]
fn locks_stay_intact_during_defragmentation() {
    let server = Server::start();
    let mut a = server.client();
    if a.call("CONFIG SET activedefrag yes") != Reply::ok() {
        return; // the server was built without jemalloc, which defragmentation needs
    }
    let owner = "A".repeat(200);
    a.send_all((0..20_000).map(|number| format!("LOCK.ACQUIRE lock-{number} {owner} PX 600000")));
    let tokens: Vec<i64> = (0..20_000).map(|_| a.reply().grant().token).collect();
    a.call_all((0..20_000).filter(|number| number % 5 != 0).map(|number| format!("DEL lock-{number}")));
    for setting in
        ["active-defrag-ignore-bytes 1", "active-defrag-threshold-lower 1", "active-defrag-cycle-min 50"]
    {
        assert_eq!(a.call(format!("CONFIG SET {setting}")), Reply::ok(), "{setting}");
    }
    eventually("locks have been moved", || a.stat("stats", "active_defrag_hits") > 1_000);
    a.call("CONFIG SET activedefrag no");
    // The new locks overwrite the memory in which the moved locks were before. If the module still read that memory,
    // the checks below would fail.
    let other = "B".repeat(200);
    a.call_all((0..20_000).map(|number| format!("LOCK.ACQUIRE other-{number} {other} PX 600000")));
    for number in (0..20_000).step_by(5) {
        assert_eq!(a.holder(&format!("lock-{number}")).tenure(), (owner.as_str(), 1, tokens[number]));
    }
}

#[test]
fn the_module_cannot_be_unloaded_while_there_are_locks() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert_eq!(a.call("MODULE UNLOAD lock").error_word(), "ERR");
    assert_eq!(a.holder("lock").holds, 1);
}
