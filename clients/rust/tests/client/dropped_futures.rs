//! Futures that are dropped, and runtimes that end.

use crate::{LONG, client, soon, url};
use lockward_client::{Client, Error, Loss};
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
        // If the task has ended before the abort, it returns a guard, and the test must release the guard.
        if let Ok(won) = waiter.await {
            won.expect("a guard").release().await.expect("a release");
        }
        releasing.await.expect("no panic").expect("a release");
    }
    eventually("the lock is free", || observer.info("k").is_none());
}

#[test]
fn a_runtime_of_callers_that_ends_leaves_nothing() {
    let server = Server::start();
    let (works, callers) = [(); 2].map(|()| tokio::runtime::Runtime::new().expect("a runtime")).into();
    let client = works.block_on(client(&server));
    let holder = client.lock("k").lease(LONG);
    let guard = callers.block_on(holder.acquire()).expect("a guard");
    callers.spawn(async move {
        guard.lost().await;
    });
    for _ in 0..3 {
        callers.spawn(client.lock("k").lease(LONG).acquire());
        callers.spawn(client.locks(["k", "l"]).lease(LONG).acquire());
    }
    let mut observer = server.client();
    observer.see_waiters("k", 6);
    // The runtime drops the guard and the acquisitions.
    drop(callers);
    works.block_on(async { assert!(soon(client.close()).await) });
    eventually("nothing is left", || {
        observer.call("DBSIZE").int() == 0 && observer.call("LOCK.TOP").items().is_empty()
    });
    let guard = works.block_on(async { soon(client.lock("k").try_acquire()).await });
    works.block_on(guard.expect("a guard").release()).expect("a release");
}

#[test]
fn calls_end_after_the_runtime_of_the_client_has_ended() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (works, callers) = (runtime(), runtime());
    let settings = lockward_client::Settings::default().patience(Duration::from_millis(500));
    let (client, guard) = works.block_on(async {
        let client = crate::client_with(&url(server.port()), settings);
        let guard = client.lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
        (client, guard)
    });
    drop(works);
    callers.block_on(async {
        let (failed, waited, renewed, loss) = tokio::join!(
            soon(client.lock("l").try_acquire()),
            soon(client.lock("l").wait(Duration::from_millis(700)).acquire()),
            soon(guard.renew()),
            soon(guard.lost()),
        );
        assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
        assert!(matches!(waited, Err(Error::Unreachable { .. })), "{waited:?}");
        assert!(matches!(renewed, Err(Error::Unreachable { .. })), "{renewed:?}");
        assert_eq!(loss, Loss::LeaseOver);
        soon(client.close()).await;
    });
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
