//! Waiters that leave at about the time of their grant. A grant whose client has left before the reply is taken back,
//! and the next waiter is served.

use lockward_tests::{Client, Reply, Server, eventually};

/// The two ways to disconnect: with RST and with FIN.
const LEAVE: [fn(Client); 2] = [Client::break_off, drop];

/// Makes the server read A's release first and B's disconnection afterwards, in the same event loop iteration.
#[track_caller]
fn release_and_leave(server: &Server, a: &mut Client, b: Client, leave: fn(Client)) {
    server.freeze();
    a.send("LOCK.RELEASE lock A");
    server.see_unread_from(a.port());
    let port = b.port();
    leave(b);
    server.see_left(port);
    server.thaw();
}

/// Makes the server read B's disconnection first and A's release afterwards, in the same event loop iteration.
#[track_caller]
fn leave_and_release(server: &Server, a: &mut Client, b: Client, leave: fn(Client)) {
    server.freeze();
    let port = b.port();
    leave(b);
    server.see_left(port);
    a.send("LOCK.RELEASE lock A");
    server.see_unread_from(a.port());
    server.thaw();
}

/// Releases A's lock and disconnects B in this way, and checks that the next waiter gets the lock.
#[track_caller]
fn see_c_served(disconnect: fn(&Server, &mut Client, Client, fn(Client))) {
    for leave in LEAVE {
        let (server, mut a, b) = Server::start_contended();
        let mut c = server.waiter("lock C BLOCK 0");
        disconnect(&server, &mut a, b, leave);
        assert_eq!(a.reply(), Reply::Int(0));
        assert_eq!(c.reply().grant().holds, 1);
        assert_eq!(a.owner("lock").as_deref(), Some("C"));
    }
}

#[test]
fn a_waiter_that_disconnects_just_before_the_release_is_skipped() {
    see_c_served(leave_and_release);
}

#[test]
fn a_waiter_that_disconnects_just_after_the_release_passes_its_grant_on() {
    see_c_served(release_and_leave);
}

#[test]
fn a_lock_is_free_when_its_last_waiter_disconnects_just_after_the_release() {
    for leave in LEAVE {
        let (server, mut a, b) = Server::start_contended();
        release_and_leave(&server, &mut a, b, leave);
        assert_eq!(a.reply(), Reply::Int(0));
        eventually("the lock is free", || a.info("lock").is_none());
    }
}

/// Releases A's lock, so that B is granted the lock. Kills B's connection before the server can send the reply to B.
#[track_caller]
fn release_and_kill(a: &mut Client, b: i64) {
    let results = a.transact(["LOCK.RELEASE lock A", &format!("CLIENT KILL ID {b}")]);
    assert_eq!(results, [Reply::Int(0), Reply::Int(1)]);
}

#[test]
fn a_grant_to_a_client_that_is_killed_before_its_reply_is_passed_on() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.acquire("lock A PX 600000");
    let id = b.id();
    b.ask("lock B BLOCK 0 PX 600000");
    a.see_waiters("lock", 1);
    let mut c = server.waiter("lock C BLOCK 0");
    release_and_kill(&mut a, id);
    assert_eq!(c.reply().grant().holds, 1);
    assert_eq!(a.owner("lock").as_deref(), Some("C"));
    assert!(b.is_closed());
}

#[test]
fn a_grant_to_a_client_whose_user_is_deleted_before_its_reply_is_passed_on() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    for [first, second] in
        [["LOCK.RELEASE lock A", "ACL DELUSER user"], ["ACL DELUSER user", "LOCK.RELEASE lock A"]]
    {
        a.acquire("lock A PX 600000");
        a.call("ACL SETUSER user on >secret ~* &* +@all");
        b.call("AUTH user secret");
        b.ask("lock B BLOCK 0 PX 600000");
        a.see_waiters("lock", 1);
        let mut c = server.waiter("lock C BLOCK 0");
        a.transact([first, second]);
        assert_eq!(c.reply().grant().holds, 1);
        assert!(b.is_closed());
        assert_eq!(a.call("LOCK.RELEASE lock C"), Reply::Int(0));
        b = server.client();
    }
}

#[test]
fn a_grant_to_the_last_waiter_is_taken_back_when_this_waiter_is_killed_before_its_reply() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.acquire("lock A PX 600000");
    let id = b.id();
    b.ask("lock B BLOCK 0 PX 600000");
    a.see_waiters("lock", 1);
    release_and_kill(&mut a, id);
    eventually("the lock is free", || a.info("lock").is_none());
    assert_eq!(a.acquire("lock C").holds, 1);
}

