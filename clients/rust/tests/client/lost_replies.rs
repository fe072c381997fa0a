//! Replies that are lost: what is repeated is not counted twice.

use crate::client;
use lockward_client::{Client, Error, Guard, Settings};
use lockward_tests::{Fate, Proxy, Random, Reply, Server};
use std::time::Duration;

/// How many replies are lost, by all.
const LOST: usize = 1_000;

/// Loses something of one lock request in two: replies most of all.
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

/// What one caller does until enough is lost, beside what the server counts.
async fn hold_and_let_go(key: String, client: Client, port: u16, enough: impl Fn() -> bool) {
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
async fn a_thousand_lost_replies_miscount_nothing() {
    let server = Server::start();
    let proxy = std::sync::Arc::new(Proxy::start(server.port(), some_lost()));
    let callers = (0..6).map(|number| {
        let address = format!("redis://127.0.0.1:{}", proxy.port()).parse().expect("an address");
        let settings = Settings::default().patience(Duration::from_secs(60));
        let client = Client::new(address, settings).expect("a client");
        let proxy = std::sync::Arc::clone(&proxy);
        tokio::spawn(hold_and_let_go(format!("k{number}"), client, server.port(), move || {
            proxy.replies_lost() >= LOST
        }))
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("nothing is miscounted");
    }
    assert!(proxy.replies_lost() >= LOST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_loses_its_connection_keeps_its_place() {
    let server = Server::start();
    let holder = client(&server).await;
    let guard = holder.lock("k").acquire().await.expect("a guard");
    // The server does not hear that the first connection is gone.
    let mut is_first = true;
    let proxy = Proxy::start(server.port(), move |request| {
        let waits = request.iter().any(|argument| argument.text() == "BLOCK");
        match waits && std::mem::take(&mut is_first) {
            true => Fate::ClientLost,
            false => Fate::Carried,
        }
    });
    let through = Client::connect(&format!("redis://127.0.0.1:{}", proxy.port())).await.expect("a client");
    let mut observer = server.client();
    let first = tokio::spawn(through.lock("k").acquire());
    observer.see_waiters("k", 1);
    let second = tokio::spawn(holder.lock("k").acquire());
    observer.see_waiters("k", 2);
    guard.release().await.expect("a release");
    let first = crate::soon(first).await.expect("no panic").expect("a guard");
    assert!(matches!(holder.lock("k").try_acquire().await, Err(Error::Busy)));
    first.release().await.expect("a release");
    crate::soon(second).await.expect("no panic").expect("a guard").release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_that_are_dropped_together_are_given_back_though_the_first_request_is_lost() {
    let server = Server::start();
    let mut is_first = true;
    let proxy = Proxy::start(server.port(), move |request| {
        let releases = request.first().is_some_and(|name| name.text() == "LOCK.RELEASE");
        match releases && std::mem::take(&mut is_first) {
            true => Fate::RequestLost,
            false => Fate::Carried,
        }
    });
    let through = Client::connect(&format!("redis://127.0.0.1:{}", proxy.port())).await.expect("a client");
    let guard = through.lock("k").lease(crate::LONG).acquire().await.expect("a guard");
    drop((guard.re_enter().await.expect("a guard"), guard));
    let mut observer = server.client();
    lockward_tests::eventually("both are given back", || observer.info("k").is_none());
}
