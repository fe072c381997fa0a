//! Guards and waiters when their server dies or is replaced, and when their process is stopped.

use crate::{LONG, client, client_at, granted, hasty, patient, soon};
use lockward_client::Loss;
use lockward_tests::{Client, Sentinels, Server, Setup, eventually};
use std::env;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_and_a_waiter_survive_a_restart() {
    let mut server = Setup::new().config("appendonly yes").config("appendfsync always").start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    let again = guard.re_enter().await.expect("a guard");
    let waiter = tokio::spawn(client.lock("k").wait(LONG).acquire());
    server.client().see_waiters("k", 1);
    server.kill_and_start_again();
    let mut observer = server.client();
    observer.see_waiters("k", 1);
    assert_eq!((observer.holder("k").token, observer.holder("k").holds), (guard.token() as i64, 2));
    again.release().await.expect("a release");
    let last = guard.token();
    guard.release().await.expect("a release");
    let next = granted(waiter).await;
    assert!(next.token() > last);
    next.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_tenure_is_restored_at_once_in_quarantine() {
    let mut server = Server::start_with("quarantine 600000");
    let client = client(&server).await;
    // End the quarantine of the first start.
    server.client().call("CONFIG SET lock.quarantine 0");
    let guard = client.lock("k").lease(LONG / 2).acquire().await.expect("a guard");
    let again = guard.re_enter().await.expect("a guard");
    server.kill_and_start_again();
    let mut observer = server.client();
    // Long before a third of its lease has passed.
    eventually("it is restored", || observer.info("k").is_some());
    assert_eq!((observer.holder("k").token, observer.holder("k").holds), (guard.token() as i64, 2));
    again.release().await.expect("a release");
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_tenure_is_lost_without_a_quarantine() {
    let mut server = Server::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    server.kill_and_start_again();
    assert_eq!(soon(guard.lost()).await, Loss::NotHeld("the lock is free".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_and_a_waiter_survive_a_failover() {
    let mut primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let sentinels = Sentinels::watch(&primary, 1);
    let client = patient(&sentinels.url());
    let lock = client.lock("k").lease(LONG).replicas(1, LONG / 2);
    let guard = lock.acquire().await.expect("a guard");
    let waiter = tokio::spawn(client.lock("k").wait(LONG).acquire());
    primary.client().see_waiters("k", 1);
    primary.kill();
    assert_eq!(sentinels.see_failover_from(primary.port()), replica.port());
    let mut observer = replica.client();
    observer.see_waiters("k", 1);
    let again = guard.re_enter().await.expect("a guard");
    assert_eq!((observer.holder("k").token, observer.holder("k").holds), (guard.token() as i64, 2));
    again.release().await.expect("a release");
    let last = guard.token();
    guard.release().await.expect("a release");
    let next = granted(waiter).await;
    assert!(next.token() > last);
    next.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_moves_to_the_new_primary_when_its_server_becomes_a_replica() {
    let first = Server::start();
    let second = Server::start_replica_of(&first);
    let sentinels = Sentinels::watch(&first, 1);
    let client = patient(&sentinels.url());
    let lock = client.lock("k").lease(LONG).replicas(1, LONG / 2);
    let guard = lock.acquire().await.expect("a guard");
    let waiter = tokio::spawn(client.lock("k").acquire());
    first.client().see_waiters("k", 1);
    sentinels.fail_over();
    assert_eq!(sentinels.see_failover_from(first.port()), second.port());
    second.client().see_waiters("k", 1);
    guard.release().await.expect("a release");
    granted(waiter).await.release().await.expect("a release");
}

/// The environment variable that tells [`sleeper`] the port of its server.
const PORT: &str = "LOCKWARD_SLEEPER_PORT";

/// A process that holds a lock, and reports whether it believes so. It is stopped by
/// [`a_process_stopped_past_its_lease_knows_that_the_lock_is_lost`].
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it is a process of another test"]
async fn sleeper() {
    let Some(port) = env::var(PORT).ok().and_then(|port| port.parse().ok()) else { return };
    let client = client_at(port).await;
    let guard = client.lock("k").lease(Duration::from_millis(600)).acquire().await.expect("a guard");
    let mut server = Client::connect(port).expect("a connection");
    server.call("SET asleep no");
    let lost = tokio::spawn(guard.lost());
    // First the server's reply, then the belief, so that the belief is not older.
    let held = loop {
        let another_has_it = server.call("EXISTS another").int() == 1;
        let held = guard.is_held();
        if another_has_it {
            break held;
        }
    };
    let loss = soon(lost).await.expect("no panic");
    server.call(["SET", "believes", &format!("{held} {loss:?}")]);
}

struct Sleeper(Child);

impl Sleeper {
    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_stopped_past_its_lease_knows_that_the_lock_is_lost() {
    let server = Server::start();
    let mut observer = server.client();
    let sleeper = Command::new(env::current_exe().expect("a path"))
        .args(["--exact", "server_failures::sleeper", "--ignored"])
        .env(PORT, server.port().to_string())
        .stdout(Stdio::null())
        .spawn()
        .map(Sleeper)
        .expect("a process");
    eventually("it holds the lock", || observer.call("EXISTS asleep").int() == 1);
    sleeper.signal("-STOP");
    observer.acquire("k another PX 600000 BLOCK 600000");
    observer.call("SET another yes");
    sleeper.signal("-CONT");
    eventually("it reports", || observer.call("EXISTS believes").int() == 1);
    assert_eq!(observer.call("GET believes").text(), "false LeaseOver");
    assert_eq!(observer.owner("k").as_deref(), Some("another"));
}

fn first_waiter(observer: &mut Client) -> i64 {
    observer.call("LOCK.INFO k WAITERS 1").info().queue.expect("a queue")[0].client_id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_keeps_its_position_when_no_second_connection_can_be_opened() {
    for (setting, wanting, enough) in [("maxclients", "2", "100"), ("requirepass", "secret", "")] {
        let server = Server::start();
        let mut observer = server.client();
        observer.acquire("k another PX 600000");
        let client = hasty(server.port());
        let waiter = tokio::spawn(client.lock("k").acquire());
        observer.see_waiters("k", 1);
        let position = first_waiter(&mut observer);
        let connected = |observer: &mut Client| {
            observer.stat("stats", "total_connections_received")
                + observer.stat("stats", "rejected_connections")
        };
        let before = connected(&mut observer);
        observer.call(format!("CONFIG SET {setting} {wanting}"));
        let (own, clients) = (observer.id(), observer.call("CLIENT LIST").text());
        let ids = clients.lines().filter_map(|line| line.split(['=', ' ']).nth(1)?.parse::<i64>().ok());
        for id in ids.filter(|id| ![own, position].contains(id)) {
            observer.call(format!("CLIENT KILL ID {id}"));
        }
        eventually("it has tried in vain", || connected(&mut observer) >= before + 2);
        assert_eq!(first_waiter(&mut observer), position, "{setting}");
        observer.call(["CONFIG", "SET", setting, enough]);
        observer.call("LOCK.RELEASE k another");
        granted(waiter).await.release().await.expect("a release");
    }
}
