//! LOCK.RELEASE.

use lockward_tests::{Reply, Server, eventually};

#[test]
fn the_last_release_frees_the_lock() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(a.call("EXISTS lock"), Reply::Int(0));
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn a_release_replies_with_the_holds_left() {
    let server = Server::start();
    let mut a = server.client();
    for _ in 0..3 {
        a.acquire("lock A");
    }
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(2));
    assert_eq!(a.call("LOCK.ACQUIRE lock B"), Reply::NullArray);
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(1));
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_release_that_leaves_holds_keeps_the_lease() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 200000");
    a.acquire("lock A");
    a.call("LOCK.RELEASE lock A");
    assert!(a.holder("lock").lease_left > 100_000);
    assert!(a.call("PTTL lock").int() > 100_000);
}

#[test]
fn all_releases_every_hold() {
    let server = Server::start();
    let mut a = server.client();
    for _ in 0..3 {
        a.acquire("lock A");
    }
    assert_eq!(a.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
    assert_eq!(a.info("lock"), None);
}

#[test]
fn all_hands_the_lock_over() {
    let (_server, mut a, mut b) = Server::start_contended();
    a.acquire("lock A");
    assert_eq!(a.call("LOCK.RELEASE lock A all"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn all_of_a_free_lock_is_a_notheld_error() {
    let server = Server::start();
    assert_eq!(server.client().call("LOCK.RELEASE lock A ALL").error_word(), "NOTHELD");
}

#[test]
fn a_release_of_a_free_lock_is_a_notheld_error_that_says_so() {
    let server = Server::start();
    let mut a = server.client();
    for prepare in ["PING", "LOCK.ACQUIRE lock A"] {
        a.call(prepare);
        a.call("DEL lock");
        let reply = a.call("LOCK.RELEASE lock A");
        assert_eq!(reply.error_word(), "NOTHELD");
        assert!(reply.error().contains("free"), "{reply:?}");
    }
}

#[test]
fn a_release_by_another_owner_is_a_notheld_error_with_the_current_token() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire("lock A").token;
    let reply = client.call("LOCK.RELEASE lock B");
    assert_eq!(reply.error_word(), "NOTHELD");
    assert!(reply.error().contains(&token.to_string()), "{reply:?}");
    assert_eq!(client.holder("lock").holds, 1);
}

#[test]
fn a_release_with_another_token_is_a_notheld_error() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A").token;
    let reply = a.call(format!("LOCK.RELEASE lock A TOKEN {}", token - 1));
    assert_eq!(reply.error_word(), "NOTHELD");
    assert!(reply.error().contains(&token.to_string()), "{reply:?}");
    assert_eq!(a.call(format!("LOCK.RELEASE lock A ALL TOKEN {}", token + 1)).error_word(), "NOTHELD");
    assert_eq!(a.holder("lock").holds, 1);
    assert_eq!(a.call(format!("LOCK.RELEASE lock A TOKEN {token}")), Reply::Int(0));
}

#[test]
fn a_release_of_an_earlier_tenure_is_a_notheld_error() {
    let server = Server::start();
    let mut a = server.client();
    let earlier = a.acquire("lock A").token;
    a.call("LOCK.RELEASE lock A");
    let later = a.acquire("lock A").token;
    assert_eq!(a.call(format!("LOCK.RELEASE lock A TOKEN {earlier}")).error_word(), "NOTHELD");
    assert_eq!(a.call(format!("LOCK.RELEASE lock A token {later}")), Reply::Int(0));
}

#[test]
fn a_release_after_the_lease_is_a_notheld_error() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 50");
    eventually("the lease is over", || a.info("lock").is_none());
    assert_eq!(a.call("LOCK.RELEASE lock A").error_word(), "NOTHELD");
}

#[test]
fn a_stale_holder_gets_the_newer_token_in_the_error() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    let stale = a.acquire("lock A PX 50").token;
    let newer = b.acquire("lock B BLOCK 0").token;
    for command in ["LOCK.RELEASE lock A", "LOCK.RENEW lock A"] {
        let reply = a.call(format!("{command} TOKEN {stale}"));
        assert_eq!(reply.error_word(), "NOTHELD");
        assert!(reply.error().contains(&newer.to_string()), "{reply:?}");
    }
    assert_eq!(b.holder("lock").owner, "B");
}

#[test]
fn options_come_in_any_order() {
    let server = Server::start();
    let mut a = server.client();
    for order in ["HOLDS 0 TOKEN", "TOKEN"] {
        let token = a.acquire("lock A").token;
        let rest = if order == "TOKEN" { " HOLDS 0" } else { "" };
        assert_eq!(a.call(format!("LOCK.RELEASE lock A {order} {token}{rest}")), Reply::Int(0));
    }
}
