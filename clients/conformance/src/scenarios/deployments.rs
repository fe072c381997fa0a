//! Clusters, Sentinels and TLS.

use super::named::{Named, named};
use crate::stage::{Stage, renewals};
use lockward_tests::{
    Certificates, Client, Cluster, Reply, Sentinels, Server, Setup, eventually, slot_of, soon,
};
use std::time::{Duration, Instant};

pub(super) const ALL: &[Named] = named![
    a_lock_lives_on_over_a_failover_of_sentinels,
    a_lock_lives_on_when_the_primary_hangs_and_a_replica_is_promoted,
    a_wait_goes_on_at_the_new_primary,
    no_lock_of_a_healthy_node_is_lost_when_another_node_is_silent,
    a_lock_and_a_wait_go_on_when_their_slot_moves,
    a_lock_is_kept_while_its_slot_is_moving,
    a_call_that_does_not_wait_ends_although_two_nodes_redirect_to_each_other,
    a_client_leaves_a_node_that_was_removed_from_the_cluster,
    a_cut_connection_to_a_healthy_node_delays_no_call_while_another_node_is_silent,
    no_lock_of_a_healthy_primary_is_lost_when_the_sentinels_are_silent,
    a_client_uses_its_certificate_and_its_acl_user,
];

/// The address of Sentinels, as the protocol of workers writes it.
fn sentinel_address(sentinels: &Sentinels) -> String {
    sentinels.url().replace("redis+sentinel://", "sentinel://")
}

/// Checks that a lock survives a failover.
#[track_caller]
fn lives_on(stage: &Stage, stop: impl FnOnce(&mut Server)) {
    let setup = Setup::new().module("default-lease 30000");
    let mut primary = setup.clone().start();
    let replica = setup.start_replica_of(&primary);
    // The lease and the quarantine are longer than the failover. The failover takes some seconds more if the Sentinels
    // must vote again.
    assert_eq!(replica.client().call("CONFIG SET lock.quarantine 30000"), Reply::ok());
    let sentinels = Sentinels::watch(&primary, 1);
    let mut worker = stage.worker_at(&sentinel_address(&sentinels), &[]);
    let token = worker.acquire("a k wait=5000 lease=30000");
    eventually("the replica knows the lock", || replica.client().info("k").is_some());
    stop(&mut primary);
    stage.note("the primary is gone");
    assert_eq!(sentinels.see_failover_from(primary.port()), replica.port());
    stage.note("the replica is the primary");
    let mut client = replica.client();
    // A lease that still runs on the new primary proves nothing: as a replica, this server began to count the lease
    // only when the grant arrived. Only a renewal shows that the client uses the new primary.
    see_renewal(&mut client, "k");
    assert_eq!(client.holder("k").token, token);
    assert!(!worker.has_event("lost"), "the client has lost a lock that the new primary has");
    assert_eq!(worker.call("status a"), "held");
    worker.expect("release a", "ok");
    assert_eq!(client.info("k"), None);
}

fn a_lock_lives_on_over_a_failover_of_sentinels(stage: &Stage) {
    lives_on(stage, Server::kill);
}

fn a_lock_lives_on_when_the_primary_hangs_and_a_replica_is_promoted(stage: &Stage) {
    lives_on(stage, |primary| primary.freeze());
}

fn a_wait_goes_on_at_the_new_primary(stage: &Stage) {
    let mut primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let sentinels = Sentinels::watch(&primary, 1);
    let mut worker = stage.worker_at(&sentinel_address(&sentinels), &[]);
    worker.acquire("b l wait=0 lease=30000");
    let mut holder = primary.client();
    holder.acquire("k H PX 60000");
    let id = worker.send("acquire a k lease=10000");
    holder.see_waiters("k", 1);
    eventually("the replica knows the lock", || replica.client().info("k").is_some());
    primary.kill();
    sentinels.see_failover_from(primary.port());
    let mut client = replica.client();
    client.see_waiters("k", 1);
    assert_eq!(client.call("LOCK.RELEASE k H").int(), 0);
    let token = worker.held_reply(id);
    assert_eq!(client.holder("k").token, token);
}

fn no_lock_of_a_healthy_primary_is_lost_when_the_sentinels_are_silent(stage: &Stage) {
    let server = Server::start();
    let gate = stage.gate(&server);
    let sentinels = Sentinels::watch_with(&server, 0, |_| {
        vec![
            format!("sentinel monitor locks 127.0.0.1 {} 2", gate.port()),
            "sentinel down-after-milliseconds locks 60000".to_owned(),
        ]
    });
    let mut worker = stage.worker_at(&sentinel_address(&sentinels), &[]);
    let token = worker.acquire("a k wait=0 lease=1500");
    for sentinel in sentinels.all() {
        sentinel.freeze();
    }
    stage.note("all Sentinels are silent");
    gate.cut();
    let renewals = gate.count("LOCK.RENEW");
    eventually("the lock is renewed for two leases", || {
        gate.count("LOCK.RENEW") >= renewals + 6 || worker.has_event("lost")
    });
    assert!(!worker.has_event("lost"), "the client has lost a lock that a healthy primary has");
    assert_eq!(server.client().holder("k").token, token);
    assert_eq!(worker.call("status a"), "held");
    worker.acquire("b l wait=2000 lease=10000");
    worker.expect("release a", "ok");
}

