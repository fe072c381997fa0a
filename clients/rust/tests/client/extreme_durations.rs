//! Very long durations.

use crate::{client, client_with, granted, soon, url};
use lockward_client::Settings;
use lockward_client::redlock::Redlock;
use lockward_tests::{Server, eventually};
use std::time::Duration;

/// Almost as long as the longest lease that a server accepts.
const YEARS: Duration = Duration::from_secs(9 * 365 * 24 * 3_600);

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_years_does_not_delay_other_renewals() {
    let server = Server::start();
    let client = client(&server).await;
    let lease = Duration::from_secs(3);
    let guard = client.lock("k").lease(lease).acquire().await.expect("a guard");
    let years = client.lock("years").lease(YEARS).acquire().await.expect("a guard");
    let limited = client.lock("limited").lease(YEARS).hold_limit(YEARS).acquire().await.expect("a guard");
    let mut observer = server.client();
    eventually("it is held for longer than a lease", || observer.holder("k").held_for > 4_000);
    assert!(guard.is_held() && years.is_held() && limited.is_held());
    for guard in [guard, years, limited] {
        guard.release().await.expect("a release");
    }
    assert_eq!(observer.call("DBSIZE").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_durations_are_accepted() {
    let server = Server::start();
    let settings = Settings::default().patience(Duration::MAX).response_limit(Duration::MAX);
    let settings = settings.waiting_connections(usize::MAX);
    let client = client_with(&url(server.port()), settings.clone());
    let lock = client.lock("k").hold_limit(Duration::MAX).wait(Duration::MAX).replicas(0, Duration::MAX);
    let guard = soon(lock.clone().acquire()).await.expect("a guard");
    let waiter = tokio::spawn(lock.acquire());
    server.client().see_waiters("k", 1);
    guard.renew().await.expect("a renewal");
    guard.release().await.expect("a release");
    granted(waiter).await.release().await.expect("a release");
    let guard = soon(client.lock("k").lease(Duration::MAX).acquire()).await.expect("a guard");
    assert!(guard.lease_left() > YEARS, "{:?}", guard.lease_left());
    guard.release().await.expect("a release");
    let redlock = Redlock::new([url(server.port()).parse().expect("an address")], settings);
    let lock = redlock.expect("a client").lock("k").lease(Duration::MAX).hold_limit(Duration::MAX);
    let guard = soon(lock.wait(Duration::MAX).acquire()).await.expect("a guard");
    guard.renew().await.expect("a renewal");
    guard.release().await.expect("a release");
    assert_eq!(server.client().call("DBSIZE").int(), 0);
}