#[test]
fn a_grant_that_its_owner_asks_for_again_is_not_taken_back() {
    let server = Server::start();
    let (mut a, mut b, mut c) = (server.client(), server.client(), server.client());
    let (mut kills, keys) = (Vec::new(), ["lock", "other"]);
    for (client, key) in [(&mut b, keys[0]), (&mut c, keys[1])] {
        a.acquire(&format!("{key} A PX 600000"));
        kills.push(format!("CLIENT KILL ID {}", client.id()));
        client.ask(&format!("{key} B HOLDS 1 BLOCK 0 PX 600000"));
        a.see_waiters(key, 1);
    }
    let [_, _, _, _, again] = a.transact([
        "LOCK.RELEASE lock A",
        &kills[0],
        "LOCK.RELEASE other A",
        &kills[1],
        "LOCK.ACQUIRE lock B HOLDS 1",
    ]);
    eventually("the other grant is taken back", || a.info("other").is_none());
    assert_eq!(a.holder("lock").tenure(), ("B", 1, again.grant().token));
}

#[test]
fn a_grant_that_its_owner_asks_for_again_a_little_later_is_not_taken_back() {
    let (server, mut a, mut b) = Server::start_contended();
    let kill = format!("CLIENT KILL ID {}", a.first_waiter("lock").client_id);
    let mut again = server.client();
    again.call("PING");
    // After the server has killed B, the server sleeps, and B's owner sends a new request. So the server reads this
    // request only in the next event loop iteration.
    a.send_all(["MULTI", "LOCK.RELEASE lock A", &kill, "DEBUG SLEEP 0.1", "EXEC"]);
    assert!(b.is_closed());
    let grant = again.acquire("lock B HOLDS 1");
    assert_eq!(grant.holds, 1);
    let past = server.client().call("LOCK.ACQUIRE lock C BLOCK 200");
    assert_eq!(past, Reply::NullArray, "C's wait limit ends, and C is not granted the lock");
    assert_eq!(again.holder("lock").tenure(), ("B", 1, grant.token));
}

#[test]
fn a_grant_is_taken_back_when_the_server_allows_writes_again() {
    let (server, mut a, _b) = Server::start_contended();
    let kill = format!("CLIENT KILL ID {}", a.first_waiter("lock").client_id);
    let mut limited = server.waiter("lock C BLOCK 500");
    a.transact(["LOCK.RELEASE lock A", &kill, "CONFIG SET min-replicas-to-write 1"]);
    // The module's timer ends C's wait at its limit, and then tries to take B's grant back. The attempt fails, because
    // the server refuses writes.
    assert_eq!(limited.reply(), Reply::NullArray);
    assert_eq!(a.owner("lock").as_deref(), Some("B"));
    a.call("CONFIG SET min-replicas-to-write 0");
    eventually("the lock is free", || a.info("lock").is_none());
}

#[test]
fn a_grant_that_its_owner_confirms_before_or_after_its_client_is_killed_is_not_taken_back() {
    for confirm in ["LOCK.ACQUIRE lock B HOLDS 1", "LOCK.RENEW lock B", "LOCK.RELEASE lock B HOLDS 1"] {
        for is_killed_first in [true, false] {
            let (server, mut a, _b) = Server::start_contended();
            let kill = format!("CLIENT KILL ID {}", a.first_waiter("lock").client_id);
            let then = if is_killed_first { [&kill, confirm] } else { [confirm, &kill] };
            a.transact(["LOCK.RELEASE lock A", then[0], then[1]]);
            let past = server.client().call("LOCK.ACQUIRE lock C BLOCK 200");
            assert_eq!(past, Reply::NullArray, "{confirm}, killed first: {is_killed_first}");
            assert_eq!(a.holder("lock").holds, 1, "{confirm}, killed first: {is_killed_first}");
        }
    }
}

#[test]
fn a_renewal_of_two_holds_does_not_confirm_the_one_whose_client_was_killed() {
    let (server, mut a, mut b) = Server::start_contended();
    let kill = format!("CLIENT KILL ID {}", a.first_waiter("lock").client_id);
    let mut again = server.waiter("lock B BLOCK 0");
    a.see_waiters("lock", 2);
    a.transact(["LOCK.RELEASE lock A", &kill, "LOCK.RENEW lock B PX 600000"]);
    assert!(b.is_closed());
    assert_eq!(again.reply().grant().holds, 2);
    eventually("the hold is taken back", || a.holder("lock").holds == 1);
}

#[test]
fn a_grant_that_is_taken_back_keeps_the_owners_other_holds() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.acquire("lock A PX 600000");
    let id = b.id();
    b.ask("lock B BLOCK 0 PX 600000");
    a.see_waiters("lock", 1);
    let mut other = server.waiter("lock B BLOCK 0 PX 600000");
    release_and_kill(&mut a, id);
    other.reply().grant();
    eventually("one hold is left", || a.holder("lock").holds == 1);
    assert_eq!(a.call("LOCK.RELEASE lock B"), Reply::Int(0));
}
