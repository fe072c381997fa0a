//! Acquiring, holding and releasing.

use crate::{LONG, calls, client, hasty, soon};
use lockward_client::{Error, Loss};
use lockward_tests::{Server, eventually};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_until_it_is_released() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").acquire().await.expect("a guard");
    let mut observer = server.client();
    let holder = observer.holder("k");
    assert_eq!(holder.tenure(), (&*String::from_utf8_lossy(guard.owner()), 1, guard.token() as i64));
    assert!(guard.is_held() && guard.holds() == 1 && guard.key() == b"k");
    assert!(guard.lease_left() <= Duration::from_secs(30) && guard.lease_left() > Duration::from_secs(20));
    let lost = guard.lost();
    guard.release().await.expect("a release");
    assert_eq!(observer.info("k"), None);
    assert_eq!(soon(lost).await, Loss::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_is_busy_for_others() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").try_acquire().await.expect("a guard");
    assert!(matches!(client.lock("k").try_acquire().await, Err(Error::Busy)));
    let limit = Duration::from_millis(30);
    assert!(matches!(client.lock("k").wait(limit).acquire().await, Err(Error::Busy)));
    assert!(server.client().queue("k").is_empty());
    guard.release().await.expect("a release");
    client.lock("k").try_acquire().await.expect("a guard").release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_guard_is_one_hold() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    let first = client.lock("k").acquire().await.expect("a guard");
    let second = first.re_enter().await.expect("a second guard");
    assert_eq!((second.token(), second.owner(), second.holds()), (first.token(), first.owner(), 2));
    assert_eq!(observer.holder("k").holds, 2);
    first.release().await.expect("a release");
    assert_eq!(observer.holder("k").holds, 1);
    assert!(second.is_held());
    second.release().await.expect("a release");
    assert_eq!(observer.info("k"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_owner_enters_again_within_one_client() {
    let server = Server::start();
    let client = client(&server).await;
    let mut observer = server.client();
    let lock = client.lock("k").owner(b"\0\xffme");
    let first = lock.clone().acquire().await.expect("a guard");
    let second = lock.clone().acquire().await.expect("a second guard");
    assert_eq!((first.token(), observer.holder("k").holds), (second.token(), 2));
    drop(first);
    drop(second);
    eventually("both are released", || observer.info("k").is_none());
    let third = lock.acquire().await.expect("a third guard");
    assert_eq!(third.holds(), 1);
    third.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_releases_the_lock() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    // A thread without a runtime drops it.
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    let mut observer = server.client();
    eventually("it is released", || observer.info("k").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_until_the_guard_is_released() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    let mut observer = server.client();
    eventually("it is renewed", || calls(&mut observer, "lock.renew") >= 4);
    assert!(guard.is_held());
    assert_eq!(observer.holder("k").token, guard.token() as i64);
    guard.release().await.expect("a release");
    let before = calls(&mut observer, "lock.renew");
    let other = client.lock("other").lease(Duration::from_secs(2)).acquire().await.expect("a guard");
    eventually("another one is renewed", || calls(&mut observer, "lock.renew") >= before + 3);
    assert_eq!(observer.info("k"), None);
    other.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_without_renewal_ends_in_the_client_before_it_ends_at_the_server() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.lock("k").lease(Duration::from_millis(200)).without_renewal();
    let guard = lock.acquire().await.expect("a guard");
    let next = client.lock("k").acquire();
    let (loss, next) = tokio::join!(guard.lost(), async {
        let next = next.await.expect("a guard");
        (guard.is_held(), next)
    });
    assert_eq!(loss, Loss::LeaseOver);
    let (was_held, next) = next;
    assert!(!was_held && !guard.is_held() && guard.lease_left() == Duration::ZERO);
    assert!(matches!(guard.renew().await, Err(Error::Lost(Loss::LeaseOver))));
    assert!(matches!(guard.re_enter().await, Err(Error::Lost(Loss::LeaseOver))));
    assert!(matches!(guard.release().await, Err(Error::Lost(Loss::LeaseOver))));
    assert!(next.is_held());
    next.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_limit_ends_renewal() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = client.lock("k").lease(Duration::from_millis(1_500)).hold_limit(Duration::from_secs(3));
    let guard = lock.acquire().await.expect("a guard");
    let acquired = std::time::Instant::now();
    assert_eq!(soon(guard.lost()).await, Loss::LeaseOver);
    assert!(acquired.elapsed() > Duration::from_secs(2), "it was renewed at first");
    let mut observer = server.client();
    eventually("the server ends it, too", || observer.info("k").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_lock_is_lost_at_the_next_renewal() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(Duration::from_secs(3)).acquire().await.expect("a guard");
    server.client().call("DEL k");
    assert_eq!(soon(guard.lost()).await, Loss::NotHeld("the lock is free".into()));
    assert!(!guard.is_held());
    assert!(matches!(guard.release().await, Err(Error::Lost(Loss::NotHeld(_)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn release_reports_that_the_lock_was_lost() {
    let server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    server.client().call("DEL k");
    assert!(guard.is_held(), "the client cannot know");
    let result = guard.release().await;
    assert!(
        matches!(&result, Err(Error::Lost(Loss::NotHeld(text))) if text == "the lock is free"),
        "{result:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn server_errors_and_invalid_options_are_reported() {
    let server = Server::start();
    let client = client(&server).await;
    let mut other = server.client();
    other.call("SET text x");
    let result = client.lock("text").acquire().await.expect_err("an error");
    assert_eq!(result.code(), Some("WRONGTYPE"), "{result}");
    other.call("CONFIG SET lock.max-waiters 0");
    let guard = client.lock("k").acquire().await.expect("a guard");
    let result = client.lock("k").acquire().await.expect_err("an error");
    assert_eq!(result.code(), Some("MAXWAITERS"), "{result}");
    let result = client.lock("k").lease(Duration::from_micros(10)).acquire().await.expect_err("an error");
    assert!(matches!(result, Error::Invalid(_)), "{result}");
    let result = client.lock("k").owner("").acquire().await.expect_err("an error");
    assert!(matches!(result, Error::Invalid(_)), "{result}");
    let result = client.lock("l").replicas(1, Duration::from_secs(30)).acquire().await.expect_err("an error");
    assert!(matches!(result, Error::Invalid(_)), "{result}");
    let far = client.lock("far").lease(Duration::MAX).acquire().await.expect_err("an error");
    assert_eq!(far.code(), Some("ERR"), "{far}");
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_unreachable() {
    let nobody = lockward_tests::free_port();
    let result = hasty(nobody).lock("k").try_acquire().await.expect_err("an error");
    assert!(matches!(result, Error::Unreachable(_)), "{result}");
    let server = Server::start();
    let client = hasty(server.port());
    let guard = client.lock("k").acquire().await.expect("a guard");
    server.freeze();
    let result = client.lock("other").try_acquire().await.expect_err("an error");
    assert!(matches!(result, Error::Unreachable(_)), "{result}");
    assert!(matches!(guard.renew().await, Err(Error::Unreachable(_))));
    assert!(guard.is_held(), "its lease is not over");
    let result = guard.release().await.expect_err("an error");
    assert!(matches!(result, Error::Unreachable(_)), "{result}");
    server.thaw();
    let mut observer = server.client();
    eventually("both are released", || observer.call("DBSIZE").int() == 0);
}
