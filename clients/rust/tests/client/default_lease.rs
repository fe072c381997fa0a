//! The lease of acquisitions that give none: the default of the server.

use crate::{LONG, client, client_at, command_stat, granted, hasty, soon};
use lockward_client::{Client, Error, Guard, Lock, Loss};
use lockward_tests::{Fate, Proxy, Reply, Server, eventually};
use std::time::{Duration, Instant};

/// A proxy that calls `at_first` at the first request with this command.
fn watch(server: &Server, command: &'static str, at_first: impl FnOnce() -> Fate + Send + 'static) -> Proxy {
    let mut at_first = Some(at_first);
    Proxy::start(server.port(), move |request: &[Reply]| match request.first() {
        Some(word) if word.text() == command => at_first.take().map_or(Fate::Carried, |at_first| at_first()),
        _ => Fate::Carried,
    })
}

fn see_lease(guard: &Guard, millis: u64) {
    let left = guard.lease_left();
    assert!(left <= Duration::from_millis(millis) && left > Duration::from_millis(millis / 3), "{left:?}");
}

async fn see_kept(settings: &str) {
    let server = Server::start_with(settings);
    let client = client(&server).await;
    let guard = soon(client.lock("k").acquire()).await.expect("a guard");
    see_lease(&guard, 3_000);
    let mut observer = server.client();
    eventually("it is held for more than a lease", || observer.holder("k").held_for > 4_000);
    assert!(guard.is_held());
    see_lease(&guard.re_enter().await.expect("a guard"), 3_000);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_without_a_lease_gets_the_default_of_the_server() {
    see_kept("default-lease 3000").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_is_limited_by_max_lease() {
    see_kept("max-lease 3000").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_is_limited_by_the_quarantine() {
    see_kept("quarantine 3000").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_is_shorter_after_max_lease_is_lowered() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    for longest in [30_000, 10_000, 5_000] {
        observer.call(format!("CONFIG SET lock.max-lease {longest}"));
        let guard = client.lock("k").acquire().await.expect("a guard");
        see_lease(&guard, longest);
        guard.release().await.expect("a release");
    }
    let refused = client.lock("k").lease(Duration::from_secs(10)).acquire().await;
    assert!(matches!(refused, Err(Error::Server { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_is_shorter_if_max_lease_is_lowered_during_a_wait() {
    let server = Server::start();
    let client = client(&server).await;
    let holder = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    // With `replicas` the client renews the lease before it returns the guard.
    let waiter = tokio::spawn(client.lock("k").replicas(0, Duration::from_secs(1)).acquire());
    let mut observer = server.client();
    observer.see_waiters("k", 1);
    observer.call("CONFIG SET lock.max-lease 5000");
    holder.release().await.expect("a release");
    let guard = granted(waiter).await;
    see_lease(&guard, 5_000);
    assert!(observer.holder("k").lease_left <= 5_000);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lock_is_renewed_with_the_longest_lease_after_the_limit_is_lowered() {
    for setting in ["max-lease", "quarantine"] {
        let server = Server::start_with("default-lease 9000");
        let client = client(&server).await;
        let guard = client.lock("k").owner("job").acquire().await.expect("a guard");
        let named = client.lock("l").lease(Duration::from_secs(9)).acquire().await.expect("a guard");
        let mut observer = server.client();
        observer.call(format!("CONFIG SET lock.{setting} 5000"));
        let again = client.lock("k").owner("job").acquire().await.expect("a guard");
        guard.re_enter().await.expect("a guard").release().await.expect("a release");
        eventually("both are renewed", || {
            let [all, failed] =
                ["calls", "failed_calls"].map(|field| command_stat(&mut observer, "lock.renew", field));
            failed > 0 && all >= failed + 2
        });
        for lock in ["k", "l"] {
            assert!(observer.holder(lock).lease_left <= 5_000);
        }
        let renewed = Instant::now();
        named.renew().await.expect("a renewal");
        assert!(renewed.elapsed() + named.lease_left() >= Duration::from_millis(4_994));
        named.release().await.expect("a release");
        again.release().await.expect("a release");
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_lease_counts_even_if_its_reply_is_lost() {
    let server = Server::start_with("default-lease 6000");
    let mut requests = 0;
    let proxy = Proxy::start(server.port(), move |request: &[Reply]| {
        let words: Vec<_> = request.iter().map(Reply::text).collect();
        let is_shorter = words.first().is_some_and(|word| *word == "LOCK.RENEW")
            && !words.iter().any(|word| *word == "6000");
        requests += usize::from(is_shorter);
        match (is_shorter, requests) {
            (false, _) => Fate::Carried,
            (true, 1) => Fate::ReplyLost,
            (true, _) => Fate::RequestLost,
        }
    });
    let guard = client_at(proxy.port()).await.lock("k").acquire().await.expect("a guard");
    let mut observer = server.client();
    observer.call("CONFIG SET lock.max-lease 5000");
    eventually("a shorter lease is set", || observer.holder("k").lease_left < 2_900);
    eventually("it is over", || observer.info("k").is_none());
    assert!(!guard.is_held(), "{:?}", guard.lease_left());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_given_by_another_process_is_kept() {
    let server = Server::start();
    let mut observer = server.client();
    observer.acquire("k job PX 600000");
    let client = client(&server).await;
    let guard = client.lock("k").owner("job").acquire().await.expect("a guard");
    let other = client.lock("l").acquire().await.expect("a guard");
    see_lease(&guard, 600_000);
    see_lease(&other, 30_000);
    for guard in [guard, other] {
        guard.release().await.expect("a release");
    }
}

/// A proxy that delays each such command until the lease is over.
fn delayed(server: &Server, command: &'static str) -> Proxy {
    let mut observer = server.client();
    Proxy::start(server.port(), move |request: &[Reply]| {
        if request.first().is_some_and(|word| word.text() == command) {
            eventually("the lease is over", || observer.info("k").is_none());
        }
        Fate::Carried
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_ends_when_replies_take_longer_than_the_lease() {
    let server = Server::start_with("default-lease 40");
    let proxy = delayed(&server, "LOCK.RENEW");
    let lease = Duration::from_millis(40);
    let unnamed = hasty(proxy.port()).lock("k").replicas(0, lease / 2);
    let named = unnamed.clone().lease(lease);
    for lock in [unnamed, named] {
        let result = soon(lock.try_acquire()).await;
        assert!(matches!(result, Err(Error::Lost(Loss::LeaseOver))), "{result:?}");
    }
}

async fn without_info(server: &Server) -> Client {
    let rules = "~* +lock.acquire +lock.renew +lock.release +ping";
    server.client().call(format!("ACL SETUSER worker on >secret {rules}"));
    let url = format!("redis://worker:secret@127.0.0.1:{}", server.port());
    Client::connect(&url).await.expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_is_known_without_permission_for_info() {
    let server = Server::start_with("default-lease 5000");
    let guard = without_info(&server).await.lock("k").acquire().await.expect("a guard");
    see_lease(&guard, 5_000);
    guard.release().await.expect("a release");
}

/// A lock whose grants are confirmed by LOCK.RENEW.
fn confirmed(client: &Client) -> Lock {
    client.lock("k").replicas(0, Duration::from_secs(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_deleted_before_it_is_confirmed_is_acquired_again() {
    let server = Server::start();
    let mut observer = server.client();
    let proxy = watch(&server, "LOCK.RENEW", move || {
        observer.call("DEL k");
        Fate::Carried
    });
    let guard = soon(confirmed(&client_at(proxy.port()).await).acquire()).await.expect("a guard");
    assert_eq!(server.client().holder("k").token, guard.token() as i64);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_taken_by_another_before_it_is_confirmed_is_busy() {
    let server = Server::start();
    let mut observer = server.client();
    let proxy = watch(&server, "LOCK.RENEW", move || {
        observer.call("DEL k");
        observer.acquire("k other");
        Fate::Carried
    });
    let result = confirmed(&client_at(proxy.port()).await).try_acquire().await;
    assert!(matches!(result, Err(Error::Busy)), "{result:?}");
    assert_eq!(server.client().holder("k").owner, "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_is_known_although_a_reply_is_lost() {
    for fate in [Fate::RequestLost, Fate::ReplyLost, Fate::ReplyTorn] {
        let server = Server::start();
        let proxy = watch(&server, "LOCK.ACQUIRE", move || fate);
        let guard = soon(client_at(proxy.port()).await.lock("k").acquire()).await.expect("a guard");
        see_lease(&guard, 30_000);
        assert_eq!(server.client().holder("k").holds, 1);
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_dropped_before_it_is_confirmed_is_released() {
    let server = Server::start();
    let (asks, asking) = tokio::sync::oneshot::channel();
    let proxy = watch(&server, "LOCK.RENEW", || {
        asks.send(()).expect("a test");
        Fate::Silence(LONG)
    });
    let client = client_at(proxy.port()).await;
    let mut observer = server.client();
    tokio::select! {
        _ = confirmed(&client).acquire() => panic!("nothing is known"),
        // The client withdraws the acquisition as soon as it is dropped.
        () = async {
            soon(asking).await.expect("a request");
            assert_eq!(observer.holder("k").holds, 1);
        } => {}
    }
    soon(client.settled()).await;
    assert_eq!(observer.info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_limit_shortens_the_default_at_the_server() {
    let server = Server::start();
    let client = client(&server).await;
    for _ in 0..2 {
        let guard = client.lock("k").hold_limit(Duration::from_secs(9)).acquire().await.expect("a guard");
        see_lease(&guard, 9_000);
        assert!(server.client().holder("k").lease_left <= 9_000);
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_for_replicas_must_be_shorter_than_the_default() {
    let server = Server::start_with("default-lease 20000");
    let client = client(&server).await;
    let mut observer = server.client();
    for (within, is_enough) in [(20_000, false), (10_000, true), (20_000, false)] {
        let lock = client.lock("k").replicas(0, Duration::from_millis(within));
        match lock.acquire().await {
            Ok(guard) => {
                assert!(is_enough, "{within}");
                guard.release().await.expect("a release");
            }
            Err(Error::Invalid(_)) => assert!(!is_enough),
            Err(error) => panic!("{error}"),
        }
        soon(client.settled()).await;
        assert_eq!(observer.info("k"), None);
    }
}
