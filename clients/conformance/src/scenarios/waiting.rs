//! Waiters keep their place in the queue, and calls keep their time limits.

use super::named::{Named, named};
use super::turns::Turns;
use crate::stage::Stage;
use lockward_tests::{Client, Fate, Reply, Server, Setup, eventually};
use std::time::{Duration, Instant};

pub(super) const ALL: &[Named] = named![
    a_waiter_keeps_its_place_over_a_cut_connection,
    waiters_are_granted_in_their_order,
    a_request_whose_grant_is_swallowed_is_sent_again_and_counted_once,
    a_request_whose_grant_is_torn_is_sent_again_and_counted_once,
    a_wait_whose_reply_is_lost_is_sent_again,
    a_client_waits_for_late_replies,
    a_wait_limit_is_kept_while_the_lock_is_held,
    a_wait_limit_is_kept_although_the_server_hangs_during_the_wait,
    a_wait_limit_is_kept_although_the_server_hangs_before_the_wait,
    a_try_ends_within_the_patience,
    a_try_ends_within_the_patience_if_nothing_listens,
    a_release_ends_within_the_patience,
    a_renewal_by_the_program_ends_within_the_patience,
    a_server_that_comes_back_within_the_patience_is_used,
    a_wait_goes_on_although_the_server_is_away_for_longer_than_the_patience,
    calls_beyond_the_waiting_connections_poll,
    calls_beyond_the_waiting_connections_take_turns,
    after_a_grant_that_ends_while_the_program_is_paused_the_wait_goes_on,
    a_release_ends_with_the_lease,
    a_client_that_waits_keeps_its_locks_although_the_server_is_full,
    a_wait_begins_when_a_full_server_has_room,
];

fn a_waiter_keeps_its_place_over_a_cut_connection(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let mut worker = stage.worker(gate.port());
    let id = worker.send("acquire a k lease=10000");
    holder.see_waiters("k", 1);
    let mut behind = server.waiter("k B BLOCK 0");
    let [first, second] = &*holder.queue("k") else { panic!("two wait") };
    assert_eq!(second, "B");
    gate.cut();
    // After the cut, the queue shows only B until the waiter has connected again.
    eventually("the waiter is back at its place before B", || {
        gate.count("LOCK.ACQUIRE") == 3 && holder.queue("k") == [first.clone(), "B".to_owned()]
    });
    assert_eq!(holder.call("LOCK.RELEASE k H").int(), 0);
    worker.held_reply(id);
    assert!(behind.has_no_reply());
    worker.expect("release a", "ok");
    behind.reply().grant();
}

fn waiters_are_granted_in_their_order(stage: &Stage) {
    let server = Server::start();
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let mut workers = [stage.worker(server.port()), stage.worker(server.port())];
    let ids: Vec<u64> = (0..6_usize)
        .map(|number| {
            let id = workers[number % 2].send(&format!("acquire n{number} k lease=10000 wait=20000"));
            holder.see_waiters("k", i64::try_from(number).unwrap_or(0) + 1);
            id
        })
        .collect();
    assert_eq!(holder.call("LOCK.RELEASE k H").int(), 0);
    for (number, id) in ids.into_iter().enumerate() {
        workers[number % 2].held_reply(id);
        workers[number % 2].expect(&format!("release n{number}"), "ok");
    }
}

/// Applies `fate` to the first request with these words, and checks that the lock is still acquired.
#[track_caller]
fn acquire_with(stage: &Stage, words: &'static [&'static str], fate: Fate) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut client = server.client();
    let waits = words.contains(&"BLOCK");
    if waits {
        client.acquire("k H PX 60000");
    }
    let mut worker = stage.worker_with(gate.port(), &["response-limit=300"]);
    gate.once(words, fate);
    let id = worker.send("acquire a k wait=10000 lease=10000");
    if waits {
        client.see_waiters("k", 1);
        assert_eq!(client.call("LOCK.RELEASE k H").int(), 0);
    }
    let token = worker.held_reply(id);
    let holder = client.holder("k");
    assert_eq!((holder.token, holder.holds), (token, 1));
    assert!(holder.lease_left > 8_000, "the holder does not have the full lease: {holder:?}");
    assert_eq!(gate.proxy.replies_lost(), 1);
    worker.expect("release a", "ok");
    assert_eq!(client.info("k"), None);
}

fn a_request_whose_grant_is_swallowed_is_sent_again_and_counted_once(stage: &Stage) {
    acquire_with(stage, &["LOCK.ACQUIRE"], Fate::Silence(Duration::from_secs(60)));
}

