//! Requests and replies that are lost, and callers and runtimes that stop.

use crate::{LONG, calls, client, client_with, granted, soon, url};
use lockward_client::{Error, Limit, Loss, Settings};
use lockward_tests::{Cluster, Fate, Proxy, Reply, Sentinels, Server, Setup, eventually, slot_of};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// If a call fails although it has got a lock, the call waits this long for the release of the lock.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(200);

/// A plan that gives these fates, in order, to the requests of a command. The proxy forwards all further requests of
/// this command, and all other requests.
fn fates(
    command: &'static str,
    fates: impl IntoIterator<Item = Fate, IntoIter: Send + 'static>,
) -> impl FnMut(&[Reply]) -> Fate + Send + 'static {
    let mut fates = fates.into_iter();
    move |request| if request[0].text() == command { fates.next() } else { None }.unwrap_or(Fate::Carried)
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_live_on_when_another_server_at_the_same_address_becomes_the_primary() {
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let proxy = Proxy::start(primary.port(), |_| Fate::Carried);
    let client = client_with(&url(proxy.port()), Settings::default());
    let one = client.lock("one").lease(LONG).acquire().await.expect("a guard");
    let other = client.lock("other").lease(LONG).acquire().await.expect("a guard");
    replica.see_in_sync_with(&primary);
    let mut observer = replica.promote();
    proxy.lead_to(replica.port());
    primary.follow(&replica);
    let left = observer.holder("other").lease_left;
    one.renew().await.expect("the lock is held");
    eventually("the other lock is renewed, too", || observer.holder("other").lease_left > left);
    other.release().await.expect("the lock is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_wait_is_the_error_of_the_call() {
    let server = Server::start();
    let mut observer = server.client();
    assert_eq!(observer.call("ACL SETUSER default -wait"), Reply::ok());
    let client = client(&server).await;
    let refused = client.lock("k").lease(LONG).replicas(1, Duration::from_secs(1)).try_acquire().await;
    assert_eq!(refused.expect_err("the server refuses WAIT").code(), Some("NOPERM"));
    assert!(soon(client.close()).await);
    assert_eq!(observer.info("k"), None);
}

/// Drops an acquisition after the reply to its LOCK.ACQUIRE was lost. The first `lost` releases are lost, too.
async fn drop_after_a_lost_grant(server: &Server, proxy: &Proxy, lock: lockward_client::Lock, lost: u32) {
    let mut acquires = 0;
    let mut releases = 0;
    proxy.set_plan(move |request| match &*request[0].text() {
        "LOCK.ACQUIRE" => {
            acquires += 1;
            if acquires == 1 { Fate::Silence(LONG) } else { Fate::Carried }
        }
        "LOCK.RELEASE" => {
            releases += 1;
            if releases <= lost { Fate::RequestLost } else { Fate::Carried }
        }
        _ => Fate::Carried,
    });
    let acquiring = tokio::spawn(lock.acquire());
    let mut observer = server.client();
    eventually("the lock is granted", || observer.info("k").is_some());
    acquiring.abort();
    assert!(acquiring.await.expect_err("it is dropped").is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_reply_is_lost_is_released_even_after_several_attempts() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let settings = Settings::default().response_limit(Duration::from_secs(1)).patience(LONG);
    let client = client_with(&url(proxy.port()), settings);
    drop_after_a_lost_grant(&server, &proxy, client.lock("k").lease(LONG), 5).await;
    // The client repeats the release after five losses, although the pauses between the attempts take longer than 200
    // ms. For a named owner the client would stop after 200 ms.
    assert!(soon(client.close()).await);
    assert_eq!(server.client().info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_request_for_replicas_that_arrives_late_leaves_no_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), fates("LOCK.ACQUIRE", [Fate::Carried, Fate::Held]));
    let client = client_with(&url(proxy.port()), Settings::default());
    // This acquisition opens the shared connection.
    client.lock("other").acquire().await.expect("a guard").release().await.expect("a release");
    let trying = tokio::spawn(client.lock("k").lease(LONG).replicas(0, LONG / 2).try_acquire());
    eventually("the try is on its way", || proxy.losses().held == 1);
    trying.abort();
    assert!(trying.await.expect_err("it is dropped").is_cancelled());
    let mut observer = server.client();
    // The first release was the release of the other lock.
    eventually("the release has overtaken the try", || calls(&mut observer, "lock.release") == 2);
    proxy.set_plan(|_| Fate::Carried);
    eventually("the try has arrived", || calls(&mut observer, "lock.acquire") == 2);
    eventually("the lock is released", || observer.info("k").is_none());
    assert!(soon(client.close()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_of_a_named_owner_does_not_end_its_next_tenure() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let settings = Settings::default().response_limit(Duration::from_secs(1)).patience(LONG);
    let client = client_with(&url(proxy.port()), settings);
    let lock = client.lock("k").owner("me").lease(LONG);
    drop_after_a_lost_grant(&server, &proxy, lock.clone(), u32::MAX).await;
    let guard = soon(lock.acquire()).await.expect("its own lock");
    assert!(soon(client.close()).await);
    guard.renew().await.expect("the lock is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_keys_get_a_new_owner_after_the_first_try() {
    let server = Server::start();
    let owners = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&owners);
    let proxy = Proxy::start(server.port(), move |request| {
        if request[0].text() == "LOCK.ACQUIRE" && request[1].text() == "a" {
            seen.lock().expect("no panic").push(request[2].text());
        }
        Fate::Carried
    });
    let client = client_with(&url(proxy.port()), Settings::default());
    for (name, count) in [(None, 2), (Some("me"), 1)] {
        let other = client.lock("b").acquire().await.expect("a guard");
        let lock = client.locks(["a", "b"]).wait(LONG);
        let lock = name.into_iter().fold(lock, |lock, name| lock.owner(name));
        let waiter = tokio::spawn(lock.acquire());
        server.client().see_waiters("b", 1);
        other.release().await.expect("a release");
        let guard = granted(waiter).await;
        let mut owners: Vec<String> = owners.lock().expect("no panic").drain(..).collect();
        assert_eq!(owners.last().map(String::as_bytes), Some(guard.owner()));
        owners.dedup();
        assert_eq!(owners.len(), count, "{owners:?}");
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_release_of_several_keys_does_not_outlast_the_wait_limit() {
    let server = Server::start();
    let other = client(&server).await.lock("b").acquire().await.expect("a guard");
    let proxy = Proxy::start(server.port(), fates("LOCK.RELEASE", [Fate::Silence(LONG)]));
    let settings = Settings::default().response_limit(LONG).patience(LONG);
    let client = client_with(&url(proxy.port()), settings);
    let busy = soon(client.locks(["a", "b"]).wait(Duration::from_millis(300)).acquire()).await;
    assert!(matches!(busy, Err(Error::Busy { .. } | Error::Unreachable { .. })), "{busy:?}");
    let mut observer = server.client();
    eventually("the release has arrived", || observer.info("a").is_none());
    other.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hold_limit_of_several_keys_counts_from_the_last_grant() {
    let server = Server::start();
    let client = client(&server).await;
    let other = client.lock("b").acquire().await.expect("a guard");
    let limit = Duration::from_secs(3);
    let waiter = tokio::spawn(client.locks(["a", "b"]).hold_limit(limit).wait(LONG).acquire());
    let mut observer = server.client();
    observer.see_waiters("b", 1);
    eventually("the first key is held for a third of the limit", || observer.holder("a").held_for > 1_000);
    let begun = Instant::now();
    other.release().await.expect("a release");
    let guard = granted(waiter).await;
    assert!(guard.is_held() && guard.lease_left() <= limit);
    soon(guard.lost()).await;
    assert!(begun.elapsed() > limit * 5 / 6, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hold_limit_counts_from_the_request() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let client = client_with(&url(proxy.port()), Settings::default());
    // This acquisition opens the shared connection.
    client.lock("other").acquire().await.expect("a guard").release().await.expect("a release");
    proxy.delay(Duration::from_millis(600));
    let lock = client.lock("k").lease(LONG).hold_limit(Duration::from_secs(3));
    let guard = lock.acquire().await.expect("a guard");
    assert_eq!(soon(guard.lost()).await.to_string(), "its hold limit is over");
    // The client shortens the lease in LOCK.ACQUIRE to the hold limit, so it sends no renewal.
    assert_eq!(calls(&mut server.client(), "lock.renew"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_keys_without_renewal_are_renewed_until_all_are_granted() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    observer.acquire("b other PX 600000");
    let lock = client.locks(["a", "b"]).lease(Duration::from_millis(900)).without_renewal();
    let waiter = tokio::spawn(lock.acquire());
    observer.see_waiters("b", 1);
    let token = observer.holder("a").token;
    eventually("the first key is held for two leases", || {
        let holder = observer.holder("a");
        assert_eq!(holder.token, token, "the first key is lost during the wait");
        holder.held_for > 1_800
    });
    assert_eq!(observer.call("LOCK.RELEASE b other ALL").int(), 0);
    let guard = granted(waiter).await;
    assert_eq!(guard.token() as i64, token);
    assert_eq!(soon(guard.lost()).await, Loss::LeaseOver);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_without_a_waiting_connection_polls_for_longer_than_the_patience() {
    let server = Server::start();
    let mut observer = server.client();
    observer.acquire("l other PX 600000");
    let mut tries = 0;
    let proxy = Proxy::start(server.port(), move |request| {
        let is_try = request[0].text() == "LOCK.ACQUIRE" && request[1].text() == "l";
        tries += u32::from(is_try);
        if is_try && (2..8).contains(&tries) { Fate::RequestLost } else { Fate::Carried }
    });
    let settings = Settings::default().waiting_connections(1).patience(Duration::from_millis(200));
    let client = client_with(&url(proxy.port()), settings);
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    let first = tokio::spawn(client.lock("k").acquire());
    observer.see_waiters("k", 1);
    let polling = tokio::spawn(client.lock("l").acquire());
    eventually("six of its requests are lost", || proxy.losses().requests >= 6);
    assert_eq!(observer.call("LOCK.RELEASE l other ALL").int(), 0);
    granted(polling).await.release().await.expect("a release");
    guard.release().await.expect("a release");
    granted(first).await.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_grant_ends_before_it_is_confirmed_waits_again() {
    let server = Server::start();
    let holder = client(&server).await.lock("k").acquire().await.expect("a guard");
    let mut first = None;
    let confirmations = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&confirmations);
    let proxy = Proxy::start(server.port(), move |request| {
        if request[0].text() != "LOCK.RENEW" {
            return Fate::Carried;
        }
        // The word after TOKEN.
        let token = request[6].text();
        if first.get_or_insert_with(|| token.clone()) != &token {
            return Fate::Carried;
        }
        counted.fetch_add(1, Ordering::Relaxed);
        Fate::RequestLost
    });
    let client = client_with(&url(proxy.port()), Settings::default());
    let waiter = tokio::spawn(client.lock("k").lease(Duration::from_secs(3)).acquire());
    server.client().see_waiters("k", 1);
    holder.release().await.expect("a release");
    granted(waiter).await.release().await.expect("a release");
    assert!(confirmations.load(Ordering::Relaxed) > 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refused_the_first_connection_is_asked_again() {
    let mut server = Server::start();
    let settings = Settings::default().patience(Duration::from_secs(1));
    let client = client_with(&url(server.port()), settings);
    server.kill();
    assert!(matches!(client.lock("k").try_acquire().await, Err(Error::Unreachable { .. })));
    server.start_again();
    client.lock("k").try_acquire().await.expect("a guard").release().await.expect("a release");
}

#[test]
fn a_runtime_that_is_not_driven_does_not_block_callers_in_another_runtime() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let works = tokio::runtime::Runtime::new().expect("a runtime");
    let client = works.block_on(async { client_with(&url(server.port()), Settings::default()) });
    let still = runtime();
    let mut first = Box::pin(client.lock("a").acquire());
    {
        let _entered = still.enter();
        // This poll begins to open the connection.
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    works.block_on(async {
        let guard = soon(client.lock("b").acquire()).await.expect("a guard");
        guard.release().await.expect("a release");
    });
    // A future may be dropped here too, on a thread without a runtime.
    drop(first);
    works.block_on(async { assert!(soon(client.close()).await) });
    assert_eq!(server.client().call("DBSIZE").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_the_server_has_shortened_is_renewed_in_time() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(Duration::from_secs(30)).acquire().await.expect("a guard");
    let mut observer = server.client();
    observer.call("CONFIG SET lock.max-lease 2500");
    guard.renew().await.expect("a renewal");
    assert!(guard.lease_left() <= Duration::from_millis(2_500));
    eventually("it is renewed", || observer.holder("k").held_for > 4_000);
    assert!(guard.is_held());
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_refused_after_a_disconnect_is_repeated_with_pauses() {
    let server = Server::start();
    let renewals = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&renewals);
    let proxy = Proxy::start(server.port(), move |request| {
        counted.fetch_add(u64::from(request[0].text() == "LOCK.RENEW"), Ordering::Relaxed);
        Fate::Carried
    });
    let client = client_with(&url(proxy.port()), Settings::default());
    let lock = client.lock("k").lease(Duration::from_secs(6));
    let guard = lock.acquire().await.expect("a guard");
    let mut observer = server.client();
    eventually("it is renewed", || renewals.load(Ordering::Relaxed) > 0);
    observer.call("ACL SETUSER default -lock.renew");
    proxy.cut();
    soon(guard.lost()).await;
    let renewals = renewals.load(Ordering::Relaxed);
    assert!((5..50).contains(&renewals), "{renewals}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_that_is_refused_for_one_key_does_not_lose_the_others() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.locks(["a", "b"]).slots(2).acquire().await.expect("a guard");
    let mut observer = server.client();
    observer.call("ACL SETUSER default resetkeys ~a");
    let refused = guard.downgrade(Limit::Slots(3)).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    observer.call("ACL SETUSER default allkeys");
    guard.renew().await.expect("it is held");
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_downgrade_that_the_server_refuses_does_not_lose_the_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let client = client_with(&url(proxy.port()), Settings::default());
    let lock = client.locks(["a", "b"]).slots(4).lease(Duration::from_millis(1_500));
    let guard = lock.acquire().await.expect("a guard");
    // Without this delay, the server may refuse the downgrade before the poll has ended.
    proxy.delay(Duration::from_millis(100));
    {
        let mut smaller = std::pin::pin!(guard.downgrade(Limit::Slots(2)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(smaller.as_mut().poll(&mut context).is_pending());
    }
    proxy.delay(Duration::ZERO);
    let mut observer = server.client();
    eventually("it is held for two leases", || observer.holder("a").held_for > 3_000 || !guard.is_held());
    assert!(guard.is_held());
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_downgrades_that_the_server_refuses_do_not_lose_the_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let client = client_with(&url(proxy.port()), Settings::default().response_limit(Duration::from_secs(1)));
    let guard =
        client.lock("k").slots(4).lease(Duration::from_millis(1_500)).acquire().await.expect("a guard");
    proxy.set_plan(fates("LOCK.RENEW", std::iter::repeat(Fate::Held)));
    {
        let mut smaller = std::pin::pin!(guard.downgrade(Limit::Slots(2)));
        assert!(smaller.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let refused = tokio::spawn(async move { (guard.downgrade(Limit::Slots(3)).await, guard) });
    eventually("the downgrades are on their way", || proxy.losses().held >= 1);
    proxy.set_plan(|_| Fate::Carried);
    let (refused, guard) = soon(refused).await.expect("no panic");
    assert_eq!(refused.expect_err("an error").code(), Some("LIMIT"));
    let mut observer = server.client();
    eventually("it is held for two leases", || observer.holder("k").held_for > 3_000 || !guard.is_held());
    assert!(guard.is_held());
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_limit_that_ends_during_a_downgrade_ends_the_call_as_lost() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let client = client_with(&url(proxy.port()), Settings::default());
    let lock = client.locks(["a", "b"]).lease(LONG).hold_limit(Duration::from_secs(2));
    let guard = lock.acquire().await.expect("a guard");
    proxy.set_plan(fates("LOCK.RENEW", std::iter::repeat(Fate::Held)));
    let lost = soon(guard.downgrade(Limit::Shared)).await;
    assert_eq!(lost.expect_err("an error").to_string(), "the lock a is lost: its hold limit is over");
    assert!(!guard.is_held());
    proxy.set_plan(|_| Fate::Carried);
    let mut observer = server.client();
    eventually("the server ends the tenure, too", || observer.call("DBSIZE").int() == 0);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_wait_closes_its_connection_that_still_opens() {
    let server = Server::start();
    let mut observer = server.client();
    observer.acquire("k other PX 600000");
    // Only the shared connection gets the reply to its handshake.
    let proxy = Proxy::start(server.port(), fates("HELLO", [Fate::Carried, Fate::Silence(LONG)]));
    let client = client_with(&url(proxy.port()), Settings::default().response_limit(LONG));
    let waiter = tokio::spawn(client.lock("k").acquire());
    eventually("the connection of the wait is being opened", || proxy.replies_lost() == 1);
    waiter.abort();
    // The connections of the observer and of the client stay.
    eventually("it is closed", || observer.stat("clients", "connected_clients") == 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_without_a_waiting_connection_get_one_in_their_order() {
    const CALLERS: u64 = 10;
    let server = Server::start();
    let mut observer = server.client();
    let keys: Vec<String> = (0..CALLERS).map(|number| format!("k{number}")).collect();
    for key in &keys {
        observer.acquire(&format!("{key} other PX 600000"));
    }
    let client = client_with(&url(server.port()), Settings::default().waiting_connections(1));
    let mut waiters = Vec::new();
    for key in &keys {
        waiters.push(tokio::spawn(client.lock(key).acquire()));
        observer.see_waiters(&keys[0], 1);
        // The next caller begins while this caller pauses between its tries.
        let before = calls(&mut observer, "lock.acquire");
        eventually("it has tried", || {
            waiters.len() == 1 || calls(&mut observer, "lock.acquire") >= before + 4
        });
    }
    for (key, waiter) in keys.iter().zip(waiters) {
        observer.see_waiters(key, 1);
        assert_eq!(observer.call(format!("LOCK.RELEASE {key} other ALL")).int(), 0);
        granted(waiter).await.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_try_of_several_keys_does_not_end_the_next_tenure_of_a_named_owner() {
    let server = Server::start();
    let other = client(&server).await.lock("a").acquire().await.expect("a guard");
    let mut tries = 0;
    let proxy = Proxy::start(server.port(), move |request| {
        let is_try = request[0].text() == "LOCK.ACQUIRE" && request[1].text() == "b";
        tries += u32::from(is_try);
        if is_try && tries == 1 { Fate::Held } else { Fate::Carried }
    });
    let settings = Settings::default().response_limit(Duration::from_millis(500));
    let client = client_with(&url(proxy.port()), settings);
    let waiter = tokio::spawn(client.locks(["a", "b"]).owner("me").lease(LONG).acquire());
    let mut observer = server.client();
    eventually("the try is on its way", || proxy.losses().held == 1);
    observer.see_waiters("a", 1);
    other.release().await.expect("a release");
    let guard = granted(waiter).await;
    let before = calls(&mut observer, "lock.acquire");
    let connections = observer.stat("clients", "connected_clients");
    proxy.set_plan(|_| Fate::Carried);
    eventually("the try has arrived", || calls(&mut observer, "lock.acquire") > before);
    // Everything that the client has sent on the connection of the try arrives before this connection is closed.
    eventually("a connection is closed", || observer.stat("clients", "connected_clients") < connections);
    guard.renew().await.expect("it is held");
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_waits_for_what_it_gives_back() {
    let server = Server::start();
    let other = client(&server).await.lock("b").acquire().await.expect("a guard");
    let proxy = Proxy::start(server.port(), |_| Fate::Carried);
    let client = client_with(&url(proxy.port()), Settings::default());
    let several = client.locks(["a", "b"]).lease(LONG);
    for lock in
        [several.clone(), several.owner("me"), client.lock("a").replicas(1, Duration::from_millis(50))]
    {
        proxy.set_plan(fates("LOCK.RELEASE", [Fate::Held]));
        let held = proxy.losses().held;
        let begun = Instant::now();
        let failed = soon(lock.try_acquire()).await;
        assert!(begun.elapsed() >= GIVE_UP_LIMIT, "{:?}", begun.elapsed());
        assert_eq!(proxy.losses().held, held + 1);
        assert!(matches!(failed, Err(Error::Busy { .. } | Error::Unreplicated { .. })), "{failed:?}");
        proxy.set_plan(|_| Fate::Carried);
        let mut observer = server.client();
        eventually("it is given back", || observer.info("a").is_none());
    }
    other.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_try_is_given_back_while_the_server_waits_for_replicas() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    let lock = client.lock("k").lease(LONG).replicas(1, LONG / 2);
    for lock in [lock.clone(), lock.owner("me")] {
        let trying = tokio::spawn(lock.try_acquire());
        eventually("it is granted", || observer.info("k").is_some());
        trying.abort();
        eventually("the lock is released", || observer.info("k").is_none());
        assert!(soon(client.close()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_release_of_a_dropped_guard_leaves_a_silent_connection_after_the_response_limit() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), fates("LOCK.RELEASE", [Fate::Held]));
    let client = client_with(&url(proxy.port()), Settings::default());
    drop(client.lock("k").lease(LONG).acquire().await.expect("a guard"));
    let mut observer = server.client();
    eventually("it is released", || observer.info("k").is_none());
    let connections = observer.stat("clients", "connected_clients");
    proxy.set_plan(|_| Fate::Carried);
    // Everything that the client has sent on the silent connection arrives before this connection is closed.
    eventually("a connection is closed", || observer.stat("clients", "connected_clients") < connections);
    assert_eq!(calls(&mut observer, "lock.release"), 2, "the silent connection is used again");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_renewed_while_the_primary_accepts_no_other_connection() {
    let server = Server::start();
    let sentinels = Sentinels::watch(&server, 0);
    let client = client_with(&sentinels.url(), Settings::default());
    let guard = client.lock("k").lease(Duration::from_millis(1_500)).acquire().await.expect("a guard");
    let mut observer = server.client();
    observer.acquire("busy other PX 600000");
    let connections = observer.stat("clients", "connected_clients");
    assert_eq!(observer.call(format!("CONFIG SET maxclients {connections}")), Reply::ok());
    let waiter = tokio::spawn(client.lock("busy").wait(LONG).acquire());
    eventually("its connection is refused", || observer.stat("stats", "rejected_connections") > 0);
    let renewals = calls(&mut observer, "lock.renew");
    eventually("it is renewed for two leases", || {
        calls(&mut observer, "lock.renew") >= renewals + 6 || !guard.is_held()
    });
    assert!(guard.is_held(), "a healthy server has the lock");
    waiter.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_connection_a_full_server_refuses_polls_until_the_server_has_room() {
    let server = Server::start();
    let client = client_with(&url(server.port()), Settings::default().waiting_connections(1));
    // This acquisition opens the shared connection.
    client.lock("other").acquire().await.expect("a guard").release().await.expect("a release");
    let mut observer = server.client();
    observer.acquire("k other PX 600000");
    let connections = observer.stat("clients", "connected_clients");
    assert_eq!(observer.call(format!("CONFIG SET maxclients {connections}")), Reply::ok());
    let waiter = tokio::spawn(client.lock("k").lease(LONG).acquire());
    eventually("its connection is refused again and again", || {
        observer.stat("stats", "rejected_connections") > 2
    });
    assert!(calls(&mut observer, "lock.acquire") >= 4, "it polls");
    assert_eq!(observer.call("LOCK.RELEASE k other ALL").int(), 0);
    let guard = granted(waiter).await;
    assert_eq!(calls(&mut observer, "lock.renew"), 0, "a try gets the whole lease");
    observer.acquire("l other PX 600000");
    let waiter = tokio::spawn(client.lock("l").acquire());
    let refused = observer.stat("stats", "rejected_connections");
    eventually("its connection is refused", || observer.stat("stats", "rejected_connections") > refused);
    observer.call("CONFIG SET maxclients 1000");
    observer.see_waiters("l", 1);
    assert_eq!(observer.call("LOCK.RELEASE l other ALL").int(), 0);
    granted(waiter).await.release().await.expect("a release");
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_hangs_delays_a_lookup_by_half_the_response_limit() {
    let (former, primary) = (Server::start(), Server::start());
    let proxy = Proxy::start_two_way(former.port());
    proxy.set_plan(|request| if request[0].text() == "ROLE" { Fate::Held } else { Fate::Carried });
    let sentinels = Sentinels::watch_with(&former, 0, |_| {
        vec![
            format!("sentinel monitor locks 127.0.0.1 {} 2", proxy.port()),
            "sentinel down-after-milliseconds locks 600000".to_owned(),
        ]
    });
    let limit = Duration::from_secs(8);
    let settings = Settings::default().response_limit(limit).patience(limit * 3 / 4);
    let client = client_with(&sentinels.url(), settings);
    let trying = tokio::spawn(client.lock("k").try_acquire());
    eventually("the former primary is asked", || proxy.losses().held > 0);
    for sentinel in sentinels.all() {
        let mut sentinel = sentinel.client();
        assert_eq!(sentinel.call("SENTINEL REMOVE locks"), Reply::ok());
        let monitor = format!("SENTINEL MONITOR locks 127.0.0.1 {} 2", primary.port());
        assert_eq!(sentinel.call(monitor), Reply::ok());
    }
    let guard = granted(trying).await;
    proxy.set_plan(|_| Fate::Carried);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_a_redirection_names_is_asked_before_a_silent_node() {
    let setup = Setup::new().config("cluster-require-full-coverage no");
    let cluster = Cluster::start_primaries(setup, 5);
    let [silent, seed, other, ..] = cluster.nodes() else { panic!("five nodes") };
    let mut keys = (0..).map(|number| format!("k{number}"));
    let mut key = || keys.find(|key| cluster.owner(slot_of(key)).port() == other.port()).expect("a key");
    let (first, second) = (key(), key());
    silent.freeze();
    let limit = Duration::from_secs(2);
    let settings = Settings::default().response_limit(limit).patience(limit * 7 / 4);
    let seeds = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", silent.port(), seed.port());
    let client = client_with(&seeds, settings);
    client.lock(first).try_acquire().await.expect("a guard").release().await.expect("a release");
    seed.freeze();
    client.lock(second).try_acquire().await.expect("a guard").release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_keys_that_need_replicas_follow_a_slot_that_moves() {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let (from, to) = cluster.owner_and_other("k");
    let client = client_with(&format!("redis+cluster://127.0.0.1:{}", from.port()), Settings::default());
    let stays = client.lock("{k}stays").lease(LONG).acquire().await.expect("a guard");
    let moving = cluster.begin_to_move(slot_of("k"), to);
    let keys: Vec<String> = (0..50).map(|number| format!("{{k}}{number}")).collect();
    let lock = client.locks(&keys).lease(LONG).replicas(0, LONG / 2);
    let guard = soon(lock.clone().acquire()).await.expect("a guard");
    // The target redirects commands without ASKING, so its keys are counted.
    assert_eq!(to.client().call("DBSIZE").int(), 50);
    assert_eq!(from.client().call("DBSIZE").int(), 1);
    soon(guard.release()).await.expect("a release");
    moving.carry_all();
    moving.end();
    soon(lock.acquire()).await.expect("a guard").release().await.expect("a release");
    stays.release().await.expect("a release");
    assert_eq!(to.client().call("DBSIZE").int(), 0);
}
