//! Locks in a cluster.

use crate::{LONG, granted, patient};
use lockward_tests::{Cluster, Setup, eventually, slot_of};

pub(crate) fn url(cluster: &Cluster) -> String {
    let nodes: Vec<String> =
        cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    format!("redis+cluster://{}", nodes.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_acquired_on_the_nodes_of_their_slots() {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let client = patient(&url(&cluster));
    let mut guards = Vec::new();
    for number in 0..30 {
        let key = format!("{{{number}}}:lock");
        let guard = client.lock(&key).acquire().await.expect("a guard");
        let holder = cluster.owner(slot_of(&key)).client().holder(&key);
        assert_eq!(holder.token, guard.token() as i64);
        guards.push(guard);
    }
    for guard in guards {
        guard.release().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_and_a_waiter_follow_a_slot_that_moves() {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let client = patient(&url(&cluster));
    let guard = client.lock("k").lease(LONG).acquire().await.expect("a guard");
    let waiter = tokio::spawn(client.lock("k").wait(LONG).acquire());
    let (from, to) = cluster.owner_and_other("k");
    from.client().see_waiters("k", 1);
    let moving = cluster.begin_to_move(slot_of("k"), to);
    moving.carry_all();
    // The key has moved and the slot has not, so the server replies ASK.
    eventually("it waits there", || {
        let mut client = to.client();
        client.call("ASKING");
        client.info("k").is_some_and(|info| info.waiters == 1)
    });
    let again = guard.re_enter().await.expect("a guard");
    moving.end();
    to.client().see_waiters("k", 1);
    assert_eq!(to.client().holder("k").holds, 2);
    again.release().await.expect("a release");
    guard.release().await.expect("a release");
    granted(waiter).await.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_and_a_waiter_survive_the_failure_of_a_node() {
    let mut cluster = Cluster::start();
    let client = patient(&url(&cluster));
    let lock = client.lock("k").lease(LONG).replicas(1, LONG / 2);
    let guard = lock.acquire().await.expect("a guard");
    let waiter = tokio::spawn(client.lock("k").acquire());
    let owner = cluster.owner(slot_of("k"));
    owner.client().see_waiters("k", 1);
    let replica = cluster.replica_of(owner).port();
    let dead = owner.port();
    for node in cluster.nodes_mut().iter_mut().filter(|node| node.port() == dead) {
        node.kill();
    }
    let successor = cluster.nodes().iter().find(|node| node.port() == replica).expect("a node");
    eventually("it is promoted", || successor.client().server_info("replication", "role") == "master");
    successor.client().see_waiters("k", 1);
    assert_eq!(successor.client().holder("k").token, guard.token() as i64);
    guard.release().await.expect("a release");
    granted(waiter).await.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn primaries_lists_all_primaries() {
    let cluster = Cluster::start_without_replicas(Setup::new());
    let first = cluster.nodes().first().expect("a node");
    let client = patient(&format!("redis+cluster://127.0.0.1:{}", first.port()));
    let primaries = client.primaries().await.expect("primaries");
    let mut found: Vec<String> = primaries.iter().map(|info| info.addr().to_string()).collect();
    found.sort();
    let mut all: Vec<String> =
        cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    all.sort();
    assert_eq!(found, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_waits_while_the_cluster_is_down() {
    let mut cluster = Cluster::start_without_replicas(Setup::new());
    let client = patient(&url(&cluster));
    let owner = cluster.owner(slot_of("k")).port();
    let other = cluster.nodes().iter().position(|node| node.port() != owner).expect("another node");
    let mut held = cluster.owner(slot_of("k")).client();
    held.call("CONFIG SET cluster-require-full-coverage yes");
    held.acquire("k another PX 600000");
    let waiter = tokio::spawn(client.lock("k").acquire());
    held.see_waiters("k", 1);
    cluster.nodes_mut()[other].kill();
    eventually("the client tries again", || {
        let errors = held.call("INFO errorstats").text();
        let count = errors.lines().find_map(|line| line.strip_prefix("errorstat_CLUSTERDOWN:count="));
        count.and_then(|count| count.parse().ok()).is_some_and(|count: u64| count > 3)
    });
    cluster.nodes_mut()[other].start_again();
    cluster.see_agreement();
    held.see_waiters("k", 1);
    held.call("LOCK.RELEASE k another");
    granted(waiter).await.release().await.expect("a release");
}