fn a_request_whose_grant_is_torn_is_sent_again_and_counted_once(stage: &Stage) {
    acquire_with(stage, &["LOCK.ACQUIRE"], Fate::ReplyTorn);
}

fn a_wait_whose_reply_is_lost_is_sent_again(stage: &Stage) {
    acquire_with(stage, &["LOCK.ACQUIRE", "BLOCK"], Fate::ReplyLost);
}

fn a_client_waits_for_late_replies(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    gate.proxy.delay(Duration::from_millis(150));
    let mut worker = stage.worker(gate.port());
    worker.acquire("a k wait=0 lease=10000");
    assert_eq!(worker.call("guarded a SET x 1"), "reply OK");
    worker.expect("release a", "ok");
    let words: Vec<String> = gate.seen().into_iter().map(|seen| seen.words[0].clone()).collect();
    assert_eq!(words, ["LOCK.ACQUIRE", "LOCK.GUARD", "LOCK.RELEASE"]);
}

/// Checks that a call ends with `reply` at its wait limit.
#[track_caller]
fn ends_at_its_limit(stage: &Stage, hangs_before: bool, hangs_during: bool, reply: &str) {
    const LIMIT: Duration = Duration::from_millis(1_000);
    let server = Server::start();
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let mut worker = stage.worker(server.port());
    if hangs_before {
        server.freeze();
    }
    let begun = Instant::now();
    let id = worker.send("acquire a k wait=1000 lease=10000");
    if hangs_during {
        holder.see_waiters("k", 1);
        server.freeze();
    }
    let came = worker.reply(id);
    server.thaw();
    assert!(came.text.starts_with(reply), "{:?}, expected {reply:?}", came.text);
    stage.on_time(
        "wait limit",
        begun + LIMIT,
        if reply == "busy" && !hangs_during { 50 } else { 200 },
        came.at,
    );
    assert!(came.at - begun >= LIMIT - Duration::from_millis(50), "the call has ended before its limit");
    assert_eq!(holder.call("LOCK.RELEASE k H").int(), 0);
    eventually("the lock is free", || holder.info("k").is_none());
}

fn a_wait_limit_is_kept_while_the_lock_is_held(stage: &Stage) {
    ends_at_its_limit(stage, false, false, "busy");
}

fn a_wait_limit_is_kept_although_the_server_hangs_during_the_wait(stage: &Stage) {
    ends_at_its_limit(stage, false, true, "busy");
}

fn a_wait_limit_is_kept_although_the_server_hangs_before_the_wait(stage: &Stage) {
    ends_at_its_limit(stage, true, false, "error unreachable");
}

/// Checks that a command of a worker ends with `error unreachable` within the client's patience.
#[track_caller]
fn ends_within_the_patience(stage: &Stage, command: &str, hang: impl FnOnce(&mut Server)) {
    const PATIENCE: Duration = Duration::from_millis(800);
    let mut server = Server::start();
    let mut worker = stage.worker_with(server.port(), &["patience=800", "response-limit=300"]);
    worker.acquire("a k wait=0 lease=60000");
    hang(&mut server);
    let begun = Instant::now();
    let id = worker.send(command);
    let came = worker.reply(id);
    assert!(came.text.starts_with("error unreachable"), "{:?}", came.text);
    stage.on_time("patience", begun + PATIENCE, 0, came.at);
    assert!(came.at - begun >= PATIENCE / 2, "the call has ended long before its patience was over");
}

fn a_try_ends_within_the_patience(stage: &Stage) {
    ends_within_the_patience(stage, "acquire b l wait=0 lease=10000", |server| server.freeze());
}

fn a_try_ends_within_the_patience_if_nothing_listens(stage: &Stage) {
    ends_within_the_patience(stage, "acquire b l wait=0 lease=10000", Server::kill);
}

fn a_release_ends_within_the_patience(stage: &Stage) {
    ends_within_the_patience(stage, "release a", |server| server.freeze());
}

fn a_renewal_by_the_program_ends_within_the_patience(stage: &Stage) {
    ends_within_the_patience(stage, "renew a", |server| server.freeze());
}

fn a_server_that_comes_back_within_the_patience_is_used(stage: &Stage) {
    let mut server = Server::start();
    let mut worker = stage.worker(server.port());
    server.kill();
    let id = worker.send("acquire a k wait=0 lease=10000");
    assert!(worker.reply_within(id, Duration::from_millis(100)).is_none());
    server.start_again();
    worker.held_reply(id);
}

