//! LOCK.RENEW.

use lockward_tests::{Reply, Server, eventually};

#[test]
fn a_renewal_replies_with_the_token() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A").token;
    assert_eq!(a.call("LOCK.RENEW lock A"), Reply::Int(token));
}

#[test]
fn a_renewal_makes_a_lease_longer_or_shorter() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 20000");
    for (option, lease) in [("PX 500000", 500_000), ("EX 100", 100_000), ("", 30_000)] {
        a.call(format!("LOCK.RENEW lock A {option}")).int();
        let (left, ttl) = (a.holder("lock").lease_left, a.call("PTTL lock").int());
        assert!(lease / 2 < left && left <= lease, "{option}: {left} ms left");
        assert!(lease / 2 < ttl && ttl <= lease + 1_000, "{option}: PTTL {ttl}");
    }
}

#[test]
fn a_renewal_adds_no_hold_and_keeps_the_tenure() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let token = a.acquire("lock A").token;
    a.call("LOCK.RENEW lock A PX 1000");
    let holder = a.holder("lock");
    assert_eq!((holder.owner.as_str(), holder.holds, holder.token), ("A", 2, token));
}

#[test]
fn a_renewal_that_names_its_token_replies_with_it() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A").token;
    assert_eq!(a.call(format!("LOCK.RENEW lock A TOKEN {token} PX 100000")), Reply::Int(token));
    assert_eq!(a.call(format!("LOCK.RENEW lock A px 100000 token {token}")), Reply::Int(token));
}

#[test]
fn a_tenure_with_another_token_is_not_renewed() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 20000").token;
    let reply = a.call(format!("LOCK.RENEW lock A PX 500000 TOKEN {}", token - 1));
    assert_eq!(reply.error_word(), "NOTHELD");
    assert!(a.holder("lock").lease_left <= 20_000);
}

#[test]
fn a_free_lock_is_not_renewed() {
    let server = Server::start();
    let mut a = server.client();
    let reply = a.call("LOCK.RENEW lock A");
    assert_eq!(reply.error_word(), "NOTHELD");
    assert!(reply.error().contains("free"), "{reply:?}");
    assert_eq!(a.call("LOCK.RENEW lock A TOKEN 1 HOLDS 1").error_word(), "NOTHELD");
    assert_eq!(a.call("EXISTS lock"), Reply::Int(0));
}

#[test]
fn a_renewal_by_another_owner_is_a_notheld_error_with_the_current_token() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire("lock A PX 20000").token;
    let reply = client.call("LOCK.RENEW lock B PX 500000");
    assert_eq!(reply.error_word(), "NOTHELD");
    assert!(reply.error().contains(&token.to_string()), "{reply:?}");
    assert!(client.holder("lock").lease_left <= 20_000);
}

#[test]
fn a_tenure_whose_lease_is_over_is_not_renewed() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A PX 50").token;
    eventually("the lease is over", || a.info("lock").is_none());
    let reply = a.call(format!("LOCK.RENEW lock A TOKEN {token}"));
    assert_eq!(reply.error_word(), "NOTHELD");
    assert!(reply.error().contains("free"), "{reply:?}");
}

#[test]
fn a_waiter_is_granted_the_lock_when_a_shortened_lease_ends() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.call("LOCK.RENEW lock A PX 50").int();
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_renewed_lease_keeps_the_waiter_waiting_past_its_former_end() {
    let (server, mut a, mut b) = Server::start_contended();
    a.transact(["LOCK.RENEW lock A PX 300", "LOCK.RENEW lock A PX 600000"]);
    let mut clock = server.client();
    clock.acquire("other C PX 400");
    assert_eq!(clock.call("LOCK.ACQUIRE other D BLOCK 0").grant().holds, 1);
    assert_eq!(a.holder("lock").owner, "A");
    assert!(b.has_no_reply());
}
