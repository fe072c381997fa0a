//! HOLDS: requests that are safe to repeat.

use lockward_tests::{Reply, Server, eventually};

#[track_caller]
fn assert_holds_error(reply: &Reply, has: i64) {
    assert_eq!(reply.error_word(), "HOLDS", "{reply:?}");
    let shown =
        reply.error().split(|letter: char| !letter.is_ascii_digit()).any(|word| word == has.to_string());
    assert!(shown, "the error does not contain the count {has}: {reply:?}");
}

#[test]
fn a_first_acquisition_is_safe_to_repeat() {
    let server = Server::start();
    let mut a = server.client();
    let first = a.acquire("lock A HOLDS 1");
    assert_eq!(first.holds, 1);
    for _ in 0..3 {
        assert_eq!(server.client().acquire("lock A HOLDS 1"), first);
    }
    assert_eq!(a.holder("lock").holds, 1);
}

#[test]
fn a_re_entry_is_safe_to_repeat() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A HOLDS 1");
    let second = a.acquire("lock A HOLDS 2");
    assert_eq!(second.holds, 2);
    assert_eq!(a.acquire("lock A HOLDS 2"), second);
    assert_eq!(a.acquire("lock A HOLDS 3").holds, 3);
    assert_eq!(a.holder("lock").holds, 3);
}

#[test]
fn a_repeated_acquisition_extends_the_lease() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A HOLDS 1 PX 20000");
    a.acquire("lock A HOLDS 1 PX 200000");
    assert!(a.holder("lock").lease_left > 100_000);
    a.acquire("lock A HOLDS 1 PX 1000");
    assert!(a.holder("lock").lease_left > 100_000);
}

#[test]
fn a_hold_count_that_skips_a_hold_is_an_error_that_contains_the_count() {
    let server = Server::start();
    let mut a = server.client();
    assert_holds_error(&a.call("LOCK.ACQUIRE lock A HOLDS 2"), 0);
    assert_eq!(a.info("lock"), None);
    let grant = a.acquire("lock A PX 20000");
    assert_holds_error(&a.call("LOCK.ACQUIRE lock A HOLDS 3 PX 200000"), 1);
    a.acquire("lock A PX 20000");
    assert_holds_error(&a.call("LOCK.ACQUIRE lock A HOLDS 1 PX 200000"), 2);
    assert_holds_error(&a.call("LOCK.ACQUIRE lock A HOLDS 4294967295"), 2);
    let holder = a.holder("lock");
    assert_eq!((holder.holds, holder.token), (2, grant.token));
    assert!(holder.lease_left <= 20_000, "the refused request has changed the lease");
}

#[test]
fn a_first_hold_of_a_lock_that_another_holds_is_busy() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("lock A");
    assert_eq!(client.call("LOCK.ACQUIRE lock B HOLDS 1"), Reply::NullArray);
}

#[test]
fn a_later_hold_of_a_lock_that_another_holds_is_an_error() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("lock A");
    assert_holds_error(&client.call("LOCK.ACQUIRE lock B HOLDS 2 BLOCK 0"), 0);
}

#[test]
fn a_repeated_wait_takes_over_the_queue_position() {
    let (server, mut a, _b) = Server::start_contended();
    let mut first = server.waiter("lock C HOLDS 1 BLOCK 0");
    let _d = server.waiter("lock D BLOCK 0");
    let mut second = server.client();
    let id = second.id();
    second.ask("lock C HOLDS 1 BLOCK 0");
    assert_eq!(first.reply().error_word(), "SUPERSEDED");
    assert_eq!(a.queue("lock"), ["B", "C", "D"]);
    let queue = a.call("LOCK.INFO lock WAITERS 3").info().queue.unwrap();
    assert_eq!(queue[1].client_id, id);
    assert!(second.has_no_reply());
    a.call("LOCK.RELEASE lock A");
    a.call("LOCK.RELEASE lock B");
    assert_eq!(second.reply().grant().holds, 1);
    assert_eq!(a.holder("lock").holds, 1);
}

#[test]
fn a_late_request_of_a_client_that_has_left_takes_no_queue_position() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut late = server.client();
    let (id, port) = (late.id(), late.port());
    let mut repeat = server.waiter("lock B HOLDS 1 BLOCK 0");
    server.freeze();
    late.ask("lock B HOLDS 1 BLOCK 0");
    drop(late);
    server.see_left(port);
    server.thaw();
    eventually("the client has left", || a.call(format!("CLIENT LIST ID {id}")).text().is_empty());
    a.call("LOCK.RELEASE lock A");
    assert_eq!(repeat.reply().grant().holds, 1);
}

