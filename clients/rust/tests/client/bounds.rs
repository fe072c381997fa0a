//! What a client takes of the server, and of its own process: so much, and no more.

use crate::{LONG, client, soon};
use lockward_client::{Client, Settings};
use lockward_tests::{Server, eventually, rounds};
use std::time::{Duration, Instant};

/// How often the server has run a command.
fn calls(observer: &mut lockward_tests::Client, command: &str) -> u64 {
    let stats = observer.call("INFO commandstats").text();
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|rest| rest.split(',').next()).map_or(0, |count| count.parse().expect("a count"))
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_renewed_once_in_a_third_and_no_more_often() {
    let server = Server::start();
    let client = client(&server).await;
    let (count, lease) = (20_u32, Duration::from_millis(1_500));
    let begun = Instant::now();
    let mut guards = Vec::new();
    for number in 0..count {
        guards.push(client.lock(format!("k{number}")).lease(lease).acquire().await.expect("a guard"));
    }
    let mut observer = server.client();
    eventually("all are held for two leases", || observer.holder("k0").held_for > 3_000);
    let thirds = u64::try_from(begun.elapsed().as_millis() / (lease / 3).as_millis()).expect("a count");
    let renewals = calls(&mut observer, "lock.renew");
    assert!(guards.iter().all(lockward_client::Guard::is_held));
    assert!(renewals <= (thirds + 1) * u64::from(count), "{renewals} renewals in {thirds} thirds of a lease");
    // One connection is shared by all, and one is ours.
    assert_eq!(observer.stat("clients", "connected_clients"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_callers_wait_on_twenty_connections() {
    let server = Server::start();
    let address = format!("redis://127.0.0.1:{}", server.port()).parse().expect("an address");
    let client = Client::new(address, Settings::default().waiting_connections(20)).expect("a client");
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
async fn nothing_is_left_of_tenures_that_are_over() {
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
            let again = guard.re_enter().await.expect("a guard");
            drop(again);
            guard.release().await.expect("a release");
            drop(named.acquire().await.expect("a guard"));
        }
    };
    for number in 0..100 {
        cycle(number).await;
    }
    soon(client.settled()).await;
    let (tasks_before, resident_before) = (tasks(), resident());
    for number in 0..rounds(1_000, 500_000) {
        cycle(number).await;
    }
    soon(client.settled()).await;
    // A connection that has waited stands by.
    assert!(tasks() <= tasks_before + 1, "{} tasks, {tasks_before} before", tasks());
    let grown = resident().saturating_sub(resident_before);
    assert!(grown < 16 * 1_024, "{grown} KiB more");
    assert!(server.client().stat("clients", "connected_clients") <= 3);
}