/// The address of a cluster, as the protocol of workers writes it.
fn cluster_address(cluster: &Cluster) -> String {
    let nodes: Vec<String> =
        cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    format!("cluster://{}", nodes.join(","))
}

/// A key that a node serves.
fn key_on(cluster: &Cluster, node: &Server, name: &str) -> String {
    (0..)
        .map(|number| format!("{name}{number}"))
        .find(|key| cluster.owner(slot_of(key)).port() == node.port())
        .expect("a key")
}

/// Waits for a renewal of a lock, and returns the time when the renewal was seen.
fn see_renewal(client: &mut Client, key: &str) -> Instant {
    let mut before = client.holder(key).lease_left;
    soon("a renewal", || {
        let at = Instant::now();
        let left = client.holder(key).lease_left;
        let is_renewed = left > before;
        before = left;
        is_renewed.then_some(at)
    })
}

fn no_lock_of_a_healthy_node_is_lost_when_another_node_is_silent(stage: &Stage) {
    const LEASE: Duration = Duration::from_millis(1_500);
    let cluster = Cluster::start_without_replicas(Setup::new());
    let [healthy, silent, _] = cluster.nodes() else { panic!("three nodes") };
    let (here, there) = (key_on(&cluster, healthy, "k"), key_on(&cluster, silent, "k"));
    let mut worker = stage.worker_at(&cluster_address(&cluster), &[]);
    let kept = worker.acquire(&format!("a {here} wait=0 lease=1500"));
    worker.acquire(&format!("b {there} wait=0 lease=1500"));
    let mut client = healthy.client();
    let busy = key_on(&cluster, healthy, "busy");
    client.acquire(&format!("{busy} H PX 60000"));
    let renewed = see_renewal(&mut silent.client(), &there);
    silent.freeze();
    stage.note("a node is silent");
    // The worker calls both nodes at the same time. Each call must end at its own limit.
    let begun = Instant::now();
    let elsewhere = worker.send(&format!("acquire c {} wait=1000 lease=10000", key_on_same(&there)));
    let waits = worker.send(&format!("acquire d {busy} wait=1000 lease=10000"));
    let tried = worker.send(&format!("acquire e {} wait=0 lease=10000", key_on_same(&here)));
    worker.held_reply(tried);
    for (id, expected) in [(waits, "busy"), (elsewhere, "error unreachable")] {
        let came = worker.reply(id);
        assert!(came.text.starts_with(expected), "{:?}, expected {expected:?}", came.text);
        stage.on_time("wait limit", begun + Duration::from_secs(1), 200, came.at);
    }
    let lost = worker.event("lost b").at;
    stage.on_time("lost signal", renewed + LEASE, 50, lost);
    let begun = Instant::now();
    eventually("two leases have passed", || {
        assert_eq!(client.holder(&here).token, kept);
        begun.elapsed() > LEASE * 2
    });
    assert!(!worker.has_event("lost a"), "the client has lost a lock that a healthy node has");
    assert_eq!(worker.call("status a"), "held");
    worker.expect("release a", "ok");
}

fn a_cut_connection_to_a_healthy_node_delays_no_call_while_another_node_is_silent(stage: &Stage) {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let [healthy, silent, _] = cluster.nodes() else { panic!("three nodes") };
    let mut client = healthy.client();
    let key = key_on(&cluster, healthy, "k");
    let mut worker = stage.worker_at(&cluster_address(&cluster), &[]);
    worker.acquire(&format!("a {key} wait=5000 lease=30000"));
    silent.freeze();
    for number in 0..6 {
        client.call("CLIENT KILL TYPE normal SKIPME yes");
        worker.acquire(&format!("b{number} {{{key}}}{number} wait=1000 lease=30000"));
    }
}

/// A second key in the slot of `key`.
fn key_on_same(key: &str) -> String {
    format!("{{{key}}}:other")
}

fn a_lock_and_a_wait_go_on_when_their_slot_moves(stage: &Stage) {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let mut worker = stage.worker_at(&cluster_address(&cluster), &[]);
    let (from, to) = cluster.owner_and_other("k");
    let token = worker.acquire("a k wait=0 lease=2000");
    let waiter = worker.send("acquire b k lease=10000");
    from.client().see_waiters("k", 1);
    cluster.move_slot(slot_of("k"), to);
    stage.note("the slot has moved");
    let mut client = to.client();
    client.see_waiters("k", 1);
    see_renewal(&mut client, "k");
    assert_eq!(client.holder("k").token, token);
    assert_eq!(worker.call("status a"), "held");
    worker.expect("release a", "ok");
    let next = worker.held_reply(waiter);
    assert!(next > token);
    worker.expect("release b", "ok");
}