#[test]
fn a_superseded_client_can_go_on() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut first = server.waiter("lock B HOLDS 1 BLOCK 0");
    first.send("PING");
    let mut second = server.client();
    second.ask("lock B HOLDS 1 BLOCK 0");
    assert_eq!(first.reply().error_word(), "SUPERSEDED");
    assert_eq!(first.reply(), Reply::Simple("PONG".into()));
}

#[test]
fn a_repeated_wait_has_its_own_wait_limit() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut first = server.waiter("lock B HOLDS 1 BLOCK 0");
    let mut second = server.client();
    second.ask("lock B HOLDS 1 BLOCK 50");
    assert_eq!(first.reply().error_word(), "SUPERSEDED");
    assert_eq!(second.reply(), Reply::NullArray);
    a.see_waiters("lock", 0);
}

#[test]
fn a_repeated_wait_outlasts_the_earlier_wait_limit() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut first = server.waiter("lock B HOLDS 1 BLOCK 2000");
    let mut second = server.client();
    second.ask("lock B HOLDS 1 BLOCK 0");
    assert_eq!(first.reply().error_word(), "SUPERSEDED");
    assert_eq!(server.client().call("LOCK.ACQUIRE lock C BLOCK 2050"), Reply::NullArray);
    assert_eq!(a.queue("lock"), ["B"]);
    assert!(second.has_no_reply());
}

#[test]
fn two_waits_without_holds_both_stay_in_the_queue() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let [mut first, mut second] = server.waiters("lock", ["B", "B"]);
    assert_eq!(a.queue("lock"), ["B", "B"]);
    assert!(first.has_no_reply() && second.has_no_reply());
}

#[test]
fn a_wait_repeated_after_its_grant_gets_the_same_grant() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut first = server.waiter("lock B HOLDS 1 BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    let grant = first.reply().grant();
    assert_eq!(server.client().acquire("lock B HOLDS 1 BLOCK 0"), grant);
    assert_eq!(a.holder("lock").holds, 1);
}

#[test]
fn a_release_is_safe_to_repeat() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    a.acquire("lock A");
    for _ in 0..2 {
        assert_eq!(a.call("LOCK.RELEASE lock A HOLDS 1"), Reply::Int(1));
    }
    assert_eq!(a.holder("lock").holds, 1);
    for _ in 0..2 {
        assert_eq!(a.call("LOCK.RELEASE lock A HOLDS 0"), Reply::Int(0));
    }
    assert_eq!(a.info("lock"), None);
}

#[test]
fn a_last_release_is_safe_to_repeat_after_the_hand_off_to_another() {
    let (_server, mut a, mut b) = Server::start_contended();
    assert_eq!(a.call("LOCK.RELEASE lock A HOLDS 0"), Reply::Int(0));
    let grant = b.reply().grant();
    assert_eq!(a.call("LOCK.RELEASE lock A HOLDS 0"), Reply::Int(0));
    let holder = a.holder("lock");
    assert_eq!((holder.owner.as_str(), holder.token, holder.holds), ("B", grant.token, 1));
}

#[test]
fn a_last_release_that_names_its_token_is_safe_to_repeat() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A").token;
    for _ in 0..2 {
        assert_eq!(a.call(format!("LOCK.RELEASE lock A HOLDS 0 TOKEN {token}")), Reply::Int(0));
    }
}

#[test]
fn a_repeated_release_that_names_its_token_leaves_a_later_tenure_alone() {
    let server = Server::start();
    let mut a = server.client();
    let token = a.acquire("lock A").token;
    a.call(format!("LOCK.RELEASE lock A HOLDS 0 TOKEN {token}"));
    let later = a.acquire("lock A");
    assert_eq!(a.call(format!("LOCK.RELEASE lock A HOLDS 0 TOKEN {token}")).error_word(), "NOTHELD");
    assert_eq!(a.holder("lock").token, later.token);
}

#[test]
fn a_release_that_skips_a_hold_is_an_error_that_contains_the_count() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert_holds_error(&a.call("LOCK.RELEASE lock A HOLDS 2"), 1);
    a.acquire("lock A");
    a.acquire("lock A");
    assert_holds_error(&a.call("LOCK.RELEASE lock A HOLDS 0"), 3);
    assert_holds_error(&a.call("LOCK.RELEASE lock A HOLDS 1"), 3);
    assert_eq!(a.holder("lock").holds, 3);
}

#[test]
fn holds_cannot_be_left_of_a_lock_that_is_not_held() {
    let server = Server::start();
    let mut a = server.client();
    assert_eq!(a.call("LOCK.RELEASE lock A HOLDS 1").error_word(), "NOTHELD");
}
