//! A client that leaves does not block other clients.

use super::named::{Named, named};
use crate::stage::Stage;
use lockward_tests::{Fate, Server, eventually};
use std::time::{Duration, Instant};

pub(super) const ALL: &[Named] = named![
    a_killed_waiter_is_skipped,
    the_lock_of_a_killed_holder_is_free_after_its_lease,
    a_cancelled_wait_leaves_nothing_behind,
    a_late_request_of_a_cancelled_call_keeps_nothing,
    a_cancellation_returns_while_the_server_hangs,
    a_wait_that_reaches_its_limit_leaves_nothing_behind,
    a_named_owner_keeps_what_it_acquires_after_a_lost_release,
    a_named_owner_keeps_what_it_acquires_after_a_lost_grant,
    a_worker_ends_with_its_input_while_it_waits_and_holds,
];

fn a_killed_waiter_is_skipped(stage: &Stage) {
    let server = Server::start();
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let mut worker = stage.worker(server.port());
    worker.send("acquire a k lease=60000");
    holder.see_waiters("k", 1);
    let mut behind = server.waiter("k B BLOCK 0");
    holder.see_waiters("k", 2);
    worker.kill();
    holder.see_waiters("k", 1);
    assert_eq!(holder.call("LOCK.RELEASE k H").int(), 0);
    let released = Instant::now();
    behind.reply().grant();
    stage.on_time("grant behind a killed waiter", released, 50, Instant::now());
}

fn the_lock_of_a_killed_holder_is_free_after_its_lease(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker(gate.port());
    worker.acquire("a k wait=0 lease=1000");
    let mut behind = server.waiter("k B BLOCK 0");
    eventually("a renewal", || gate.count("LOCK.RENEW k") > 0);
    worker.kill();
    behind.reply().grant();
    stage.on_time(
        "grant after a killed holder",
        gate.last_leases("k").0 + Duration::from_secs(1),
        50,
        Instant::now(),
    );
}

fn a_cancelled_wait_leaves_nothing_behind(stage: &Stage) {
    let server = Server::start();
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let mut worker = stage.worker(server.port());
    let id = worker.send("acquire a k lease=60000");
    holder.see_waiters("k", 1);
    let asked = Instant::now();
    worker.expect(&format!("cancel {id}"), "ok");
    let came = worker.reply(id);
    assert_eq!(came.text, "cancelled");
    stage.on_time("cancel", asked, 200, came.at);
    holder.see_waiters("k", 0);
    holder.see_places_kept(0);
    assert_eq!(holder.call("LOCK.RELEASE k H").int(), 0);
    assert_eq!(holder.info("k"), None);
}

fn a_late_request_of_a_cancelled_call_keeps_nothing(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker(gate.port());
    let mut is_first = true;
    gate.plan("the first request is late", move |request| {
        let is_late = is_first && request[0] == "LOCK.ACQUIRE";
        is_first &= !is_late;
        if is_late { Fate::Held } else { Fate::Carried }
    });
    let id = worker.send("acquire a k wait=0 lease=60000");
    eventually("the request", || gate.proxy.losses().held == 1);
    worker.expect(&format!("cancel {id}"), "ok");
    assert_eq!(worker.reply(id).text, "cancelled");
    let late = Instant::now() + Duration::from_millis(50);
    eventually("the late request", || Instant::now() > late);
    gate.plan("forward all", |_| Fate::Carried);
    let mut observer = server.client();
    eventually("the request and the release", || {
        let stats = observer.call("INFO commandstats").text();
        ["cmdstat_lock.acquire", "cmdstat_lock.release"].iter().all(|command| stats.contains(command))
    });
    eventually("the lock is free", || observer.info("k").is_none());
}

fn a_cancellation_returns_while_the_server_hangs(stage: &Stage) {
    let server = Server::start();
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let mut worker = stage.worker(server.port());
    let id = worker.send("acquire a k lease=60000");
    holder.see_waiters("k", 1);
    server.freeze();
    let asked = Instant::now();
    worker.expect(&format!("cancel {id}"), "ok");
    let came = worker.reply(id);
    assert_eq!(came.text, "cancelled");
    stage.on_time("cancel", asked, 200, came.at);
    server.thaw();
    // The client has left, so the wait must end when the server runs again.
    holder.see_waiters("k", 0);
}

fn a_wait_that_reaches_its_limit_leaves_nothing_behind(stage: &Stage) {
    let server = Server::start();
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let mut worker = stage.worker(server.port());
    assert_eq!(worker.call("acquire a k wait=300 lease=60000"), "busy");
    holder.see_waiters("k", 0);
    holder.see_places_kept(0);
}

fn a_named_owner_keeps_what_it_acquires_after_a_lost_release(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker_with(gate.port(), &["patience=200"]);
    worker.acquire("a k lease=1500 owner=me");
    gate.plan("no release arrives", |request| {
        if request[0] == "LOCK.RELEASE" { Fate::RequestLost } else { Fate::Carried }
    });
    worker.expect("release a", "error unreachable");
    gate.plan("no more losses", |_| Fate::Carried);
    worker.acquire("b k lease=1500 owner=me");
    // The client may repeat the release until the first lease is over, so the test watches the second tenure for
    // longer.
    let renewals = gate.count("LOCK.RENEW k");
    eventually("renewals for longer than the lease", || gate.count("LOCK.RENEW k") > renewals + 4);
    worker.expect("status b", "held");
    worker.expect("release b", "ok");
}

fn a_named_owner_keeps_what_it_acquires_after_a_lost_grant(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let mut worker = stage.worker_with(gate.port(), &["patience=300"]);
    gate.plan("no lock command arrives", |request| {
        if request[0].starts_with("LOCK.") { Fate::RequestLost } else { Fate::Carried }
    });
    worker.expect("acquire a k wait=0 lease=1500 owner=me", "error unreachable");
    gate.plan("all is well", |_| Fate::Carried);
    worker.acquire("b k wait=0 lease=1500 owner=me");
    // After its second acquisition the client must not send a release that gives up the first acquisition.
    let releases = gate.count("LOCK.RELEASE k");
    eventually("a renewal", || gate.count("LOCK.RENEW k") > 0);
    assert_eq!(gate.count("LOCK.RELEASE k"), releases, "it gives up after it has acquired the lock again");
    worker.expect("status b", "held");
    worker.expect("release b", "ok");
}

fn a_worker_ends_with_its_input_while_it_waits_and_holds(stage: &Stage) {
    let server = Server::start();
    let mut holder = server.client();
    holder.acquire("k H PX 60000");
    let mut worker = stage.worker(server.port());
    worker.acquire("b l wait=0 lease=10000");
    worker.send("acquire a k lease=60000");
    holder.see_waiters("k", 1);
    worker.end();
    holder.see_waiters("k", 0);
}
