//! Promotion of a replica that has missed grants: the grants are lost, but no token is given to two tenures.

use lockward_tests::{Client, Link, Reply, Server, Setup, eventually, rounds};
use std::collections::BTreeSet;

/// The fault that makes the replica miss grants before the primary is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The link drops all data, so the replica misses grants.
    Swallowed,
    /// The replica is stopped. The primary's data stays in the socket until the replica continues.
    StandsStill,
}

/// The outcome of the rounds.
#[derive(Debug, Default)]
struct Outcomes {
    acknowledged: usize,
    lost: usize,
}

/// Acquires locks, and causes the fault after the first 500 locks. Then kills the primary, promotes the
/// replica, and checks the replica's locks.
fn round(fault: Fault, outcomes: &mut Outcomes) {
    let mut primary = Server::start();
    let link = Link::to(&primary);
    let replica = Server::start();
    replica.follow_through(&link, &primary);
    let mut client = primary.client();
    let mut tokens = Vec::new();
    let mut acquire = |count: usize| {
        for _ in 0..count {
            let number = tokens.len();
            tokens.push(client.acquire(&format!("lock-{number} A PX 600000")).token);
        }
    };
    acquire(500);
    // The full resync is over, so the primary certainly sends each further change at once.
    replica.see_in_sync_with(&primary);
    match fault {
        Fault::Swallowed => link.swallow(),
        Fault::StandsStill => replica.freeze(),
    }
    acquire(1_000);
    primary.kill();
    if fault == Fault::StandsStill {
        replica.thaw();
        let mut client = replica.client();
        eventually("the replica sees that its primary is gone", || {
            client.server_info("replication", "master_link_status") == "down"
        });
    }
    let mut client = replica.promote();
    let known: Vec<bool> =
        (0..tokens.len()).map(|number| client.info(&format!("lock-{number}")).is_some()).collect();
    let mut seen: BTreeSet<i64> = tokens.iter().copied().collect();
    assert_eq!(seen.len(), tokens.len());
    for (number, (token, known)) in tokens.iter().zip(&known).enumerate() {
        let second = client.call(format!("LOCK.ACQUIRE lock-{number} B PX 600000"));
        if *known {
            assert_eq!(second, Reply::NullArray);
            assert_eq!(client.holder(&format!("lock-{number}")).tenure(), ("A", 1, *token));
        } else {
            let second = second.grant().token;
            assert!(second > *token, "the token is not larger");
            assert!(seen.insert(second), "a token is given twice");
        }
    }
    outcomes.acknowledged += tokens.len();
    outcomes.lost += known.iter().filter(|known| !**known).count();
}

#[test]
fn grants_that_a_promoted_replica_has_missed_are_lost_and_no_token_is_given_twice() {
    let mut outcomes = Outcomes::default();
    for _ in 0..rounds(3, 30) {
        let before = outcomes.lost;
        round(Fault::Swallowed, &mut outcomes);
        assert!(outcomes.lost > before, "the fault has lost no grant");
    }
    println!("{outcomes:?}");
}

#[test]
fn grants_that_wait_in_the_socket_of_a_replica_are_not_lost() {
    let mut outcomes = Outcomes::default();
    for _ in 0..rounds(3, 30) {
        round(Fault::StandsStill, &mut outcomes);
    }
    println!("{outcomes:?}");
    assert_eq!(outcomes.lost, 0);
}

#[test]
fn holders_restore_missed_tenures_on_a_promoted_replica_in_quarantine() {
    let setup = || Setup::new().module("quarantine 600000").config("min-replicas-to-write 1");
    let see_replicas = |client: &mut Client| {
        eventually("the primary sees its replica", || {
            client.call("LOCK.RELEASE none A").error_word() == "NOTHELD"
        });
    };
    let mut primary = setup().start();
    let link = Link::to(&primary);
    let replica = setup().start();
    replica.follow_through(&link, &primary);
    let mut a = primary.client();
    see_replicas(&mut a);
    assert_eq!(a.call("CONFIG SET lock.quarantine 0"), Reply::ok());
    let renewed = a.acquire("renewed A PX 3000").token;
    let released = a.acquire("released A PX 600000").token;
    let passed_on = a.acquire("passed-on A PX 600000").token;
    replica.see_in_sync_with(&primary);
    link.swallow();
    let missed = a.acquire("missed A PX 600000").token;
    assert_eq!(a.acquire("missed A PX 600000").holds, 2);
    assert_eq!(a.call("LOCK.RENEW renewed A PX 600000"), Reply::Int(renewed));
    assert_eq!(a.call("LOCK.RELEASE released A"), Reply::Int(0));
    assert_eq!(a.call("LOCK.RELEASE passed-on A"), Reply::Int(0));
    let later = a.acquire("passed-on B PX 600000").token;
    primary.kill();
    let mut client = replica.promote();
    let refused = client.call(format!("LOCK.RENEW missed A TOKEN {missed}"));
    assert_eq!(refused.error_word(), "NOREPLICAS", "the promoted server has no replica yet");
    let _second = Server::start_replica_of(&replica);
    see_replicas(&mut client);
    let mut waiter = replica.client();
    waiter.ask("renewed C BLOCK 0");
    eventually("the replicated lease is over", || client.info("renewed").is_none());
    for (key, claim, token) in
        [("missed", "A HOLDS 2", missed), ("renewed", "A", renewed), ("passed-on", "B", later)]
    {
        assert_eq!(
            client.call(format!("LOCK.RENEW {key} {claim} TOKEN {token} PX 600000")),
            Reply::Int(token),
            "{key}"
        );
    }
    assert_eq!(client.holder("missed").tenure(), ("A", 2, missed));
    let late = client.call(format!("LOCK.RENEW passed-on A TOKEN {passed_on}"));
    assert_eq!(late.error_word(), "NOTHELD");
    assert_eq!(client.owner("released").as_deref(), Some("A"), "the replica has not missed the release");
    assert_eq!(client.holder("released").token, released);
    for key in ["missed", "renewed", "passed-on", "released", "never-held"] {
        assert_eq!(client.call(format!("LOCK.ACQUIRE {key} D")), Reply::NullArray, "{key}");
    }
}
