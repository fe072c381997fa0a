//! Quarantine with several holders: a claim (LOCK.RENEW with TOKEN) restores the limit and the weight of a tenure.

use lockward_tests::{Client, Link, Reply, Server, Setup};

/// A quarantine that outlasts every test.
const LONG: &str = "quarantine 600000";

#[track_caller]
fn claim(client: &mut Client, claim: &str) -> Reply {
    client.call(format!("LOCK.RENEW lock {claim} PX 600000"))
}

#[track_caller]
fn assert_restored(client: &mut Client, what: &str, token: i64) {
    assert_eq!(claim(client, &format!("{what} TOKEN {token}")), Reply::Int(token), "{what}");
}

#[track_caller]
fn assert_not_held(client: &mut Client, what: &str, token: i64) {
    let reply = claim(client, &format!("{what} TOKEN {token}"));
    assert_eq!(reply.error_word(), "NOTHELD", "{what}: {reply:?}");
}

#[test]
fn claims_that_fit_beside_each_other_are_all_restored() {
    let server = Server::start_with(LONG);
    let mut client = server.client();
    assert_restored(&mut client, "A SHARED", 300);
    assert_restored(&mut client, "B SHARED HOLDS 2", 100);
    assert_restored(&mut client, "C SLOTS 5 WEIGHT 2", 200);
    let holders = ["B x2 SHARED", "C x1 SLOTS 5 WEIGHT 2", "A x1 SHARED"];
    assert_eq!(client.holders("lock"), holders, "the holders in the order of their tokens");
    assert_eq!(client.info("lock").unwrap().weight, 4);
}

#[test]
fn a_claim_without_a_limit_is_exclusive() {
    let server = Server::start_with(LONG);
    let mut client = server.client();
    assert_restored(&mut client, "A", 100);
    assert_eq!(client.holders("lock"), ["A x1 SLOTS 1 WEIGHT 1"]);
    assert_not_held(&mut client, "B SHARED", 50);
}

#[test]
fn of_claims_that_do_not_fit_the_largest_tokens_win() {
    let server = Server::start_with(LONG);
    let mut client = server.client();
    assert_restored(&mut client, "A SLOTS 5 WEIGHT 3", 100);
    assert_restored(&mut client, "B SLOTS 5 WEIGHT 2", 200);
    assert_not_held(&mut client, "W", 150);
    assert_eq!(client.info("lock").unwrap().holding, 2, "a refused claim has ended a tenure");
    // C and B fit together. A does not fit beside C and B, so A's tenure ends.
    assert_restored(&mut client, "C SLOTS 5 WEIGHT 3", 300);
    assert_eq!(client.holders("lock"), ["B x1 SLOTS 5 WEIGHT 2", "C x1 SLOTS 5 WEIGHT 3"]);
    assert_not_held(&mut client, "A SLOTS 5 WEIGHT 3", 100);
    assert_restored(&mut client, "W", 400);
    assert_eq!(client.holders("lock"), ["W x1 SLOTS 1 WEIGHT 1"]);
    for (what, token) in [("B SLOTS 5 WEIGHT 2", 200), ("C SLOTS 5 WEIGHT 3", 300)] {
        assert_not_held(&mut client, what, token);
    }
}

#[test]
fn a_released_tenure_is_not_restored_nor_an_older_one_that_does_not_fit_beside_it() {
    let server = Server::start_with(LONG);
    let mut client = server.client();
    assert_restored(&mut client, "A SHARED", 100);
    assert_restored(&mut client, "B SHARED", 300);
    assert_eq!(client.call("LOCK.RELEASE lock B"), Reply::Int(0));
    assert_not_held(&mut client, "B SHARED", 300);
    assert_not_held(&mut client, "W", 200);
    assert_restored(&mut client, "C SHARED", 200);
    assert_eq!(client.holders("lock"), ["A x1 SHARED", "C x1 SHARED"]);
}

#[test]
fn restored_tenures_reach_the_replica_and_the_aof_with_their_modes() {
    let mut primary = Setup::new().module(LONG).config("appendonly yes").config("appendfsync always").start();
    let replica = Server::start_replica_of(&primary);
    let mut client = primary.client();
    assert_restored(&mut client, "A SLOTS 9 WEIGHT 4 HOLDS 3", 100);
    assert_restored(&mut client, "B SHARED", 200);
    let holders = ["A x3 SLOTS 9 WEIGHT 4", "B x1 SHARED"];
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().holders("lock"), holders);
    primary.kill_and_start_again();
    assert_eq!(primary.client().holders("lock"), holders);
}

/// A server in quarantine after a restart from a file that lacks the last changes. In the file A holds the whole lock,
/// because A's downgrade and the grants to B and C came later. Also returns the tokens of A, B and C.
#[track_caller]
fn restarted() -> (Server, [i64; 3]) {
    let mut server = Server::start();
    let mut client = server.client();
    let a = client.acquire("lock A SLOTS 4 WEIGHT 4 PX 600000").token;
    assert_eq!(client.call("SAVE"), Reply::ok());
    client.call("LOCK.RENEW lock A SLOTS 9 PX 600000").int();
    let [b, c] = ["B SHARED", "C SLOTS 9 WEIGHT 3"]
        .map(|request| client.acquire(&format!("lock {request} PX 600000")).token);
    server.kill();
    server.change_setup(|setup| setup.module(LONG));
    server.start_again();
    (server, [a, b, c])
}

