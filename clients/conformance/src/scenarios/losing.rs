//! The client reports each loss in time, and makes no false report.

use super::named::{Named, named};
use crate::stage::{Gate, SLACK, Stage, renewals};
use crate::worker::Worker;
use lockward_tests::{Server, Setup, eventually};
use std::time::{Duration, Instant};

pub(super) const ALL: &[Named] = named![
    a_lock_on_a_stopped_server_is_lost_when_its_lease_is_over,
    a_lock_behind_a_silent_network_is_lost_when_its_lease_is_over,
    a_lock_on_a_killed_server_is_lost_when_its_lease_is_over,
    a_slow_callback_does_not_delay_the_loss_of_another_lock,
    a_deleted_lock_is_lost_at_the_next_renewal,
    a_program_that_was_paused_past_its_lease_has_lost_its_lock,
    no_lock_is_lost_when_the_server_stops_for_less_than_the_lease,
    no_lock_is_lost_when_a_connection_is_cut,
    a_lock_of_a_restarted_server_is_restored_in_quarantine,
    a_lock_that_a_restarted_server_has_forgotten_is_lost,
    a_thousand_locks_are_renewed,
    a_hold_limit_is_kept_beside_renewals,
    without_renewal_a_lock_lasts_for_one_lease,
    a_lease_counts_from_the_request,
];

const LEASE: Duration = Duration::from_millis(1_200);

/// Waits for the loss of a lock. `asked` holds the times of the last two requests that set the lease, the newest first.
/// The client may not have received the reply to the newest request.
#[track_caller]
fn see_loss(stage: &Stage, worker: &mut Worker, name: &str, asked: (Instant, Instant), lease: Duration) {
    let came = worker.event(&format!("lost {name}")).at;
    stage.on_time("lost signal", asked.0 + lease, 50, came);
    let least = asked.1 + lease - lease / 1_000 - Duration::from_millis(1);
    assert!(came + SLACK >= least, "{name} is lost {:?} before its lease is over", least - came);
}

/// A worker that holds a lock and has renewed it once.
#[track_caller]
fn renewing(stage: &Stage, server: &Server, gate: &Gate) -> Worker {
    let mut worker = stage.worker(gate.port());
    worker.acquire("a k wait=0 lease=1200");
    let mut client = server.client();
    eventually("the server has replied to a renewal", || renewals(&mut client) > 0);
    worker
}

fn a_lock_on_a_stopped_server_is_lost_when_its_lease_is_over(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = renewing(stage, &server, &gate);
    let asked = gate.last_leases("k");
    server.freeze();
    see_loss(stage, &mut worker, "a", asked, LEASE);
    assert_eq!(worker.call("status a"), "lost");
    worker.expect("release a", "error lost");
    assert!(!worker.has_event("lost a"), "the client reports the loss twice");
}

fn a_lock_behind_a_silent_network_is_lost_when_its_lease_is_over(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = renewing(stage, &server, &gate);
    gate.hang();
    see_loss(stage, &mut worker, "a", gate.last_leases("k"), LEASE);
    assert_eq!(worker.call("status a"), "lost");
}

fn a_lock_on_a_killed_server_is_lost_when_its_lease_is_over(stage: &Stage) {
    let mut server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = renewing(stage, &server, &gate);
    let asked = gate.last_leases("k");
    server.kill();
    see_loss(stage, &mut worker, "a", asked, LEASE);
}

fn a_slow_callback_does_not_delay_the_loss_of_another_lock(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker(gate.port());
    worker.acquire("a k wait=0 lease=1000 slow-lost=4000");
    worker.acquire("b l wait=0 lease=1200 slow-lost=4000");
    worker.acquire("c m wait=0 lease=1200");
    worker.acquire("d n wait=0 lease=2400");
    gate.hang();
    let ends = ["k", "l", "m", "n"].map(|key| gate.last_leases(key));
    see_loss(stage, &mut worker, "a", ends[0], Duration::from_millis(1_000));
    see_loss(stage, &mut worker, "b", ends[1], LEASE);
    see_loss(stage, &mut worker, "c", ends[2], LEASE);
    see_loss(stage, &mut worker, "d", ends[3], LEASE * 2);
}

fn a_deleted_lock_is_lost_at_the_next_renewal(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = renewing(stage, &server, &gate);
    let deleted = Instant::now();
    assert_eq!(server.client().call("DEL k").int(), 1);
    let came = worker.event("lost a").at;
    stage.on_time("loss of a deleted lock, after a third of the lease", deleted + LEASE / 3, 50, came);
    worker.expect("release a", "error lost");
}

fn a_program_that_was_paused_past_its_lease_has_lost_its_lock(stage: &Stage) {
    let server = Server::start();
    let mut client = server.client();
    let mut worker = stage.worker(server.port());
    worker.acquire("a k wait=0 lease=1000");
    worker.freeze();
    eventually("the lease is over", || client.info("k").is_none());
    let token = client.acquire("k B PX 60000").token;
    let id = worker.send("status a");
    let gone_on = Instant::now();
    worker.thaw();
    assert_eq!(worker.reply(id).text, "lost");
    let came = worker.event("lost a").at;
    stage.on_time("lost signal after a pause", gone_on, 50, came);
    worker.expect("release a", "error lost");
    assert_eq!(client.holder("k").tenure(), ("B", 1, token));
}

