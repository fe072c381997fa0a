//! Many guards, renewed by one task.

use crate::client;
use lockward_tests::{Client, Server, eventually};
use std::time::{Duration, Instant};

const GUARDS: usize = 1_000;

fn calls(observer: &mut Client, command: &str) -> usize {
    let stats = observer.call("INFO commandstats").text();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_guards_are_renewed_on_one_connection_and_no_oftener_than_need_be() {
    let server = Server::start();
    let client = client(&server).await;
    let lease = Duration::from_secs(6);
    let begun = Instant::now();
    let acquiring =
        (0..GUARDS).map(|number| tokio::spawn(client.lock(format!("k{number}")).lease(lease).acquire()));
    let mut guards = Vec::new();
    for guard in acquiring.collect::<Vec<_>>() {
        guards.push(guard.await.expect("no panic").expect("a guard"));
    }
    let mut observer = server.client();
    eventually("each is renewed, and again", || calls(&mut observer, "lock.renew") >= 2 * GUARDS);
    let renewals = calls(&mut observer, "lock.renew");
    let rounds = begun.elapsed().div_duration_f64(lease / 3) * 1.01;
    assert!(renewals <= GUARDS * rounds as usize, "{renewals} in {rounds} thirds of a lease");
    assert_eq!(calls(&mut observer, "lock.acquire"), GUARDS);
    assert!(guards.iter().all(lockward_client::Guard::is_held));
    // The observer's, and the client's.
    assert_eq!(observer.stat("clients", "connected_clients"), 2);
    drop(guards);
    eventually("all are given back", || observer.call("DBSIZE").int() == 0);
}
