//! Waiting for a lock.

use crate::{LONG, client, client_at, client_with, granted, url};
use lockward_client::{Error, Settings};
use lockward_tests::{Fate, Proxy, Server, eventually};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_in_order_and_delay_no_other_request() {
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
        let guard = granted(waiter).await;
        assert!(guard.token() > last && guard.is_held());
        last = guard.token();
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_after_a_wait_longer_than_the_lease_has_a_whole_lease() {
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
    let guard = granted(waiter).await;
    assert!(guard.is_held() && guard.lease_left() > lease / 4, "{:?}", guard.lease_left());
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_wait_leaves_the_queue() {
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
async fn a_dropped_wait_leaves_the_queue_although_its_connection_stays_open() {
    let server = Server::start();
    // The proxy notices that a client has gone only when the server replies.
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let through = client_at(proxy.port()).await;
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
async fn further_callers_wait_in_the_process_for_a_connection() {
    let server = Server::start();
    let client = client_with(&url(server.port()), Settings::default().waiting_connections(2));
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
    eventually("all are served and release it", || observer.info("k").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_without_a_connection_acquires_a_lock_that_becomes_free() {
    let server = Server::start();
    let client = client_with(&url(server.port()), Settings::default().waiting_connections(1));
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
    granted(second).await.release().await.expect("a release");
    guard.release().await.expect("a release");
    granted(waiter).await.release().await.expect("a release");
}
