//! LOCK.ACQUIRE without waiting.

use lockward_tests::{Client, Reply, Server};

/// Asserts that more than half of the lease, and at most the whole lease, is left. Some of the lease has passed,
/// because the test takes time.
#[track_caller]
fn assert_lease(client: &mut Client, key: &str, lease: i64) {
    let left = client.holder(key).lease_left;
    assert!(lease / 2 < left && left <= lease, "{left} ms left of {lease}");
}

#[test]
fn a_free_lock_is_granted_with_one_hold() {
    let server = Server::start();
    let mut a = server.client();
    let grant = a.acquire("lock A");
    assert_eq!(grant.holds, 1);
    let holder = a.holder("lock");
    assert_eq!((holder.owner.as_str(), holder.holds, holder.token), ("A", 1, grant.token));
}

#[test]
fn re_entry_adds_a_hold_and_keeps_the_token() {
    let server = Server::start();
    let mut a = server.client();
    let first = a.acquire("lock A");
    for holds in 2..=5 {
        let again = server.client().acquire("lock A");
        assert_eq!((again.holds, again.token), (holds, first.token));
    }
    assert_eq!(a.holder("lock").holds, 5);
}

#[test]
fn the_reply_for_a_lock_held_by_another_owner_is_null() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    let grant = a.acquire("lock A");
    assert_eq!(b.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    let holder = a.holder("lock");
    assert_eq!((holder.owner.as_str(), holder.holds, holder.token), ("A", 1, grant.token));
}

#[test]
fn locks_are_independent_of_each_other() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("lock A");
    assert_eq!(client.acquire("other B").holds, 1);
    client.call("SELECT 1");
    assert_eq!(client.acquire("lock B").holds, 1);
    client.call("LOCK.RELEASE lock B");
    client.call("SELECT 0");
    assert_eq!(client.owner("lock").as_deref(), Some("A"));
}

#[test]
fn a_lease_is_given_in_milliseconds_or_seconds() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("first A PX 100000");
    assert_lease(&mut a, "first", 100_000);
    a.acquire("second A EX 100");
    assert_lease(&mut a, "second", 100_000);
}

#[test]
fn without_px_or_ex_the_default_lease_applies() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert_lease(&mut a, "lock", 30_000);
}

#[test]
fn the_longest_lease_is_granted() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 315360000000");
    assert_lease(&mut a, "lock", 315_360_000_000);
    a.acquire("other A EX 315360000");
    assert_lease(&mut a, "other", 315_360_000_000);
}

#[test]
fn a_lease_that_is_over_frees_the_lock() {
    let server = Server::start();
    let mut a = server.client();
    let first = a.acquire("lock A PX 50");
    lockward_tests::eventually("the lease is over", || a.info("lock").is_none());
    let next = server.client().acquire("lock B");
    assert_eq!(next.holds, 1);
    assert!(next.token > first.token);
    assert_eq!(a.call("LOCK.ACQUIRE lock A"), Reply::NullArray);
}

#[test]
fn a_lease_that_is_over_does_not_leave_a_hold_behind() {
    let server = Server::start();
    let mut a = server.client();
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    a.acquire("lock A PX 50");
    a.acquire("lock A PX 50");
    lockward_tests::eventually("the lease is over", || a.info("lock").is_none());
    assert_eq!(a.acquire("lock A").holds, 1);
}

#[test]
fn re_entry_extends_a_lease_that_would_end_earlier() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 20000");
    a.acquire("lock A PX 200000");
    assert_lease(&mut a, "lock", 200_000);
    assert!(a.call("PTTL lock").int() > 100_000);
}

#[test]
fn re_entry_never_shortens_a_lease() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 200000");
    assert_eq!(a.acquire("lock A PX 1000").holds, 2);
    assert_lease(&mut a, "lock", 200_000);
    assert!(a.call("PTTL lock").int() > 100_000);
}

