//! Requests that are in progress while their server restarts, stops or is replaced.

use crate::{LONG, client, granted, patient, soon, url};
use lockward_client::Guard;
use lockward_tests::{Sentinels, Server, Setup, eventually};
use std::time::Duration;

/// A server without persistence that will be in quarantine after a restart, and a guard of a lock that it has granted.
async fn forgetful() -> (Server, lockward_client::Client, Guard) {
    let server = Server::start_with("quarantine 600000");
    let client = patient(&url(server.port()));
    server.client().call("CONFIG SET lock.quarantine 0");
    let guard = client.lock("k").lease(LONG / 2).acquire().await.expect("a guard");
    (server, client, guard)
}

#[tokio::test(flavor = "multi_thread")]
async fn re_enter_during_a_restart_restores_the_tenure() {
    let (mut server, _client, guard) = forgetful().await;
    server.kill();
    let entering = tokio::spawn(async move { (guard.re_enter().await, guard) });
    server.start_again();
    let (again, guard) = soon(entering).await.expect("no panic");
    let again = again.expect("a guard");
    let mut observer = server.client();
    assert_eq!((observer.holder("k").token, observer.holder("k").holds), (guard.token() as i64, 2));
    again.release().await.expect("a release");
    assert!(guard.is_held());
    guard.release().await.expect("a release");
    assert_eq!(observer.info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_a_hold_during_a_restart_keeps_the_others() {
    let (mut server, _client, guard) = forgetful().await;
    let again = guard.re_enter().await.expect("a guard");
    server.kill();
    let releasing = tokio::spawn(again.release());
    server.start_again();
    soon(releasing).await.expect("no panic").expect("a release");
    let mut observer = server.client();
    assert!(guard.is_held());
    eventually("it is restored", || observer.info("k").is_some_and(|info| info.holders[0].holds == 1));
    guard.release().await.expect("a release");
    assert_eq!(observer.info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_the_last_hold_during_a_restart_succeeds() {
    let (mut server, _client, guard) = forgetful().await;
    server.kill();
    let releasing = tokio::spawn(guard.release());
    server.start_again();
    soon(releasing).await.expect("no panic").expect("a release");
    assert_eq!(server.client().info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_enters_while_the_last_other_one_is_dropped_is_renewed() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.lock("k").owner("me").lease(Duration::from_secs(3));
    let first = lock.clone().acquire().await.expect("a guard");
    let clients = server.client().call("CLIENT LIST").text();
    let ours = clients.lines().find(|line| line.contains("cmd=lock.acquire")).expect("the client");
    let port = ours.split([' ', ':']).skip_while(|field| *field != "addr=127.0.0.1").nth(1);
    let port = port.and_then(|port| port.parse().ok()).expect("a port");
    server.freeze();
    let entering = tokio::spawn(lock.acquire());
    server.see_unread_from(port);
    drop(first);
    server.thaw();
    let second = granted(entering).await;
    let mut observer = server.client();
    eventually("it is held for longer than a lease", || {
        assert!(second.is_held(), "it is not renewed");
        observer.info("k").is_some_and(|info| info.holders[0].held_for > 4_000)
    });
    second.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_leaves_a_primary_that_is_stopped_for_good() {
    let first = Server::start();
    let second = Server::start_replica_of(&first);
    let sentinels = Sentinels::watch(&first, 1);
    let client = patient(&sentinels.url());
    let mut held = first.client();
    held.acquire("k another PX 600000");
    held.call("WAIT 1 20000");
    let waiter = tokio::spawn(client.lock("k").acquire());
    held.see_waiters("k", 1);
    first.freeze();
    assert_eq!(sentinels.see_failover_from(first.port()), second.port());
    let mut observer = second.client();
    observer.see_waiters("k", 1);
    observer.call("LOCK.RELEASE k another");
    granted(waiter).await.release().await.expect("a release");
    first.thaw();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_leaves_a_primary_that_was_replaced_without_its_knowledge() {
    let cut_off = || Setup::new().config("rename-command REPLICAOF ''").config("rename-command SLAVEOF ''");
    let first = cut_off().start();
    let second = Server::start_replica_of(&first);
    let sentinels = Sentinels::watch(&first, 1);
    let client = patient(&sentinels.url());
    let lock = client.lock("k").lease(LONG).replicas(1, LONG / 2);
    let guard = lock.acquire().await.expect("a guard");
    first.client().call("CONFIG SET min-replicas-to-write 1");
    sentinels.fail_over();
    assert_eq!(sentinels.see_failover_from(first.port()), second.port());
    guard.renew().await.expect("a renewal");
    guard.release().await.expect("a release");
    assert_eq!(second.client().info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn settled_does_not_wait_for_renewals() {
    let (mut server, client, guard) = forgetful().await;
    server.kill();
    // By then the client has noticed that the connection is broken, and renews, too.
    assert!(tokio::time::timeout(Duration::from_millis(300), guard.renew()).await.is_err());
    soon(client.settled()).await;
    server.start_again();
    guard.renew().await.expect("a renewal");
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_waits_while_the_server_loads_its_data() {
    // Loading takes 0.1 s for each key, and the server answers meanwhile.
    let slow = Setup::new()
        .config("rdbcompression no")
        .config("key-load-delay 100000")
        .config("loading-process-events-interval-bytes 1024");
    let mut server = slow.start();
    let client = patient(&url(server.port()));
    let mut held = server.client();
    held.acquire("k another PX 600000");
    for number in 0..20 {
        held.call(format!("SET {number} {}", "x".repeat(2_000)));
    }
    let waiter = tokio::spawn(client.lock("k").acquire());
    held.see_waiters("k", 1);
    held.call("SAVE");
    server.kill_and_start_again();
    let mut observer = server.client();
    observer.see_waiters("k", 1);
    let refused = observer.call("INFO errorstats").text();
    assert!(refused.contains("errorstat_LOADING:count="), "{refused}");
    observer.call("LOCK.RELEASE k another");
    granted(waiter).await.release().await.expect("a release");
}
