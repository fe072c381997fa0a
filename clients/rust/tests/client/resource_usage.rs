//! How many requests, connections, tasks and bytes a client uses.

use crate::{LONG, calls, client, client_with, soon, url};
use lockward_client::{Guard, Settings};
use lockward_tests::{Server, eventually, rounds};
use std::time::{Duration, Instant};

async fn see_renewed_once_per_third(count: u64, lease: Duration) {
    let server = Server::start();
    let client = client_with(&url(server.port()), Settings::default().response_limit(LONG));
    let begun = Instant::now();
    let acquiring =
        (0..count).map(|number| tokio::spawn(client.lock(format!("k{number}")).lease(lease).acquire()));
    let mut guards = Vec::new();
    for guard in acquiring.collect::<Vec<_>>() {
        guards.push(guard.await.expect("no panic").expect("a guard"));
    }
    let mut observer = server.client();
    eventually("each is renewed twice", || calls(&mut observer, "lock.renew") >= 2 * count);
    let renewals = calls(&mut observer, "lock.renew");
    // On a busy machine the renewals are late, so the client sends fewer renewals.
    let thirds = begun.elapsed().div_duration_f64(lease / 3);
    assert!(renewals <= count * (thirds * 1.01) as u64, "{renewals} renewals in {thirds} thirds of a lease");
    assert_eq!(calls(&mut observer, "lock.acquire"), count);
    assert!(guards.iter().all(Guard::is_held));
    // The connection of the client and the connection of the observer.
    assert_eq!(observer.stat("clients", "connected_clients"), 2);
    drop(guards);
    eventually("all are released", || observer.call("DBSIZE").int() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_renewed_once_per_third_of_a_lease() {
    see_renewed_once_per_third(20, Duration::from_secs(6)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_guards_are_renewed_on_one_connection() {
    see_renewed_once_per_third(1_000, Duration::from_secs(6)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_callers_wait_on_twenty_connections() {
    let server = Server::start();
    let client = client_with(&url(server.port()), Settings::default().waiting_connections(20));
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    let callers: Vec<_> = (0..rounds(1_000, 10_000))
        .map(|_| {
            let lock = client.lock("k").wait(LONG);
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    let mut observer = server.client();
    observer.see_waiters("k", 20);
    assert_eq!(observer.stat("clients", "connected_clients"), 22);
    guard.release().await.expect("a release");
    for caller in callers {
        caller.await.expect("no panic").expect("a tenure");
    }
    assert!(observer.stat("clients", "connected_clients") <= 22);
    assert_eq!(observer.call("DBSIZE").int(), 0);
}

#[tokio::test]
async fn ended_tenures_leave_no_tasks_memory_or_connections() {
    let server = Server::start();
    let client = client(&server).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").expect("a process");
        let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.expect("a number") * 4
    };
    let cycle = |number: u32| {
        let lock = client.lock("k").wait(LONG);
        let named = client.lock("k").owner(format!("owner {number}"));
        async move {
            let guard = lock.acquire().await.expect("a guard");
            guard.release().await.expect("a release");
            drop(named.acquire().await.expect("a guard"));
        }
    };
    for number in 0..100 {
        cycle(number).await;
    }
    soon(client.close()).await;
    let (tasks_before, resident_before) = (tasks(), resident());
    for number in 0..rounds(1_000, 500_000) {
        cycle(number).await;
    }
    soon(client.close()).await;
    // The client keeps an idle connection for a few seconds after a wait. Such a connection has two tasks.
    assert!(tasks() <= tasks_before + 2, "{} tasks, {tasks_before} before", tasks());
    let grown = resident().saturating_sub(resident_before);
    assert!(grown < 16 * 1_024, "{grown} KiB more");
    assert!(server.client().stat("clients", "connected_clients") <= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_many_waiters_close_soon_after_they_are_idle() {
    let server = Server::start();
    let client = client_with(&url(server.port()), Settings::default().waiting_connections(500));
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    let waiters: Vec<_> = (0..500)
        .map(|_| {
            let lock = client.lock("k").wait(LONG);
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    let mut observer = server.client();
    observer.see_waiters("k", 500);
    guard.release().await.expect("a release");
    for waiter in waiters {
        waiter.await.expect("no panic").expect("a tenure");
    }
    eventually("they are closed", || observer.stat("clients", "connected_clients") <= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_ten_thousand_keys_is_acquired_renewed_and_released() {
    let server = Server::start();
    let client = client(&server).await;
    let keys: Vec<String> = (0..rounds(10_000, 100_000)).map(|number| format!("k{number}")).collect();
    let lock = client.locks(&keys).lease(LONG);
    let guard = soon(lock.clone().acquire()).await.expect("a guard");
    soon(guard.renew()).await.expect("a renewal");
    soon(guard.release()).await.expect("a release");
    drop(soon(lock.acquire()).await.expect("a guard"));
    assert!(soon(client.close()).await);
    assert_eq!(server.client().call("DBSIZE").int(), 0);
}