fn a_lock_is_kept_while_its_slot_is_moving(stage: &Stage) {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let mut worker = stage.worker_at(&cluster_address(&cluster), &[]);
    let (from, to) = cluster.owner_and_other("k");
    let token = worker.acquire("a k wait=0 lease=1500");
    let moving = cluster.begin_to_move(slot_of("k"), to);
    moving.carry_all();
    stage.note("the key has moved, and the slot has not");
    // From now on, the source replies with the redirection ASK.
    let mut client = to.client();
    eventually("the lock is renewed on the target", || {
        renewals(&mut client) >= 4 || worker.has_event("lost")
    });
    assert!(!worker.has_event("lost"), "the client has lost a lock that another node has");
    moving.end();
    assert_eq!(client.holder("k").token, token);
    assert_eq!(worker.call("status a"), "held");
    worker.expect("release a", "ok");
    assert!(from.client().call("LOCK.INFO k").redirection().is_some());
}

fn a_call_that_does_not_wait_ends_although_two_nodes_redirect_to_each_other(stage: &Stage) {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let mut worker = stage.worker_at(&cluster_address(&cluster), &["patience=1000"]);
    let (one, other) = cluster.owner_and_other("k");
    let give = format!("CLUSTER SETSLOT {} NODE {}", slot_of("k"), other.node_id());
    assert_eq!(one.client().call(give), Reply::ok());
    for node in [one, other] {
        assert!(node.client().call("LOCK.INFO k").redirection().is_some(), "no loop");
    }
    for keys in ["k", "k,{k}"] {
        let begun = Instant::now();
        let id = worker.send(&format!("acquire a {keys} wait=0 lease=10000"));
        let came = worker.reply(id);
        assert!(came.text.starts_with("error unreachable"), "{:?}", came.text);
        stage.on_time("patience", begun + Duration::from_secs(1), 0, came.at);
    }
    let requests: i64 = [one, other].map(|node| refused_acquires(&mut node.client())).iter().sum();
    assert!(requests < 200, "{requests} requests");
}

fn a_client_leaves_a_node_that_was_removed_from_the_cluster(stage: &Stage) {
    let cluster = Cluster::start_primaries(Setup::new(), 2);
    let [removed, other] = cluster.nodes() else { panic!("two nodes") };
    let key = key_on(&cluster, removed, "k");
    let mut worker = stage.worker_at(&cluster_address(&cluster), &[]);
    let token = worker.acquire(&format!("a {key} wait=5000 lease=30000"));
    cluster.move_slot(slot_of(&key), other);
    let id = removed.node_id();
    assert_eq!(removed.client().call("CLUSTER RESET SOFT"), Reply::ok());
    assert_eq!(other.client().call(format!("CLUSTER FORGET {id}")), Reply::ok());
    let refusal = removed.client().call(format!("LOCK.INFO {key}"));
    assert!(matches!(&refusal, Reply::Error(text) if text.starts_with("CLUSTERDOWN")), "{refusal:?}");
    stage.note("the node is removed");
    assert_eq!(other.client().holder(&key).token, token);
    worker.expect("release a", "ok");
    worker.acquire(&format!("b {key} wait=5000 lease=10000"));
}

/// How many requests `LOCK.ACQUIRE` a server has redirected or refused.
fn refused_acquires(client: &mut Client) -> i64 {
    let stats = client.call("INFO commandstats").text();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_lock.acquire:")).unwrap_or_default();
    line.split("rejected_calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn a_client_uses_its_certificate_and_its_acl_user(stage: &Stage) {
    let certificates = Certificates::new();
    let port = lockward_tests::free_port();
    let server = Setup::new().tls(&certificates, port).config("user alice on >secret ~* &* +@all").start();
    let mut client = server.client();
    let [ca, cert, key] = certificates.files().map(|file| file.display().to_string());
    let settings = [format!("ca={ca}"), format!("cert={cert}"), format!("key={key}")];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let mut worker = stage.worker_at(&format!("rediss://alice:secret@127.0.0.1:{port}"), &settings);
    let token = worker.acquire("a k wait=0 lease=1200");
    assert_eq!(client.holder("k").token, token);
    let clients = client.call("CLIENT LIST").text();
    assert!(clients.contains("user=alice"), "no connection of the user alice:\n{clients}");
    let waiter = worker.send("acquire b k lease=10000");
    client.see_waiters("k", 1);
    see_renewal(&mut client, "k");
    worker.expect("release a", "ok");
    worker.held_reply(waiter);
    // The server refuses a client with a wrong password or without a certificate.
    let mut other = stage.worker_at(&format!("rediss://alice:wrong@127.0.0.1:{port}"), &settings);
    other.expect("acquire a l wait=0 lease=1200", "error ");
    let mut bare = stage.worker_at(&format!("rediss://alice:secret@127.0.0.1:{port}"), &settings[..1]);
    bare.expect("acquire a l wait=0 lease=1200", "error ");
    assert_eq!(client.info("l"), None);
}
