//! Readers, semaphores, several keys, leadership, guarded commands, handles and replicas.

use super::named::{Named, named};
use crate::stage::Stage;
use lockward_tests::{Client, Fate, Reply, Server, eventually};
use std::time::Duration;

pub(super) const ALL: &[Named] = named![
    an_owner_is_a_uuid_and_a_number,
    readers_hold_a_lock_together_and_a_writer_waits_for_all,
    a_downgrade_lets_readers_in,
    several_keys_are_lost_together,
    several_keys_are_given_back_at_the_wait_limit,
    several_keys_are_kept_during_the_wait_for_the_last_key,
    several_keys_are_acquired_anew_when_one_is_lost_during_the_wait,
    several_keys_end_as_busy_at_the_wait_limit_although_the_server_hangs,
    a_leader_is_deposed_and_leads_again_with_a_larger_term,
    a_guarded_command_runs_only_while_the_lock_is_held,
    a_handle_is_resumed_by_another_process,
    a_grant_without_replicas_is_unreplicated_and_given_back,
    several_keys_without_replicas_are_unreplicated_in_time,
    a_grant_with_a_replica_is_held,
    a_lease_above_the_maximum_is_shortened,
    pairs_are_counted,
];

fn an_owner_is_a_uuid_and_a_number(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let mut workers = [stage.worker(server.port()), stage.worker(server.port())];
    let owners = ["k", "l"].map(|key| {
        let worker = &mut workers[usize::from(key == "l")];
        worker.acquire(&format!("a {key} wait=0 lease=10000"));
        client.owner(key).expect("a holder")
    });
    for owner in &owners {
        let (process, number) = owner.split_once(':').expect("a colon in the owner");
        let parts: Vec<usize> = process.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{owner}");
        assert!(number.parse::<u64>().is_ok(), "{owner}");
    }
    assert_ne!(owners[0].split(':').next(), owners[1].split(':').next(), "two processes have one UUID");
}

fn readers_hold_a_lock_together_and_a_writer_waits_for_all(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let mut worker = stage.worker(server.port());
    worker.acquire("a k wait=0 lease=10000 shared");
    worker.acquire("b k wait=0 lease=10000 shared");
    assert_eq!(worker.call("acquire c k wait=0 lease=10000"), "busy");
    let writer = worker.send("acquire c k lease=10000");
    client.see_waiters("k", 1);
    worker.expect("release a", "ok");
    assert!(worker.reply_within(writer, Duration::from_millis(50)).is_none());
    worker.expect("release b", "ok");
    worker.held_reply(writer);
    assert_eq!(worker.call("acquire d k wait=0 lease=10000 shared"), "busy");
    worker.expect("release c", "ok");
    assert_eq!(client.info("k"), None);
}

fn a_downgrade_lets_readers_in(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let mut worker = stage.worker(server.port());
    let token = worker.acquire("a k wait=0 lease=10000");
    let reader = worker.send("acquire b k lease=10000 shared");
    client.see_waiters("k", 1);
    worker.expect("downgrade a shared", "ok");
    worker.held_reply(reader);
    let info = client.info("k").expect("holders");
    assert_eq!((info.holding, info.holders[0].token), (2, token));
    worker.expect("release a", "ok");
    worker.expect("release b", "ok");
}

fn several_keys_are_lost_together(stage: &Stage) {
    let server = Server::start();
    let mut worker = stage.worker(server.port());
    worker.expect("acquire a k,l wait=0 lease=900", "held ");
    assert_eq!(server.client().call("DEL l").int(), 1);
    worker.event("lost a");
    assert_eq!(worker.call("status a"), "lost");
    let mut client = server.client();
    eventually("the other key is free", || client.info("k").is_none());
}

fn several_keys_are_given_back_at_the_wait_limit(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("l H PX 60000");
    let mut worker = stage.worker(server.port());
    assert_eq!(worker.call("acquire a k,l,m wait=400 lease=30000"), "busy");
    eventually("all keys are released", || client.info("k").is_none() && client.info("m").is_none());
    assert_eq!(client.holder("l").owner, "H");
    client.see_places_kept(0);
}

fn several_keys_are_kept_during_the_wait_for_the_last_key(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("l H PX 60000");
    let mut worker = stage.worker(server.port());
    let id = worker.send("acquire a k,l wait=15000 lease=900");
    client.see_waiters("l", 1);
    let token = client.holder("k").token;
    eventually("two leases have passed", || {
        let holder = client.holder("k");
        assert_eq!(holder.token, token, "the first key is given up during the wait");
        holder.held_for > 1_800
    });
    assert_eq!(client.call("LOCK.RELEASE l H").int(), 0);
    worker.expect_reply(id, "held ");
    assert_eq!(client.holder("k").token, token);
    worker.expect("release a", "ok");
    assert_eq!((client.info("k"), client.info("l")), (None, None));
}

fn several_keys_are_acquired_anew_when_one_is_lost_during_the_wait(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let mut worker = stage.worker(server.port());
    for (name, [first, last], owner) in [("a", ["k", "l"], ""), ("b", ["m", "n"], " owner=me")] {
        client.acquire(&format!("{last} H PX 60000"));
        let id = worker.send(&format!("acquire {name} {first},{last} wait=60000 lease=900{owner}"));
        client.see_waiters(last, 1);
        let lost = client.holder(first).token;
        assert_eq!(client.call(format!("DEL {first}")).int(), 1);
        let token = |client: &mut Client| client.info(first).map(|lock| lock.holders[0].token);
        eventually("the first key is acquired again", || {
            token(&mut client).is_some_and(|token| token > lost)
        });
        client.see_waiters(last, 1);
        assert_eq!(client.call(format!("LOCK.RELEASE {last} H")).int(), 0);
        let tokens = worker.expect_reply(id, "held ");
        assert_eq!(tokens.split(',').next().and_then(|token| token.parse().ok()), token(&mut client));
        worker.expect(&format!("release {name}"), "ok");
        assert_eq!((client.info(first), client.info(last)), (None, None));
    }
    assert!(!worker.has_event("lost"), "the client reports the loss of a lock that it has not acquired yet");
}

