//! Grants that replicas confirm.

use crate::{LONG, client, soon};
use lockward_client::Error;
use lockward_tests::{Link, Server, eventually};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_no_replica_confirms_is_released() {
    let primary = Server::start();
    let client = client(&primary).await;
    let lock = client.lock("k").lease(LONG).replicas(1, Duration::from_millis(50));
    let result = lock.clone().acquire().await.expect_err("an error");
    assert!(matches!(result, Error::Unreplicated { reached: 0, wanted: 1 }), "{result}");
    let mut observer = primary.client();
    eventually("it is released", || observer.info("k").is_none());
    let replica = Server::start_replica_of(&primary);
    let guard = lock.replicas(1, LONG / 2).acquire().await.expect("a guard");
    assert_eq!(replica.client().holder("k").token, guard.token() as i64);
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_to_a_waiter_that_no_replica_confirms_is_released() {
    let primary = Server::start();
    let replica = Server::start();
    let link = Link::to(&primary);
    replica.follow_through(&link, &primary);
    let client = client(&primary).await;
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    let lock = client.lock("k").lease(LONG).wait(LONG);
    let waiter = tokio::spawn(lock.clone().replicas(1, Duration::from_millis(200)).acquire());
    let mut observer = primary.client();
    observer.see_waiters("k", 1);
    // The primary knows that the replica has received everything before the hand-off.
    observer.call("SET before x");
    assert_eq!(observer.call("WAIT 1 20000").int(), 1);
    link.swallow();
    guard.release().await.expect("a release");
    let result = soon(waiter).await.expect("no panic").expect_err("an error");
    assert!(matches!(result, Error::Unreplicated { reached: 0, wanted: 1 }), "{result}");
    link.mend();
    let guard = lock.replicas(1, LONG / 2).acquire().await.expect("a guard");
    assert_eq!(replica.client().holder("k").token, guard.token() as i64);
    guard.release().await.expect("a release");
}
