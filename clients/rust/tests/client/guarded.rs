//! Commands that run only while the lock is held.

use crate::cluster::url as cluster_url;
use crate::{LONG, calls, client, client_at, patient, soon, url};
use lockward_client::{Error, Guard, Loss};
use lockward_tests::{Cluster, Fate, Proxy, Reply, Server, Setup, eventually, free_port, slot_of};
use redis::{Cmd, cmd};
use std::time::Duration;

/// `SET {k}:data 1`
fn set() -> Cmd {
    cmd("SET").arg("{k}:data").arg("1").to_owned()
}

async fn write(guard: &Guard) -> Result<(), Error> {
    guard.guarded(&set()).await
}

fn is_guard(request: &[Reply]) -> bool {
    request.first().is_some_and(|name| name.text() == "LOCK.GUARD")
}

/// A server on which the guard has lost its lock to another owner and does not know it yet.
async fn overtaken() -> (Server, Guard) {
    let server = Server::start();
    let guard = client(&server).await.lock("k").lease(LONG).acquire().await.expect("a guard");
    let mut other = server.client();
    other.call("DEL k");
    other.acquire("k another PX 600000");
    (server, guard)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_runs_and_its_reply_is_converted() {
    let server = Server::start();
    let guard = client(&server).await.lock("k").acquire().await.expect("a guard");
    write(&guard).await.expect("a write");
    let count: u64 = guard.guarded(cmd("INCR").arg("{k}:data")).await.expect("a count");
    assert_eq!((count, server.client().call("GET {k}:data").text()), (2, "2".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_guarded_command_checks_the_token() {
    let (_server, guard) = overtaken().await;
    let checked: Result<(), Error> = guard.guarded(&Cmd::new()).await;
    assert!(matches!(checked, Err(Error::Lost(_))), "{checked:?}");
    let server = Server::start();
    let guard = client(&server).await.lock("k").acquire().await.expect("a guard");
    let checked: String = guard.guarded(&Cmd::new()).await.expect("a reply");
    assert_eq!(checked, "OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_of_a_former_holder_does_not_run() {
    let (server, guard) = overtaken().await;
    let result = write(&guard).await;
    let mut observer = server.client();
    let text = format!("the lock is held by another owner with token {}", observer.holder("k").token);
    assert!(matches!(&result, Err(Error::Lost(Loss::NotHeld(loss))) if *loss == text), "{result:?}");
    assert_eq!(observer.call("EXISTS {k}:data").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_guarded_command_marks_the_lock_as_lost() {
    let (server, guard) = overtaken().await;
    let lost = guard.lost();
    assert!(guard.is_held(), "the client cannot know");
    write(&guard).await.expect_err("it is refused");
    assert!(!guard.is_held() && matches!(soon(lost).await, Loss::NotHeld(_)));
    assert!(matches!(write(&guard).await, Err(Error::Lost(_))));
    assert_eq!(calls(&mut server.client(), "lock.guard"), 1, "the second one was not sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_tenure_is_restored_before_a_guarded_command_runs() {
    let (server, empty) = (Server::start(), Server::start());
    let guard = client(&server).await.lock("k").lease(LONG).acquire().await.expect("a guard");
    // The client's connection stays open, so it notices nothing.
    server.follow(&empty);
    server.client().call("CONFIG SET lock.quarantine 600000");
    let mut observer = server.promote();
    write(&guard).await.expect("a write");
    assert_eq!(observer.holder("k").token, i64::try_from(guard.token()).expect("a token"));
    assert_eq!(calls(&mut observer, "lock.guard"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_guarded_command_keeps_the_lock() {
    let server = Server::start();
    let guard = client(&server).await.lock("k").acquire().await.expect("a guard");
    let result: Result<(), Error> = guard.guarded(cmd("LPUSH").arg("k").arg("x")).await;
    assert_eq!(result.expect_err("an error").code(), Some("WRONGTYPE"));
    assert!(guard.is_held());
    guard.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_is_not_sent_after_the_lease() {
    let server = Server::start();
    let lock = client(&server).await.lock("k").lease(Duration::from_millis(100)).without_renewal();
    let guard = lock.acquire().await.expect("a guard");
    assert_eq!(soon(guard.lost()).await, Loss::LeaseOver);
    assert!(matches!(write(&guard).await, Err(Error::Lost(Loss::LeaseOver))));
    assert_eq!(calls(&mut server.client(), "lock.guard"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_that_arrives_after_the_lease_does_not_run() {
    let server = Server::start();
    let mut observer = server.client();
    let proxy = Proxy::start(server.port(), move |request| {
        if is_guard(request) {
            observer.acquire("k another PX 600000 BLOCK 600000");
        }
        Fate::Carried
    });
    let lock = client_at(proxy.port()).await.lock("k").lease(Duration::from_millis(500)).without_renewal();
    let guard = lock.acquire().await.expect("a guard");
    assert!(matches!(write(&guard).await, Err(Error::Lost(_))));
    let mut observer = server.client();
    assert_eq!((calls(&mut observer, "lock.guard"), observer.call("EXISTS {k}:data").int()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_is_not_repeated_when_its_reply_is_lost() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), |request| match is_guard(request) {
        true => Fate::ReplyLost,
        false => Fate::Carried,
    });
    let guard = client_at(proxy.port()).await.lock("k").acquire().await.expect("a guard");
    let result: Result<u64, Error> = guard.guarded(cmd("INCR").arg("count")).await;
    assert!(matches!(result, Err(Error::Unreachable(_))), "{result:?}");
    assert_eq!(server.client().call("GET count").text(), "1");
    assert!(guard.is_held());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_runs_on_the_node_of_the_lock() {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let client = patient(&cluster_url(&cluster));
    for number in 0..10 {
        let guard = client.lock(format!("{{{number}}}:lock")).acquire().await.expect("a guard");
        let key = format!("{{{number}}}:data");
        let () = guard.guarded(cmd("SET").arg(&key).arg(number)).await.expect("a write");
        let node = cluster.owner(slot_of(&key));
        assert_eq!(node.client().call(format!("GET {key}")).text(), number.to_string());
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_follows_a_slot_that_moves() {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let guard = patient(&cluster_url(&cluster)).lock("k").lease(LONG).acquire().await.expect("a guard");
    let (_, to) = cluster.owner_and_other("k");
    let moving = cluster.begin_to_move(slot_of("k"), to);
    moving.carry_all();
    // The key has moved and the slot has not, so the server replies ASK.
    let () = guard.guarded(&Cmd::new()).await.expect("a reply");
    moving.end();
    write(&guard).await.expect("a write");
    assert_eq!(to.client().call("GET {k}:data").text(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_command_is_sent_again_when_a_replica_has_refused_it() {
    let server = Server::start();
    let guard = patient(&url(server.port())).lock("k").lease(LONG).acquire().await.expect("a guard");
    let mut observer = server.client();
    observer.call(format!("REPLICAOF 127.0.0.1 {}", free_port()));
    let writing = tokio::spawn(async move { write(&guard).await });
    eventually("it is refused", || observer.call("INFO errorstats").text().contains("errorstat_READONLY"));
    observer.call("REPLICAOF NO ONE");
    soon(writing).await.expect("no panic").expect("a write");
    assert_eq!(observer.call("GET {k}:data").text(), "1");
}