fn several_keys_end_as_busy_at_the_wait_limit_although_the_server_hangs(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("k H PX 60000");
    let gate = stage.gate(&server);
    let mut requests_for_last = 0;
    gate.plan("silence from the second request for the last key on", move |request| {
        requests_for_last += u32::from(request.starts_with(&["LOCK.ACQUIRE".to_owned(), "l".to_owned()]));
        if requests_for_last > 1 { Fate::Held } else { Fate::Carried }
    });
    let mut worker = stage.worker(gate.port());
    let id = worker.send("acquire a k,l wait=3000 lease=30000");
    client.see_waiters("k", 1);
    assert_eq!(client.call("LOCK.RELEASE k H").int(), 0);
    worker.expect_reply(id, "busy");
}

fn a_leader_is_deposed_and_leads_again_with_a_larger_term(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let mut workers = [stage.worker(server.port()), stage.worker(server.port())];
    let [one, other] = &mut workers;
    let term =
        |line: String| line.rsplit(' ').next().and_then(|term| term.parse::<i64>().ok()).expect("a term");
    let led = one.send("lead a k lease=1200");
    let first = term(one.event("leading a").text);
    other.send("lead b k lease=1200");
    client.see_waiters("k", 1);
    assert_eq!(client.call("DEL k").int(), 1);
    let second = term(other.event("leading b").text);
    one.event("deposed a");
    assert!(second > first);
    client.see_waiters("k", 1);
    other.expect("resign b", "ok");
    let third = term(one.event("leading a").text);
    assert!(third > second);
    assert_eq!(client.holder("k").token, third);
    one.expect("resign a", "ok");
    assert_eq!(one.reply(led).text, "ok");
    eventually("nobody leads", || client.info("k").is_none());
}

fn a_guarded_command_runs_only_while_the_lock_is_held(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let mut worker = stage.worker(server.port());
    worker.acquire("a k wait=0 lease=30000");
    assert_eq!(worker.call("guarded a SET x 1"), "reply OK");
    assert_eq!(worker.call("guarded a GET x"), "reply 1");
    assert_eq!(client.call("DEL k").int(), 1);
    client.acquire("k B PX 60000");
    worker.expect("guarded a SET x 2", "error lost");
    assert_eq!(client.call("GET x"), Reply::bulk("1"));
    worker.event("lost a");
}

fn a_handle_is_resumed_by_another_process(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let (mut one, mut other) = (stage.worker(server.port()), stage.worker(server.port()));
    let token = one.acquire("a k wait=0 lease=3000");
    let handle = one.expect("handle a", "handle ");
    one.kill();
    assert_eq!(other.held(&format!("resume b {handle}")), token);
    assert_eq!(other.call("guarded b SET x 1"), "reply OK");
    other.expect("release b", "ok");
    assert_eq!(client.info("k"), None);
}

fn a_grant_without_replicas_is_unreplicated_and_given_back(stage: &Stage) {
    let server = Server::start();
    let mut worker = stage.worker(server.port());
    worker.expect("acquire a k wait=0 lease=30000 replicas=1:200", "error unreplicated");
    let mut client = server.client();
    eventually("the lock is released", || client.info("k").is_none());
}

fn several_keys_without_replicas_are_unreplicated_in_time(stage: &Stage) {
    let server = Server::start();
    let mut worker = stage.worker(server.port());
    // Three requests WAIT, one after the other, would take longer than the wait limit.
    worker.expect("acquire a k,l,m wait=1500 lease=30000 replicas=1:1000", "error unreplicated");
}

fn a_grant_with_a_replica_is_held(stage: &Stage) {
    let server = Server::start();
    let replica = Server::start_replica_of(&server);
    let mut worker = stage.worker(server.port());
    let mut client = server.client();
    client.acquire("l H PX 60000");
    let token = worker.acquire("a k wait=0 lease=30000 replicas=1:5000");
    assert_eq!(replica.client().holder("k").token, token);
    let id = worker.send("acquire b l lease=30000 replicas=1:5000");
    client.see_waiters("l", 1);
    assert_eq!(client.call("LOCK.RELEASE l H").int(), 0);
    let token = worker.held_reply(id);
    assert_eq!(replica.client().holder("l").token, token);
}

fn a_lease_above_the_maximum_is_shortened(stage: &Stage) {
    let server = Server::start_with("max-lease 900 default-lease 900");
    let mut client = server.client();
    let mut worker = stage.worker(server.port());
    let token = worker.acquire("a k wait=0 lease=30000");
    let mut greatest = 0;
    eventually("the lock is renewed", || {
        let holder = client.holder("k");
        assert_eq!(holder.token, token);
        greatest = greatest.max(holder.lease_left);
        holder.held_for > 1_000
    });
    assert!(greatest <= 900);
    assert_eq!(worker.call("status a"), "held");
}

fn pairs_are_counted(stage: &Stage) {
    let server = Server::start();
    let mut worker = stage.worker(server.port());
    let pairs: u64 = worker.expect("pairs k 1", "pairs ").parse().expect("a number");
    assert!(pairs > 10);
    assert_eq!(server.client().info("k"), None);
}