#[test]
fn after_a_restart_all_holders_come_back_though_the_file_lacks_a_downgrade() {
    let (server, [a, b, c]) = restarted();
    let mut client = server.client();
    assert_eq!(client.holders("lock"), ["A x1 SLOTS 4 WEIGHT 4"]);
    assert_restored(&mut client, "A SLOTS 9 WEIGHT 4", a);
    assert_restored(&mut client, "C SLOTS 9 WEIGHT 3", c);
    assert_restored(&mut client, "B SHARED", b);
    let holders = ["A x1 SLOTS 9 WEIGHT 4", "B x1 SHARED", "C x1 SLOTS 9 WEIGHT 3"];
    assert_eq!(client.holders("lock"), holders);
}

#[test]
fn a_claim_ends_an_unconfirmed_tenure_which_can_be_claimed_again() {
    let (server, [a, b, c]) = restarted();
    let mut client = server.client();
    // B does not fit beside A with the mode that A has in the file. So B's claim ends A's tenure.
    assert_restored(&mut client, "B SHARED", b);
    assert_eq!(client.holders("lock"), ["B x1 SHARED"]);
    assert_restored(&mut client, "C SLOTS 9 WEIGHT 3", c);
    assert_restored(&mut client, "A SLOTS 9 WEIGHT 4", a);
    assert_eq!(client.info("lock").unwrap().weight, 8);
}

#[test]
fn a_renewal_without_a_mode_confirms_the_mode_in_the_file() {
    let (server, [a, b, _]) = restarted();
    let mut client = server.client();
    assert_eq!(claim(&mut client, "A"), Reply::Int(a));
    assert_eq!(client.holders("lock"), ["A x1 SLOTS 4 WEIGHT 4"]);
    assert_restored(&mut client, "B SHARED", b);
    assert_eq!(client.holders("lock"), ["B x1 SHARED"], "the tenure with the larger token stays");
}

#[test]
fn a_confirmed_tenure_cannot_be_claimed_with_a_smaller_limit() {
    let (server, [a, ..]) = restarted();
    let mut client = server.client();
    assert_restored(&mut client, "A SLOTS 9 WEIGHT 4", a);
    let reply = claim(&mut client, &format!("A SLOTS 4 WEIGHT 4 TOKEN {a}"));
    let error = "LIMIT the owner has SLOTS 9 WEIGHT 4: release first, or ask as another owner";
    assert_eq!(reply.error(), error);
}

#[test]
fn the_end_of_quarantine_serves_all_waiters_that_fit() {
    let server = Server::start_with(LONG);
    let mut client = server.client();
    assert_restored(&mut client, "A SHARED", 100);
    let mut readers = ["B", "C"].map(|owner| server.waiter(&format!("lock {owner} SHARED BLOCK 0")));
    let mut writer = server.waiter("lock W BLOCK 0");
    assert!(readers.iter_mut().all(Client::has_no_reply), "a reader got a new tenure in quarantine");
    assert_eq!(client.call("CONFIG SET lock.quarantine 0"), Reply::ok());
    readers.iter_mut().for_each(|reader| assert_eq!(reader.reply().grant().holds, 1));
    assert!(writer.has_no_reply());
    assert_eq!(client.holders("lock"), ["A x1 SHARED", "B x1 SHARED", "C x1 SHARED"]);
}

#[test]
fn after_a_failover_holders_claim_what_the_replica_has_missed() {
    let primary = Server::start();
    let link = Link::to(&primary);
    let replica = Setup::new().module(LONG).start();
    replica.follow_through(&link, &primary);
    let mut client = primary.client();
    let a = client.acquire("lock A SHARED PX 600000").token;
    let gone = client.acquire("lock X SHARED PX 600000").token;
    replica.see_in_sync_with(&primary);
    link.swallow();
    assert_eq!(client.call("LOCK.RELEASE lock X"), Reply::Int(0));
    let b = client.acquire("lock B SLOTS 3 WEIGHT 2 PX 600000").token;
    let mut there = replica.promote();
    assert_eq!(there.holders("lock"), ["A x1 SHARED", "X x1 SHARED"], "the holders that the replica knows");
    assert!(there.call("LOCK.ACQUIRE lock Y SHARED").is_null(), "a new tenure in quarantine");
    // B was granted the lock after X's release, which the replica has missed. B and X do not fit together, and X does
    // not claim its tenure. So B's claim ends X's tenure.
    assert_restored(&mut there, "A SHARED", a);
    assert_restored(&mut there, "B SLOTS 3 WEIGHT 2", b);
    assert_eq!(there.holders("lock"), ["A x1 SHARED", "B x1 SLOTS 3 WEIGHT 2"]);
    assert!(a < gone && gone < b);
    assert_eq!(there.call("LOCK.RELEASE lock B"), Reply::Int(0));
    assert_eq!(there.call("LOCK.RELEASE lock A"), Reply::Int(0));
}
