//! Atomic slot migration by the servers themselves (`CLUSTER MIGRATESLOTS`, from Valkey 9 on; `CLUSTER MIGRATION`,
//! from Redis 8.4 on).

use lockward_tests::{Client, Cluster, Reply, Server, Setup, eventually, slot_of};

/// A cluster; `None` where the server has no such command.
#[track_caller]
fn cluster() -> Option<Cluster> {
    let has_it = Setup::new().start_node().has_command("cluster|migrateslots");
    has_it.then(|| Cluster::start_without_replicas(Setup::new()))
}

/// Begins to move the slot of `lock` from the node of `client` to `to`.
#[track_caller]
fn begin_to_migrate(client: &mut Client, to: &Server) {
    let slot = slot_of("lock");
    let asked = client.call(format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", to.node_id()));
    assert_eq!(asked, Reply::ok());
}

/// Waits until the latest migration of the node of `client` has come to `state`, or one whose name begins so.
#[track_caller]
fn see_migration(client: &mut Client, state: &str) {
    eventually(&format!("the migration: {state}"), || {
        let jobs = client.call("CLUSTER GETSLOTMIGRATIONS");
        let now = jobs.items()[0].field("state").text();
        assert_ne!(now, "failed", "{jobs:?}");
        now.starts_with(state)
    });
}

#[track_caller]
fn migrate(client: &mut Client, to: &Server) {
    begin_to_migrate(client, to);
    see_migration(client, "success");
}

#[test]
fn a_held_lock_moves_with_its_slot() {
    let Some(cluster) = cluster() else { return };
    let (first, second) = cluster.owner_and_other("lock");
    let mut a = first.client();
    a.acquire("lock A PX 600000");
    a.acquire("lock A");
    let before = a.holder("lock");
    migrate(&mut a, second);
    let mut far = second.client();
    let after = far.holder("lock");
    assert_eq!(after.tenure(), before.tenure());
    assert!(after.lease_left > 500_000, "{after:?}");
    assert_eq!(a.call("LOCK.INFO lock").error_word(), "MOVED");
    assert_eq!(far.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
}

#[test]
fn all_holders_of_a_lock_move_with_its_slot_and_kept_places_end() {
    let Some(cluster) = cluster() else { return };
    let (first, second) = cluster.owner_and_other("lock");
    let mut a = first.client();
    for request in ["A SLOTS 9 WEIGHT 3", "B SHARED", "C SHARED"] {
        a.acquire(&format!("lock {request} PX 600000"));
    }
    drop(first.waiter("lock W BLOCK 0 HOLDS 1 KEEP 60000"));
    a.see_places_kept(1);
    let before = a.holders("lock");
    assert_eq!(before.len(), 3);
    migrate(&mut a, second);
    let mut far = second.client();
    assert_eq!(far.holders("lock"), before);
    assert!(far.call("LOCK.ACQUIRE lock D").is_null());
    assert_eq!(far.acquire("lock D SHARED").holds, 1);
    a.see_places_kept(0);
}

#[test]
fn waiters_are_sent_away_when_their_slot_is_moved_whole() {
    let Some(cluster) = cluster() else { return };
    let (first, second) = cluster.owner_and_other("lock");
    let mut a = first.client();
    a.acquire("lock A PX 600000");
    let before = a.holder("lock");
    let mut b = first.waiter("lock B BLOCK 0");
    migrate(&mut a, second);
    let reply = b.reply();
    assert!(["MOVED", "TRYAGAIN"].contains(&reply.error_word()), "{reply:?}");
    let mut far = second.client();
    assert_eq!(far.holder("lock").tenure(), before.tenure());
    let mut b = second.waiter("lock B BLOCK 0");
    far.call("LOCK.RELEASE lock A");
    assert!(b.reply().grant().token > before.token);
}

#[test]
fn changes_made_while_a_slot_is_moved_move_with_it() {
    let Some(cluster) = cluster() else { return };
    let (first, second) = cluster.owner_and_other("lock");
    let mut a = first.client();
    a.acquire("lock A PX 600000");
    assert_eq!(a.call("DEBUG SLOTMIGRATION PREVENT-PAUSE 1"), Reply::ok());
    begin_to_migrate(&mut a, second);
    see_migration(&mut a, "waiting-to-pause");
    let mut b = first.waiter("lock B BLOCK 0 PX 600000");
    let mut c = first.waiter("lock C BLOCK 0 PX 600000");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    // The end of this lease is noticed in the background.
    a.call("LOCK.RENEW lock B PX 50").int();
    let grant = c.reply().grant();
    assert_eq!(second.client().call("LOCK.INFO lock").error_word(), "MOVED");
    assert_eq!(a.call("DEBUG SLOTMIGRATION PREVENT-PAUSE 0"), Reply::ok());
    see_migration(&mut a, "success");
    assert_eq!(second.client().holder("lock").tenure(), ("C", 1, grant.token));
}

#[test]
fn a_slot_whose_migration_is_cancelled_keeps_its_waiters() {
    let Some(cluster) = cluster() else { return };
    let (first, second) = cluster.owner_and_other("lock");
    let mut a = first.client();
    a.acquire("lock A PX 600000");
    let mut b = first.waiter("lock B BLOCK 0");
    assert_eq!(second.client().call("DEBUG SLOTMIGRATION PREVENT-FAILOVER 1"), Reply::ok());
    begin_to_migrate(&mut a, second);
    // From this state on, the source node pauses writes.
    see_migration(&mut a, "failover-");
    a.call("CLUSTER CANCELSLOTMIGRATIONS");
    see_migration(&mut a, "cancelled");
    assert!(b.has_no_reply());
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
    assert_eq!(second.client().call("LOCK.INFO lock").error_word(), "MOVED");
}

#[test]
fn waiters_on_short_and_long_keys_are_sent_away_when_redis_moves_their_slot_whole() {
    if !Setup::new().start_node().has_command("cluster|migration") {
        return println!("only Redis, from 8.4 on, has this command");
    }
    let cluster = Cluster::start_without_replicas(Setup::new());
    for key in ["lock".to_owned(), "long".repeat(100)] {
        let (from, to) = cluster.owner_and_other(&key);
        let slot = slot_of(&key);
        let token = from.client().acquire(&format!("{key} A PX 600000")).token;
        let mut b = from.waiter(&format!("{key} B BLOCK 0"));
        let mut target = to.client();
        let asked = target.call(format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
        assert!(matches!(asked, Reply::Bulk(_)), "{asked:?}");
        eventually("the slot has moved", || target.call(["LOCK.INFO", &key]).redirection().is_none());
        assert_eq!(target.holder(&key).token, token);
        let reply = b.reply();
        assert!(["MOVED", "TRYAGAIN"].contains(&reply.error_word()), "{reply:?}");
    }
}
