//! Replies that are lost. The client repeats the requests, and no hold counts twice.

use crate::{client, client_at, client_with, granted, url};
use lockward_client::{Client, Error, Guard, Settings};
use lockward_tests::{Fate, Proxy, Random, Reply, Server};
use std::time::Duration;

/// How many replies are lost in all.
const LOST: usize = 1_000;

/// Loses a request, its reply or its client in half of all lock requests; mostly replies.
fn some_lost() -> impl FnMut(&[Reply]) -> Fate + Send + 'static {
    let mut random = Random::new();
    move |request| {
        let is_ours = request.first().is_some_and(|name| name.text().starts_with("LOCK."));
        match random.within(0..10) {
            _ if !is_ours => Fate::Carried,
            0..3 => Fate::ReplyLost,
            3 => Fate::ClientLost,
            4 => Fate::RequestLost,
            _ => Fate::Carried,
        }
    }
}

/// Acquires, enters and releases at random until enough replies are lost. After each step the server must count as many holds
/// as there are guards.
async fn acquire_and_release(key: String, client: Client, port: u16, enough: impl Fn() -> bool) {
    let mut observer = lockward_tests::Client::connect(port).expect("a connection");
    let mut random = Random::new();
    let mut guards: Vec<Guard> = Vec::new();
    let mut last = 0;
    while !enough() {
        let chance = random.within(0..10);
        match (guards.pop(), chance) {
            (None, 0..4) => {
                guards.push(client.lock(&key).wait(Duration::from_secs(60)).acquire().await.expect("a guard"))
            }
            (None, _) => guards.push(client.lock(&key).owner(&key).acquire().await.expect("a guard")),
            (Some(guard), 0..4) => {
                guards.push(guard.re_enter().await.expect("a guard"));
                guards.push(guard);
            }
            (Some(guard), 4) => {
                guard.renew().await.expect("a renewal");
                guards.push(guard);
            }
            (Some(guard), _) => guard.release().await.expect("a release"),
        }
        let info = observer.info(&key);
        let counted = info.as_ref().map_or(0, |info| info.holders.first().map_or(0, |holder| holder.holds));
        assert_eq!(counted, i64::try_from(guards.len()).unwrap(), "{key}: {info:?}");
        if let Some(guard) = guards.first() {
            assert!(guard.is_held() && guard.token() >= last);
            last = guard.token();
        }
    }
    for guard in guards {
        guard.release().await.expect("a release");
    }
    assert_eq!(observer.info(&key), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_are_right_after_a_thousand_lost_replies() {
    let server = Server::start();
    let proxy = std::sync::Arc::new(Proxy::start(server.port(), some_lost()));
    let callers = (0..6).map(|number| {
        let client = client_with(&url(proxy.port()), Settings::default().patience(Duration::from_secs(60)));
        let proxy = std::sync::Arc::clone(&proxy);
        tokio::spawn(acquire_and_release(format!("k{number}"), client, server.port(), move || {
            proxy.replies_lost() >= LOST
        }))
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("nothing is miscounted");
    }
    assert!(proxy.replies_lost() >= LOST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_loses_its_connection_keeps_its_position() {
    let server = Server::start();
    let holder = client(&server).await;
    let guard = holder.lock("k").acquire().await.expect("a guard");
    // The proxy keeps the connection to the server open when it drops the first client.
    let mut is_first = true;
    let proxy = Proxy::start(server.port(), move |request| {
        let waits = request.iter().any(|argument| argument.text() == "BLOCK");
        match waits && std::mem::take(&mut is_first) {
            true => Fate::ClientLost,
            false => Fate::Carried,
        }
    });
    let through = client_at(proxy.port()).await;
    let mut observer = server.client();
    let first = tokio::spawn(through.lock("k").acquire());
    observer.see_waiters("k", 1);
    let second = tokio::spawn(holder.lock("k").acquire());
    observer.see_waiters("k", 2);
    guard.release().await.expect("a release");
    let first = granted(first).await;
    assert!(matches!(holder.lock("k").try_acquire().await, Err(Error::Busy)));
    first.release().await.expect("a release");
    granted(second).await.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_dropped_together_are_released_although_the_first_request_is_lost() {
    let server = Server::start();
    let mut is_first = true;
    let proxy = Proxy::start(server.port(), move |request| {
        let releases = request.first().is_some_and(|name| name.text() == "LOCK.RELEASE");
        match releases && std::mem::take(&mut is_first) {
            true => Fate::RequestLost,
            false => Fate::Carried,
        }
    });
    let through = client_at(proxy.port()).await;
    let guard = through.lock("k").lease(crate::LONG).acquire().await.expect("a guard");
    drop((guard.re_enter().await.expect("a guard"), guard));
    let mut observer = server.client();
    lockward_tests::eventually("both are released", || observer.info("k").is_none());
}