/// Checks that the worker keeps its lock for two leases.
#[track_caller]
fn see_kept(stage: &Stage, worker: &mut Worker, server: &Server, name: &str, key: &str, token: i64) {
    let mut client = server.client();
    let begun = Instant::now();
    eventually("two leases have passed", || {
        if begun.elapsed() > LEASE * 2 {
            return true;
        }
        let holder = client.info(key).and_then(|info| info.holders.into_iter().next());
        assert_eq!(holder.map(|holder| holder.token), Some(token), "the server has another tenure");
        false
    });
    assert!(!worker.has_event(&format!("lost {name}")), "the worker has lost a lock that it has");
    assert_eq!(worker.call(&format!("status {name}")), "held");
    stage.note("the lock is kept");
}

fn no_lock_is_lost_when_the_server_stops_for_less_than_the_lease(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker(gate.port());
    let token = worker.acquire("a k wait=0 lease=1800");
    let renewals = gate.count("LOCK.RENEW k");
    server.freeze();
    // The client sends the renewal at 600 ms. The server continues 500 ms later, before the lease of 1,800 ms is over.
    eventually("a renewal", || gate.count("LOCK.RENEW k") > renewals);
    let end = Instant::now() + Duration::from_millis(500);
    eventually("500 ms have passed", || Instant::now() >= end);
    server.thaw();
    see_kept(stage, &mut worker, &server, "a", "k", token);
    worker.expect("release a", "ok");
}

fn no_lock_is_lost_when_a_connection_is_cut(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker(gate.port());
    let token = worker.acquire("a k wait=0 lease=1200");
    let begun = Instant::now();
    let mut cuts = 0;
    eventually("the connection is cut ten times", || {
        if begun.elapsed() > cuts * Duration::from_millis(100) {
            cuts += 1;
            gate.cut();
        }
        cuts == 10
    });
    see_kept(stage, &mut worker, &server, "a", "k", token);
    worker.expect("release a", "ok");
}

fn a_lock_of_a_restarted_server_is_restored_in_quarantine(stage: &Stage) {
    let mut server = Setup::new().module("quarantine 3000 default-lease 3000").start();
    let mut client = server.client();
    eventually("the quarantine of the start is over", || {
        let granted = client.call("LOCK.ACQUIRE probe P PX 1000");
        !granted.is_null()
    });
    let mut worker = stage.worker(server.port());
    let token = worker.acquire("a k wait=5000 lease=3000");
    let reader = worker.acquire("b l wait=5000 lease=3000 shared");
    server.kill_and_start_again();
    let mut client = server.client();
    eventually("both locks are restored", || {
        let token_of = |info: Option<lockward_tests::Info>| info.map(|info| info.holders[0].token);
        token_of(client.info("k")) == Some(token) && token_of(client.info("l")) == Some(reader)
    });
    assert_eq!(client.info("l").map(|info| info.slots), Some(0));
    assert_eq!(worker.call("status a"), "held");
    worker.expect("release a", "ok");
    worker.expect("release b", "ok");
}

fn a_lock_that_a_restarted_server_has_forgotten_is_lost(stage: &Stage) {
    let mut server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker(gate.port());
    worker.acquire("a k wait=0 lease=30000");
    server.kill_and_start_again();
    gate.cut();
    // The client renews all locks when a connection has broken, so it notices the loss long before a third of the lease
    // has passed.
    worker.event_within("lost a", Duration::from_secs(5));
}

fn a_thousand_locks_are_renewed(stage: &Stage) {
    const COUNT: u64 = 1_000;
    let server = Server::start();
    let mut client = server.client();
    let mut worker = stage.worker(server.port());
    let ids: Vec<u64> = (0..COUNT)
        .map(|number| worker.send(&format!("acquire n{number} k{number} wait=0 lease=4000")))
        .collect();
    for id in ids {
        worker.held_reply(id);
    }
    eventually("each lock is renewed twice", || renewals(&mut client) >= 2 * COUNT + COUNT / 4);
    assert!(!worker.has_event("lost"), "a lock is lost");
    assert_eq!(client.call("DBSIZE").int(), 1_000);
    assert_eq!(worker.call("status n999"), "held");
}

fn a_hold_limit_is_kept_beside_renewals(stage: &Stage) {
    let server = Server::start();
    let mut worker = stage.worker(server.port());
    let asked = Instant::now();
    worker.acquire("a k wait=0 lease=600 hold-limit=1500");
    see_loss(stage, &mut worker, "a", (asked, asked), Duration::from_millis(1_500));
    let lost = Instant::now();
    let mut client = server.client();
    eventually("the lock is free", || client.info("k").is_none());
    assert!(
        lost.elapsed() < Duration::from_millis(600) + SLACK,
        "the lock is held for longer than its limit"
    );
}

fn without_renewal_a_lock_lasts_for_one_lease(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker(gate.port());
    worker.acquire("a k wait=0 lease=1200 no-renewal");
    see_loss(stage, &mut worker, "a", gate.last_leases("k"), LEASE);
    assert_eq!(gate.count("LOCK.RENEW"), 0);
}

fn a_lease_counts_from_the_request(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker(gate.port());
    // This request opens the connection before the proxy delays replies, so the delay affects only the next
    // acquisition.
    worker.acquire("b l wait=0 lease=30000");
    gate.proxy.delay(Duration::from_millis(600));
    worker.acquire("a k wait=0 lease=1200 no-renewal");
    see_loss(stage, &mut worker, "a", gate.last_leases("k"), LEASE);
}