#[test]
fn the_server_creates_an_owner_for_an_asterisk() {
    let server = Server::start();
    let mut client = server.client();
    let reply = client.call("LOCK.ACQUIRE lock *");
    let [Reply::Int(token), Reply::Int(1), Reply::Int(30_000), Reply::Bulk(owner)] = reply.items() else {
        panic!("{reply:?}")
    };
    let owner = String::from_utf8(owner.clone()).unwrap();
    assert_uuid_v4(&owner);
    let holder = client.holder("lock");
    assert_eq!((holder.owner, holder.token), (owner.clone(), *token));
    assert_eq!(client.acquire(&format!("lock {owner}")).holds, 2);
    assert_eq!(client.call(format!("LOCK.RELEASE lock {owner} ALL")), Reply::Int(0));
}

#[track_caller]
fn assert_uuid_v4(text: &str) {
    let form: String = text
        .chars()
        .map(|letter| if letter.is_ascii_digit() || ('a'..='f').contains(&letter) { 'x' } else { letter })
        .collect();
    assert_eq!(form, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "{text}");
    assert_eq!(&text[14..15], "4", "version: {text}");
    assert!("89ab".contains(&text[19..20]), "variant: {text}");
}

#[test]
fn every_owner_that_the_server_creates_is_unique() {
    let server = Server::start();
    let mut client = server.client();
    let mut owners: Vec<String> = (0..100)
        .map(|number| client.call(format!("LOCK.ACQUIRE lock-{number} *")).items()[3].text())
        .collect();
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), 100);
}

#[test]
fn a_request_with_an_asterisk_is_not_granted_a_held_lock() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("lock A");
    assert_eq!(client.call("LOCK.ACQUIRE lock *"), Reply::NullArray);
}

#[test]
fn a_grant_after_a_wait_contains_the_owner_that_the_server_has_created() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut b = server.waiter("lock * BLOCK 0");
    let owner = a.queue("lock").remove(0);
    assert_uuid_v4(&owner);
    a.call("LOCK.RELEASE lock A");
    let reply = b.reply();
    assert_eq!(reply.items().len(), 4, "{reply:?}");
    assert_eq!(reply.items()[1..], [Reply::Int(1), Reply::Int(30_000), Reply::bulk(owner)]);
}

#[test]
fn options_come_in_any_order_and_any_case() {
    let server = Server::start();
    let mut a = server.client();
    let options = ["PX 100000", "BLOCK 10", "HOLDS 1", "SLOTS 1"];
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]];
    for (number, order) in orders.into_iter().enumerate() {
        let chosen = order.map(|at| options[at]).join(" ");
        assert_eq!(a.acquire(&format!("upper-{number} A {chosen}")).holds, 1);
        assert_eq!(a.acquire(&format!("lower-{number} A {}", chosen.to_lowercase())).holds, 1);
    }
    assert_eq!(a.call("lock.acquire mixed A hOlDs 1 Px 1000").grant().holds, 1);
}

#[test]
fn block_on_a_free_lock_is_granted_at_once() {
    let server = Server::start();
    let mut a = server.client();
    assert_eq!(a.acquire("lock A BLOCK 0").holds, 1);
    assert_eq!(a.acquire("lock A BLOCK 0").holds, 2);
}

#[test]
fn an_owner_re_enters_ahead_of_the_waiters() {
    let (_server, mut a, mut b) = Server::start_contended();
    assert_eq!(a.acquire("lock A").holds, 2);
    assert!(b.has_no_reply());
    a.call("LOCK.RELEASE lock A");
    assert!(b.has_no_reply());
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_lock_has_one_slot_by_default() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A SLOTS 1");
    assert_eq!(a.call("LOCK.ACQUIRE lock B SLOTS 1"), Reply::NullArray);
    assert_eq!(a.acquire("lock A").holds, 2);
}

#[test]
fn owners_are_compared_byte_by_byte() {
    let server = Server::start();
    let mut client = server.client();
    client.call([b"LOCK.ACQUIRE".as_slice(), b"lock", b"A\0"]).grant();
    for other in [b"A".as_slice(), b"a\0", b"A\0\0", b" A\0", b"A\xff"] {
        assert_eq!(client.call([b"LOCK.ACQUIRE", b"lock".as_slice(), other]), Reply::NullArray);
    }
    assert_eq!(client.call([b"LOCK.ACQUIRE".as_slice(), b"lock", b"A\0"]).grant().holds, 2);
}