fn a_wait_goes_on_although_the_server_is_away_for_longer_than_the_patience(stage: &Stage) {
    let mut server = Setup::new().start();
    let mut worker = stage.worker_with(server.port(), &["patience=300"]);
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let id = worker.send("acquire a k lease=10000");
    holder.see_waiters("k", 1);
    server.kill();
    assert!(worker.reply_within(id, Duration::from_millis(700)).is_none());
    server.start_again();
    worker.held_reply(id);
}

fn calls_beyond_the_waiting_connections_poll(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let mut worker = stage.worker_with(server.port(), &["waiting-connections=2"]);
    let ids: Vec<u64> = (0..5)
        .map(|number| {
            client.acquire(&format!("k{number} H PX 60000"));
            worker.send(&format!("acquire n{number} k{number} lease=10000"))
        })
        .collect();
    client.see_blocked(2);
    for (number, id) in ids.into_iter().enumerate().rev() {
        let blocked: i64 = client.server_info("clients", "blocked_clients").parse().expect("a number");
        assert!(blocked <= 2, "{blocked} connections wait");
        assert_eq!(client.call(format!("LOCK.RELEASE k{number} H")).int(), 0);
        worker.held_reply(id);
    }
}

fn calls_beyond_the_waiting_connections_take_turns(stage: &Stage) {
    const ACTORS: usize = 12;
    const ROUNDS: usize = 600;
    let server = Server::start();
    let mut workers = [stage.worker_with(server.port(), &["waiting-connections=2"])];
    let turns = Turns { keys: &["k"], options: "lease=10000", limit: 1, actors: ACTORS, rounds: ROUNDS };
    let grants = turns.play(stage, &mut workers, |_| {});
    assert!(
        grants.iter().all(|grants| *grants >= ROUNDS / ACTORS * 3 / 4),
        "grants of each call: {grants:?}"
    );
}

fn after_a_grant_that_ends_while_the_program_is_paused_the_wait_goes_on(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("k H PX 60000");
    let mut worker = stage.worker(server.port());
    let id = worker.send("acquire a k wait=15000 lease=800");
    client.see_waiters("k", 1);
    worker.freeze();
    assert_eq!(client.call("LOCK.RELEASE k H").int(), 0);
    eventually("the grant is over", || client.info("k").is_none());
    let between = client.acquire("k B PX 300").token;
    worker.thaw();
    let token = worker.held_reply(id);
    assert!(token > between, "the worker has the token of a grant that is over");
    assert_eq!(client.holder("k").token, token);
}

fn a_release_ends_with_the_lease(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker_with(gate.port(), &["response-limit=300"]);
    worker.acquire("a k wait=0 lease=1200");
    let asked = gate.last_leases("k").0;
    gate.hang();
    let id = worker.send("release a");
    let came = worker.reply(id).at;
    stage.on_time("end of a release without a server", asked + Duration::from_millis(1_200), 50, came);
}

/// Connects clients until the server accepts no more.
fn fill(server: &Server) -> Vec<Client> {
    let connect = || Client::connect(server.port()).ok();
    let is_served = |client: &mut Client| matches!(client.try_call("PING"), Ok(Reply::Simple(_)));
    std::iter::from_fn(connect).map_while(|mut client| is_served(&mut client).then_some(client)).collect()
}

fn a_client_that_waits_keeps_its_locks_although_the_server_is_full(stage: &Stage) {
    let server = Setup::new().config("maxclients 100").start();
    let mut client = server.client();
    let mut worker = stage.worker(server.port());
    let token = worker.acquire("a k wait=0 lease=1500");
    client.acquire("l H PX 60000");
    let id = worker.send("acquire b l lease=1500");
    client.see_waiters("l", 1);
    let filling = fill(&server);
    let begun = Instant::now();
    eventually("two leases have passed", || {
        assert_eq!(client.holder("k").token, token);
        begun.elapsed() > Duration::from_secs(3)
    });
    assert!(!worker.has_event("lost"), "the client has lost a lock that the server has");
    assert_eq!(client.call("LOCK.RELEASE l H").int(), 0);
    worker.held_reply(id);
    worker.expect("release a", "ok");
    drop(filling);
}

fn a_wait_begins_when_a_full_server_has_room(stage: &Stage) {
    let server = Setup::new().config("maxclients 100").start();
    let filling = fill(&server);
    let mut worker = stage.worker(server.port());
    let id = worker.send("acquire a k lease=10000");
    assert!(worker.reply_within(id, Duration::from_millis(500)).is_none());
    drop(filling);
    worker.held_reply(id);
}
