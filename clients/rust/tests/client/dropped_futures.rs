//! Futures that are dropped, and runtimes that end.

use crate::{LONG, client, soon, url};
use lockward_client::Client;
use lockward_tests::{Random, Server, eventually, rounds};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_to_a_dropped_acquisition_is_released() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    let mut random = Random::new();
    for round in 0..rounds(150, 3_000) {
        let guard = soon(client.lock("k").lease(LONG).acquire()).await.expect("a guard");
        let lock = client.lock("k").lease(LONG);
        let lock = if round % 2 == 0 { lock } else { lock.owner("me") };
        let waiter = tokio::spawn(lock.acquire());
        if round % 3 == 0 {
            observer.see_waiters("k", 1);
        }
        let releasing = tokio::spawn(guard.release());
        for _ in 0..random.within(0..40) {
            tokio::task::yield_now().await;
        }
        waiter.abort();
        // If the lock was granted before the abort, the task has ended with a guard.
        if let Ok(won) = waiter.await {
            won.expect("a guard").release().await.expect("a release");
        }
        releasing.await.expect("no panic").expect("a release");
    }
    eventually("the lock is free", || observer.info("k").is_none());
}

#[test]
fn guards_may_be_used_after_their_runtime_has_ended() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = url(server.port());
    let (client, guard, other) = runtime.block_on(async {
        let client = Client::connect(&url).await.expect("a client");
        let lease = Duration::from_secs(3);
        let guard = client.lock("k").lease(lease).acquire().await.expect("a guard");
        let other = client.lock("other").lease(lease).acquire().await.expect("a guard");
        tokio::spawn(client.lock("k").acquire());
        server.client().see_waiters("k", 1);
        (client, guard, other)
    });
    drop(runtime);
    assert!(guard.is_held(), "the lease of the guard is not over");
    drop(other);
    eventually("it is lost when its lease is over", || !guard.is_held());
    let mut observer = server.client();
    eventually("no lock is held", || observer.call("DBSIZE").int() == 0);
    drop(guard);
    let result = tokio::runtime::Runtime::new().expect("a runtime").block_on(client.lock("k").try_acquire());
    drop(result);
    assert!(Client::new(url.parse().expect("an address"), lockward_client::Settings::default()).is_err());
}
