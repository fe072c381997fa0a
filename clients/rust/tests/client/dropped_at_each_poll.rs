//! Futures that are dropped after each possible number of polls.

use crate::{LONG, client, soon};
use lockward_client::redis::Cmd;
use lockward_client::{Client, Error, Limit, Lock, Loss};
use lockward_tests::{Server, eventually};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// A number of polls that is larger than any of the futures needs.
const POLLS: usize = 200;

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
enum DropWhen {
    /// The future is dropped immediately after its last poll.
    Asleep,
    /// The future is dropped when it has been woken after its last poll.
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
fn variants(client: &Client) -> [Lock; 7] {
    let lock = client.lock("k").lease(LONG).wait(Duration::from_secs(60));
    let several = client.locks(["a", "k"]).lease(LONG).wait(Duration::from_secs(60));
    [
        lock.clone(),
        lock.clone().owner("me"),
        lock.clone().wait(Duration::ZERO),
        lock.replicas(0, LONG / 2),
        several.clone(),
        several.clone().replicas(0, LONG / 2),
        several.owner("me"),
    ]
}

async fn see_nothing_left(server: &Server, client: &Client, what: &str) {
    assert!(soon(client.close()).await);
    let mut observer = server.client();
    eventually(&format!("nothing is left: {what}"), || {
        observer.call("DBSIZE").int() == 0 && observer.call("LOCK.TOP").items().is_empty()
    });
}

/// Calls `run` with 0, 1, 2 and more polls, until `run` returns that the future has completed. After each call the
/// server must have no lock and no waiter.
async fn for_each_poll(
    server: &Server,
    client: &Client,
    what: &str,
    mut run: impl AsyncFnMut(usize) -> bool,
) {
    for times in 0..POLLS {
        let is_done = run(times).await;
        see_nothing_left(server, client, &format!("{times} polls, {what}")).await;
        if is_done {
            break;
        }
    }
}

async fn drop_after_each_poll() {
    let server = Server::start();
    let client = client(&server).await;
    for when in [DropWhen::Asleep, DropWhen::Woken] {
        for variant in 0..variants(&client).len() {
            let lock = || variants(&client)[variant].clone();
            for_each_poll(&server, &client, &format!("{when:?}, {variant}, free"), async |times| {
                polled(lock().acquire(), times, when).await.is_some()
            })
            .await;
            for_each_poll(&server, &client, &format!("{when:?}, {variant}, held"), async |times| {
                let holder = client.lock("k").lease(LONG).acquire().await.expect("a guard");
                let releasing = tokio::spawn(async move {
                    for _ in 0..times {
                        tokio::task::yield_now().await;
                    }
                    holder.release().await
                });
                let acquired = polled(lock().acquire(), times, when).await;
                let is_done = acquired.is_some();
                drop(acquired);
                releasing.await.expect("no panic").expect("a release");
                is_done
            })
            .await;
        }
        for_each_poll(&server, &client, &format!("{when:?}, calls of a guard"), async |times| {
            let guard = client.lock("k").lease(LONG).owner("me").acquire().await.expect("a guard");
            let mut is_done = polled(guard.renew(), times, when).await.is_some();
            is_done &= polled(guard.downgrade(Limit::Shared), times, when).await.is_some();
            is_done &= polled(guard.guarded::<()>(&Cmd::new()), times, when).await.is_some();
            let lost = guard.lost();
            assert!(guard.is_held());
            is_done &= polled(guard.release(), times, when).await.is_some();
            assert_eq!(soon(lost).await, Loss::Released);
            is_done
        })
        .await;
        for_each_poll(&server, &client, &format!("{when:?}, run"), async |times| {
            let work = async |_| {
                tokio::task::yield_now().await;
                Ok::<_, Error>(())
            };
            polled(client.lock("k").lease(LONG).run(work), times, when).await.is_some()
        })
        .await;
        for_each_poll(&server, &client, &format!("{when:?}, lead"), async |times| {
            let leading = client.lock("k").lease(LONG).lead(async |_| tokio::task::yield_now().await);
            polled(leading, times, when).await.is_some()
        })
        .await;
        for_each_poll(&server, &client, &format!("{when:?}, resume"), async |times| {
            let guard = client.locks(["a", "k"]).lease(LONG).acquire().await.expect("a guard");
            let handle = guard.handle();
            let resumed = polled(client.resume(&handle), times, when).await;
            let is_done = resumed.is_some();
            // If the future was dropped, the tenure goes on. Another call can continue the tenure.
            let guard = match resumed {
                Some(resumed) => resumed.expect("a guard"),
                None => client.resume(&handle).await.expect("a guard"),
            };
            guard.release().await.expect("a release");
            is_done
        })
        .await;
    }
}

#[tokio::test]
async fn a_future_dropped_after_any_poll_leaves_nothing() {
    drop_after_each_poll().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_future_dropped_after_any_poll_in_a_multi_threaded_runtime_leaves_nothing() {
    drop_after_each_poll().await;
}

#[tokio::test]
async fn a_future_dropped_after_any_poll_of_the_first_acquisition_leaves_nothing() {
    let server = Server::start();
    for when in [DropWhen::Asleep, DropWhen::Woken] {
        for times in 0..POLLS {
            let client = client(&server).await;
            let is_done = polled(client.lock("k").acquire(), times, when).await.is_some();
            see_nothing_left(&server, &client, &format!("{times} polls, {when:?}, first acquisition")).await;
            if is_done {
                break;
            }
        }
    }
}
