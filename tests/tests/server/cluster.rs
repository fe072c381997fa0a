//! Cluster mode: no lock is granted by a node that does not own its slot.

use lockward_tests::{Client, Reply, Server, Setup, eventually};

fn setup() -> Setup {
    Setup::new().config("cluster-enabled yes").config("cluster-require-full-coverage no")
}

/// A node that serves all slots.
#[track_caller]
pub(super) fn node_with_all_slots() -> Server {
    let node = setup().start();
    let mut client = node.client();
    assert_eq!(client.call("CLUSTER ADDSLOTSRANGE 0 16383"), Reply::ok());
    see_state_ok(&mut client);
    node
}

#[track_caller]
fn see_state_ok(client: &mut Client) {
    eventually("the cluster is up", || client.call("CLUSTER INFO").text().contains("cluster_state:ok"));
}

/// A second node that knows the first and serves no slots.
#[track_caller]
pub(super) fn second_node(first: &Server) -> Server {
    let second = setup().start();
    let (mut here, mut there) = (second.client(), first.client());
    let bus = there.call("CONFIG GET cluster-port").field("cluster-port").text();
    assert_eq!(here.call(format!("CLUSTER MEET 127.0.0.1 {} {bus}", first.port())), Reply::ok());
    for client in [&mut here, &mut there] {
        eventually("the nodes know each other", || {
            let nodes = client.call("CLUSTER NODES").text();
            nodes.lines().count() == 2 && !nodes.contains("handshake")
        });
        see_state_ok(client);
    }
    second
}

pub(super) fn node_id(server: &Server) -> String {
    server.client().call("CLUSTER MYID").text()
}

#[test]
fn locks_work_in_cluster_mode() {
    let node = node_with_all_slots();
    let mut a = node.client();
    for key in ["one", "two", "three"] {
        a.acquire(&format!("{key} A PX 600000"));
        let mut b = node.waiter(&format!("{key} B BLOCK 0"));
        a.call(format!("LOCK.RELEASE {key} A"));
        assert_eq!(b.reply().grant().holds, 1);
        a.call(format!("LOCK.RENEW {key} B PX 50"));
        assert_eq!(node.client().acquire(&format!("{key} C BLOCK 0")).holds, 1);
    }
}

#[test]
fn waiters_are_sent_away_when_their_slot_moves() {
    let first = node_with_all_slots();
    let second = second_node(&first);
    let (first_id, second_id) = (node_id(&first), node_id(&second));
    let (mut a, mut far) = (first.client(), second.client());
    a.acquire("lock A PX 600000");
    let before = a.holder("lock");
    let mut b = first.waiter("lock B BLOCK 0");
    let slot = a.call("CLUSTER KEYSLOT lock").int();
    assert_eq!(far.call(format!("CLUSTER SETSLOT {slot} IMPORTING {first_id}")), Reply::ok());
    assert_eq!(a.call(format!("CLUSTER SETSLOT {slot} MIGRATING {second_id}")), Reply::ok());
    assert_eq!(a.call(format!("MIGRATE 127.0.0.1 {} lock 0 10000", second.port())), Reply::ok());
    assert_eq!(far.call(format!("CLUSTER SETSLOT {slot} NODE {second_id}")), Reply::ok());
    assert_eq!(a.call(format!("CLUSTER SETSLOT {slot} NODE {second_id}")), Reply::ok());
    let reply = b.reply();
    assert!(["MOVED", "ASK", "TRYAGAIN", "UNBLOCKED"].contains(&reply.error_word()), "{reply:?}");
    assert_eq!(a.call("LOCK.INFO lock").error_word(), "MOVED");
    assert_eq!(a.call(format!("CLUSTER COUNTKEYSINSLOT {slot}")), Reply::Int(0));
    assert_eq!(far.holder("lock").tenure(), before.tenure());
    let mut b = second.waiter("lock B BLOCK 0");
    far.call("LOCK.RELEASE lock A");
    assert!(b.reply().grant().token > before.token);
}

#[test]
fn no_waiter_is_granted_a_lock_whose_slot_is_gone() {
    let node = node_with_all_slots();
    let mut a = node.client();
    a.acquire("lock A PX 600");
    let slot = a.call("CLUSTER KEYSLOT lock").int();
    let mut b = node.waiter("lock B BLOCK 0 PX 600000");
    assert_eq!(a.call(format!("CLUSTER DELSLOTS {slot}")), Reply::ok());
    assert!(matches!(b.reply(), Reply::Error(_)));
    assert_eq!(a.call("LOCK.INFO lock").error_word(), "CLUSTERDOWN");
    assert_eq!(a.call(format!("CLUSTER ADDSLOTS {slot}")), Reply::ok());
    see_state_ok(&mut a);
    assert_ne!(a.owner("lock").as_deref(), Some("B"));
}

#[test]
fn the_waiters_of_a_node_are_sent_away_when_its_replica_takes_over() {
    let primary = node_with_all_slots();
    let replica = second_node(&primary);
    let mut there = replica.client();
    assert_eq!(there.call(format!("CLUSTER REPLICATE {}", node_id(&primary))), Reply::ok());
    replica.see_in_sync_with(&primary);
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    let before = a.holder("lock");
    let mut b = primary.waiter("lock B BLOCK 0");
    eventually("the replica takes over", || {
        there.call("CLUSTER FAILOVER");
        there.server_info("replication", "role") == "master"
    });
    let reply = b.reply();
    assert!(["MOVED", "UNBLOCKED"].contains(&reply.error_word()), "{reply:?}");
    assert_eq!(there.holder("lock").tenure(), before.tenure());
    let mut b = replica.waiter("lock B BLOCK 0");
    there.call("LOCK.RELEASE lock A");
    assert!(b.reply().grant().token > before.token);
}
