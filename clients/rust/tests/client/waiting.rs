//! Waiting for a lock.

use crate::{LONG, client, soon};
use lockward_client::{Client, Error, Settings};
use lockward_tests::{Fate, Proxy, Server, eventually};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_in_their_order_and_nothing_else_is_held_up() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").acquire().await.expect("a guard");
    let mut observer = server.client();
    let mut waiters = Vec::new();
    for count in 1..=5 {
        let lock = client.lock("k").wait(LONG);
        waiters.push(tokio::spawn(lock.acquire()));
        observer.see_waiters("k", count);
    }
    client.lock("other").acquire().await.expect("a guard").release().await.expect("a release");
    let mut last = guard.token();
    guard.release().await.expect("a release");
    for waiter in waiters {
        let guard = soon(waiter).await.expect("no panic").expect("a guard");
        assert!(guard.token() > last && guard.is_held());
        last = guard.token();
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_waited_longer_than_a_lease_has_a_whole_one() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").acquire().await.expect("a guard");
    let lease = Duration::from_secs(2);
    let waiter = tokio::spawn(client.lock("k").lease(lease).wait(LONG).without_renewal().acquire());
    let mut observer = server.client();
    eventually("a wait longer than the lease", || {
        observer.info("k").is_some_and(|info| info.waiters == 1)
            && observer
                .call("LOCK.TOP")
                .items()
                .first()
                .is_some_and(|top| top.field("longest-wait").int() > 2_100)
    });
    guard.release().await.expect("a release");
    let guard = soon(waiter).await.expect("no panic").expect("a guard");
    assert!(guard.is_held() && guard.lease_left() > lease / 4, "{:?}", guard.lease_left());
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_dropped_leaves_the_queue() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").acquire().await.expect("a guard");
    let mut observer = server.client();
    for lock in [client.lock("k"), client.lock("k").owner("me"), client.lock("k").wait(LONG)] {
        let waiter = tokio::spawn(lock.acquire());
        observer.see_waiters("k", 1);
        waiter.abort();
        observer.see_waiters("k", 0);
    }
    guard.release().await.expect("a release");
    eventually("nobody has it", || observer.info("k").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn so_does_one_whose_end_the_server_does_not_hear_of() {
    let server = Server::start();
    // It does not look at who waits behind it before the server has replied.
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let through = Client::connect(&format!("redis://127.0.0.1:{}", proxy.port())).await.expect("a client");
    let guard = through.lock("k").lease(LONG).acquire().await.expect("a guard");
    let waiter = tokio::spawn(through.lock("k").acquire());
    let mut observer = server.client();
    observer.see_waiters("k", 1);
    waiter.abort();
    observer.see_waiters("k", 0);
    guard.release().await.expect("a release");
    assert_eq!(observer.info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_waiters_than_connections_stand_in_line_in_the_process() {
    let server = Server::start();
    let address = format!("redis://127.0.0.1:{}", server.port()).parse().expect("an address");
    let client = Client::new(address, Settings::default().waiting_connections(2)).expect("a client");
    let guard = client.lock("k").acquire().await.expect("a guard");
    let mut waiters: Vec<_> = (0..5).map(|_| tokio::spawn(client.lock("k").wait(LONG).acquire())).collect();
    let mut observer = server.client();
    observer.see_waiters("k", 2);
    let brief = client.lock("k").wait(Duration::from_millis(50)).acquire().await;
    assert!(matches!(brief, Err(Error::Busy)));
    guard.release().await.expect("a release");
    while let Some(waiter) = waiters.pop() {
        drop(waiter);
    }
    eventually("all are served, and give it back", || observer.info("k").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_what_others_wait_for_gets_another_lock_though_they_have_all_connections() {
    let server = Server::start();
    let address = format!("redis://127.0.0.1:{}", server.port()).parse().expect("an address");
    let client = Client::new(address, Settings::default().waiting_connections(1)).expect("a client");
    let guard = client.lock("a").acquire().await.expect("a guard");
    let waiter = tokio::spawn(client.lock("a").acquire());
    let mut observer = server.client();
    observer.see_waiters("a", 1);
    observer.acquire("b another PX 600000");
    let second = tokio::spawn(client.lock("b").acquire());
    // It was busy at first.
    eventually("it tries again", || {
        let stats = observer.call("INFO lock").text();
        let busy = stats.lines().find_map(|line| line.strip_prefix("lock_busy:"));
        busy.and_then(|count| count.trim().parse().ok()).is_some_and(|count: u64| count > 1)
    });
    observer.call("LOCK.RELEASE b another");
    soon(second).await.expect("no panic").expect("a guard").release().await.expect("a release");
    guard.release().await.expect("a release");
    soon(waiter).await.expect("no panic").expect("a guard").release().await.expect("a release");
}
