//! Futures that are polled so many times and dropped, wherever they stand then.

use crate::{LONG, client};
use lockward_client::{Client, Guard, Lock};
use lockward_tests::Server;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// More than any of them takes.
const POLLS: usize = 200;

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
enum Leave {
    /// As it goes to sleep.
    Asleep,
    /// When it has been woken.
    Woken,
}

/// Polls a future so many times at most. What it came to, if it came to anything.
async fn polled<T>(future: impl Future<Output = T>, times: usize, leave: Leave) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match (future.as_mut().poll(context), leave) {
            (Poll::Ready(output), _) => Poll::Ready(Some(output)),
            (Poll::Pending, Leave::Asleep) if left == 0 => Poll::Ready(None),
            (Poll::Pending, Leave::Asleep | Leave::Woken) => Poll::Pending,
        }
    })
    .await
}

/// The locks that are asked for, each in a way of its own.
fn ways(client: &Client) -> [Lock; 4] {
    let lock = client.lock("k").lease(LONG).wait(Duration::from_secs(60));
    [lock.clone(), lock.clone().owner("me"), lock.clone().wait(Duration::ZERO), lock.replicas(0, LONG / 2)]
}

async fn see_clean(server: &Server, client: &Client, what: &str) {
    crate::soon(client.settled()).await;
    let mut observer = server.client();
    lockward_tests::eventually(&format!("nothing is left: {what}"), || {
        observer.call("DBSIZE").int() == 0 && observer.call("LOCK.TOP").items().is_empty()
    });
}

async fn leave_everywhere() {
    let server = Server::start();
    let client = client(&server).await;
    for leave in [Leave::Asleep, Leave::Woken] {
        for way in 0..ways(&client).len() {
            let lock = || ways(&client)[way].clone();
            // It is free.
            for times in 0..POLLS {
                let done = polled(lock().acquire(), times, leave).await;
                let is_done = done.is_some();
                drop(done);
                see_clean(&server, &client, &format!("{leave:?} after {times} polls of {way}, free")).await;
                if is_done {
                    break;
                }
            }
            // It is held, and given back meanwhile.
            for times in 0..POLLS {
                let holder = client.lock("k").lease(LONG).acquire().await.expect("a guard");
                let giving_back = tokio::spawn(async move {
                    for _ in 0..times {
                        tokio::task::yield_now().await;
                    }
                    holder.release().await
                });
                let done = polled(lock().acquire(), times, leave).await;
                let is_done = done.is_some();
                drop(done);
                giving_back.await.expect("no panic").expect("a release");
                see_clean(&server, &client, &format!("{leave:?} after {times} polls of {way}, held")).await;
                if is_done {
                    break;
                }
            }
        }
        for times in 0..POLLS {
            let held =
                || async { client.lock("k").lease(LONG).owner("me").acquire().await.expect("a guard") };
            let guard = held().await;
            let mut done = [
                polled(guard.re_enter(), times, leave).await.is_some(),
                polled(client.lock("k").owner("me").acquire(), times, leave).await.is_some(),
                polled(guard.renew(), times, leave).await.is_some(),
            ]
            .into_iter()
            .all(|done| done);
            let lost = guard.lost();
            let again = guard.re_enter().await.expect("a guard");
            done &= polled(again.release(), times, leave).await.is_some();
            assert!(guard.is_held());
            done &= polled(Guard::release(guard), times, leave).await.is_some();
            assert_eq!(crate::soon(lost).await, lockward_client::Loss::Released);
            see_clean(&server, &client, &format!("{leave:?} after {times} polls of a guard's calls")).await;
            if done {
                break;
            }
        }
    }
}

#[tokio::test]
async fn whoever_leaves_after_any_poll_leaves_nothing_behind() {
    leave_everywhere().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_one_beside_other_threads() {
    leave_everywhere().await;
}

#[tokio::test]
async fn nor_does_one_whose_client_does_not_know_the_lease_yet() {
    let server = Server::start();
    for leave in [Leave::Asleep, Leave::Woken] {
        for times in 0..POLLS {
            let client = client(&server).await;
            let done = polled(client.lock("k").acquire(), times, leave).await;
            let is_done = done.is_some();
            drop(done);
            see_clean(&server, &client, &format!("{leave:?} after {times} polls, unknown")).await;
            if is_done {
                break;
            }
        }
    }
}
