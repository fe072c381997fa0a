//! Futures that are dropped after each possible number of polls.

use crate::{LONG, client, soon};
use lockward_client::{Client, Guard, Lock};
use lockward_tests::Server;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// More polls than any of the futures takes.
const POLLS: usize = 200;

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
enum DropWhen {
    /// Right after its last poll.
    Asleep,
    /// When it has been woken after its last poll.
    Woken,
}

/// Polls a future at most `times` times, then drops it. Returns its output if it has completed.
async fn polled<T>(future: impl Future<Output = T>, times: usize, when: DropWhen) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match (future.as_mut().poll(context), when) {
            (Poll::Ready(output), _) => Poll::Ready(Some(output)),
            (Poll::Pending, DropWhen::Asleep) if left == 0 => Poll::Ready(None),
            (Poll::Pending, DropWhen::Asleep | DropWhen::Woken) => Poll::Pending,
        }
    })
    .await
}

/// Locks with different options.
fn variants(client: &Client) -> [Lock; 4] {
    let lock = client.lock("k").lease(LONG).wait(Duration::from_secs(60));
    [lock.clone(), lock.clone().owner("me"), lock.clone().wait(Duration::ZERO), lock.replicas(0, LONG / 2)]
}

async fn see_clean(server: &Server, client: &Client, what: &str) {
    soon(client.settled()).await;
    let mut observer = server.client();
    lockward_tests::eventually(&format!("nothing is left: {what}"), || {
        observer.call("DBSIZE").int() == 0 && observer.call("LOCK.TOP").items().is_empty()
    });
}

async fn drop_after_each_poll() {
    let server = Server::start();
    let client = client(&server).await;
    for when in [DropWhen::Asleep, DropWhen::Woken] {
        for variant in 0..variants(&client).len() {
            let lock = || variants(&client)[variant].clone();
            // The lock is free.
            for times in 0..POLLS {
                let done = polled(lock().acquire(), times, when).await;
                let is_done = done.is_some();
                drop(done);
                see_clean(&server, &client, &format!("{when:?} after {times} polls of {variant}, free"))
                    .await;
                if is_done {
                    break;
                }
            }
            // The lock is held, and released meanwhile.
            for times in 0..POLLS {
                let holder = client.lock("k").lease(LONG).acquire().await.expect("a guard");
                let giving_back = tokio::spawn(async move {
                    for _ in 0..times {
                        tokio::task::yield_now().await;
                    }
                    holder.release().await
                });
                let done = polled(lock().acquire(), times, when).await;
                let is_done = done.is_some();
                drop(done);
                giving_back.await.expect("no panic").expect("a release");
                see_clean(&server, &client, &format!("{when:?} after {times} polls of {variant}, held"))
                    .await;
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
                polled(guard.re_enter(), times, when).await.is_some(),
                polled(client.lock("k").owner("me").acquire(), times, when).await.is_some(),
                polled(guard.renew(), times, when).await.is_some(),
            ]
            .into_iter()
            .all(|done| done);
            let lost = guard.lost();
            let again = guard.re_enter().await.expect("a guard");
            done &= polled(again.release(), times, when).await.is_some();
            assert!(guard.is_held());
            done &= polled(Guard::release(guard), times, when).await.is_some();
            assert_eq!(soon(lost).await, lockward_client::Loss::Released);
            see_clean(&server, &client, &format!("{when:?} after {times} polls of a guard's calls")).await;
            if done {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_future_dropped_after_any_poll_leaves_nothing() {
    drop_after_each_poll().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_future_dropped_after_any_poll_beside_other_threads_leaves_nothing() {
    drop_after_each_poll().await;
}

#[tokio::test]
async fn a_future_dropped_after_any_poll_of_the_first_acquisition_leaves_nothing() {
    let server = Server::start();
    for when in [DropWhen::Asleep, DropWhen::Woken] {
        for times in 0..POLLS {
            let client = client(&server).await;
            let done = polled(client.lock("k").acquire(), times, when).await;
            let is_done = done.is_some();
            drop(done);
            see_clean(&server, &client, &format!("{when:?} after {times} polls, unknown")).await;
            if is_done {
                break;
            }
        }
    }
}
