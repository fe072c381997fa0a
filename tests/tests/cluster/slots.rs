//! Cluster mode: a lock moves with its slot, and no node grants a lock of a slot that it does not own.

use lockward_tests::{
    Client, Cluster, Redirection, Reply, Server, Setup, WallClock, eventually, rounds, slot_of,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn three_primaries() -> Cluster {
    Cluster::start_without_replicas(Setup::new())
}

/// Three primaries with a long node timeout, so that no node counts as failed if the machine stops for some seconds.
#[track_caller]
fn three_steady_primaries() -> Cluster {
    Cluster::start_without_replicas(Setup::new().config("cluster-node-timeout 20000"))
}

/// Ends the load when this value goes out of scope. Without this value, a failed test would wait forever for the
/// threads of the load.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[track_caller]
fn node_with_all_slots(setup: Setup) -> Server {
    let node = setup.start_node();
    let mut client = node.client();
    assert_eq!(client.call("CLUSTER ADDSLOTSRANGE 0 16383"), Reply::ok());
    see_state(&mut client, "ok");
    node
}

#[track_caller]
fn see_state(client: &mut Client, state: &str) {
    let state = format!("cluster_state:{state}");
    eventually(&state, || client.call("CLUSTER INFO").text().contains(&state));
}

/// Sends ASKING and a command, as a client does after the redirection ASK.
#[track_caller]
fn ask_with_leave(client: &mut Client, command: &str) {
    client.send_all(["ASKING", command]);
    assert_eq!(client.reply(), Reply::ok());
}

/// A key that `node` serves, in a different slot than `key`.
fn another_key_of(cluster: &Cluster, node: &Server, key: &str) -> String {
    let here = |other: &String| {
        slot_of(other) != slot_of(key) && cluster.owner(slot_of(other)).port() == node.port()
    };
    (0..).map(|number| format!("other-{number}")).find(here).expect("a key")
}

#[test]
fn locks_work_in_cluster_mode() {
    let node = node_with_all_slots(Setup::new());
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
fn a_node_redirects_a_request_to_the_node_that_owns_the_slot() {
    let cluster = three_primaries();
    let (owner, other) = cluster.owner_and_other("lock");
    let mut client = other.client();
    for command in [
        "LOCK.ACQUIRE lock A",
        "LOCK.ACQUIRE lock A BLOCK 0",
        "LOCK.RELEASE lock A",
        "LOCK.RENEW lock A",
        "LOCK.INFO lock",
        "LOCK._GATE lock",
    ] {
        let sent = client.call(command).redirection();
        assert_eq!(sent, Some(Redirection::Moved(owner.port())), "{command}");
    }
    // LOCK.TOP has no key, so every node executes it.
    assert_eq!(client.call("LOCK.TOP").items(), []);
    owner.client().acquire("lock A PX 600000");
    let _b = owner.waiter("lock B BLOCK 0");
    assert_eq!(owner.client().call("LOCK.TOP").items().len(), 1);
    assert_eq!(client.call("LOCK.TOP").items(), []);
}

#[test]
fn a_script_may_use_only_one_slot_and_only_if_all_its_keys_are_on_the_node() {
    let cluster = three_primaries();
    let (owner, to) = cluster.owner_and_other("{tag}1");
    let mut client = owner.client();
    let grant = |other: &str| {
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'A')[2] + redis.call('LOCK.ACQUIRE', KEYS[2], 'A')[2]";
        owner.client().call(["EVAL", script, "2", "{tag}1", other])
    };
    assert_eq!(grant("{tag}2"), Reply::Int(2));
    assert_eq!(grant(&another_key_of(&cluster, owner, "{tag}1")).error_word(), "CROSSSLOT");
    let moving = cluster.begin_to_move(slot_of("{tag}1"), to);
    assert_eq!(client.call("LOCK.RELEASE {tag}2 A"), Reply::Int(0));
    assert_eq!(grant("{tag}2").error_word(), "TRYAGAIN");
    moving.carry_all();
    moving.end();
    assert_eq!(to.client().holder("{tag}1").holds, 1);
}

#[test]
fn lock_top_is_an_error_in_a_transaction_and_in_a_script_of_one_slot() {
    let node = node_with_all_slots(Setup::new());
    let mut client = node.client();
    client.acquire("other A PX 600000");
    let _b = node.waiter("other B BLOCK 0");
    let [_, reply] = client.transact(["LOCK.ACQUIRE lock A", "LOCK.TOP"]);
    assert!(reply.error().contains("not possible in a transaction or script"), "{reply:?}");
    let reply = client.call(["EVAL", "return redis.call('LOCK.TOP')", "1", "lock"]);
    assert!(reply.error().contains("not possible in a transaction or script"), "{reply:?}");
    assert_eq!(client.call("LOCK.TOP").items()[0].field("holder"), &Reply::bulk("A"));
}

#[test]
fn locks_of_every_database_move_with_their_slot() {
    let has_them = Setup::new().start_node().client().call("CONFIG GET cluster-databases");
    if has_them.items().is_empty() {
        return println!("only Valkey, from 9 on, has databases in a cluster");
    }
    let cluster = Cluster::start_without_replicas(Setup::new().config("cluster-databases 4"));
    let (from, to) = cluster.owner_and_other("lock");
    let clients = [0, 2].map(|db| {
        let mut holder = from.client();
        assert_eq!(holder.call(format!("SELECT {db}")), Reply::ok());
        let granted = holder.acquire("lock A PX 600000");
        let mut waiter = from.client();
        assert_eq!(waiter.call(format!("SELECT {db}")), Reply::ok());
        waiter.ask("lock B BLOCK 0");
        holder.see_waiters("lock", 1);
        (db, granted, waiter)
    });
    let moving = cluster.begin_to_move(slot_of("lock"), to);
    for (db, granted, mut waiter) in clients {
        let mut source = from.client();
        assert_eq!(source.call(format!("SELECT {db}")), Reply::ok());
        let moved = source.call(format!("MIGRATE 127.0.0.1 {} lock {db} 10000", to.port()));
        assert_eq!(moved, Reply::ok());
        assert_eq!(waiter.reply().error_word(), "TRYAGAIN");
        let mut there = to.client();
        assert_eq!(there.call(format!("SELECT {db}")), Reply::ok());
        ask_with_leave(&mut there, "LOCK.RENEW lock A PX 600000");
        assert_eq!(there.reply(), Reply::Int(granted.token));
    }
    moving.end();
}

#[test]
fn a_lock_moves_with_its_slot_and_its_waiters_get_an_error() {
    let cluster = three_primaries();
    let (from, to) = cluster.owner_and_other("lock");
    let (mut here, mut there) = (from.client(), to.client());
    here.acquire("lock A PX 600000");
    here.acquire("lock A PX 600000");
    let (begun, before) = (Instant::now(), here.holder("lock"));
    let mut waiters = from.waiters("lock", ["B", "C", "D"]);
    cluster.move_slot(slot_of("lock"), to);
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().error_word(), "TRYAGAIN");
        assert_eq!(waiter.call("LOCK.ACQUIRE lock B").redirection(), Some(Redirection::Moved(to.port())));
    }
    assert_eq!(here.call(format!("CLUSTER COUNTKEYSINSLOT {}", slot_of("lock"))), Reply::Int(0));
    let after = there.holder("lock");
    let took = i64::try_from(begun.elapsed().as_millis()).unwrap();
    assert_eq!(after.tenure(), before.tenure());
    // The lease may be shorter by the duration of the move and by rounding errors.
    assert!((before.lease_left - took - 10..=before.lease_left).contains(&after.lease_left), "{after:?}");
    let mut b = to.waiter("lock B BLOCK 0");
    there.call("LOCK.RELEASE lock A ALL");
    assert!(b.reply().grant().token > before.token);
}

#[test]
fn a_lock_with_several_holders_moves_with_its_slot() {
    let cluster = three_primaries();
    let (from, to) = cluster.owner_and_other("lock");
    let (mut here, mut there) = (from.client(), to.client());
    for request in ["A SLOTS 9 WEIGHT 3", "B SHARED", "C SHARED"] {
        here.acquire(&format!("lock {request} PX 600000"));
    }
    here.call("LOCK.RENEW lock A SHARED PX 600000").int();
    let (before, tokens) = (here.holders("lock"), here.info("lock").unwrap().holders);
    assert_eq!(before[1..], ["B x1 SHARED", "C x1 SHARED"]);
    let mut writer = from.waiter("lock W BLOCK 0");
    cluster.move_slot(slot_of("lock"), to);
    assert_eq!(writer.reply().error_word(), "TRYAGAIN");
    assert_eq!(there.holders("lock"), before);
    let after = there.info("lock").unwrap();
    assert_eq!(after.weight, 5);
    assert!(after.holders.iter().zip(&tokens).all(|(after, before)| after.token == before.token));
    assert_eq!(there.acquire("lock D SHARED").holds, 1);
    let mut writer = to.waiter("lock W BLOCK 0");
    for owner in ["A", "B", "C", "D"] {
        assert_eq!(there.call(format!("LOCK.RELEASE lock {owner}")), Reply::Int(0));
    }
    assert!(writer.reply().grant().token > tokens[2].token);
}

#[test]
fn kept_places_end_when_their_slot_moves() {
    let cluster = three_primaries();
    let (from, to) = cluster.owner_and_other("lock");
    let mut here = from.client();
    here.acquire("lock A PX 600000");
    drop(from.waiter("lock V BLOCK 0 HOLDS 1 KEEP 60000"));
    here.see_places_kept(1);
    let mut w = from.waiter("lock W BLOCK 0 HOLDS 1 KEEP 60000");
    cluster.move_slot(slot_of("lock"), to);
    assert_eq!(w.reply().error_word(), "TRYAGAIN");
    here.see_places_kept(0);
    // No client waits while the slot moves back. The kept place must still end.
    let mut there = to.client();
    drop(to.waiter("lock V BLOCK 0 HOLDS 1 KEEP 60000"));
    there.see_places_kept(1);
    cluster.move_slot(slot_of("lock"), from);
    there.see_places_kept(0);
}

#[test]
fn while_a_slot_migrates_a_lock_that_has_moved_is_granted_only_by_the_target() {
    let cluster = three_primaries();
    let (from, to) = cluster.owner_and_other("lock");
    let (mut here, mut there) = (from.client(), to.client());
    let first = here.acquire("lock A PX 600000");
    let moving = cluster.begin_to_move(slot_of("lock"), to);
    // While the lock is still on the source, the source executes commands on the lock and serves its waiters.
    let mut b = from.waiter("lock B BLOCK 0 PX 600000");
    here.call("LOCK.RELEASE lock A");
    let second = b.reply().grant();
    let mut c = from.waiter("lock C BLOCK 0");
    moving.carry_all();
    assert_eq!(c.reply().error_word(), "TRYAGAIN");
    for command in
        ["LOCK.ACQUIRE lock C", "LOCK.ACQUIRE lock C BLOCK 0", "LOCK.RELEASE lock B", "LOCK.INFO lock"]
    {
        assert_eq!(here.call(command).redirection(), Some(Redirection::Ask(to.port())), "{command}");
    }
    // On the target, a client that sends ASKING can wait, and is granted the lock. A client that does not send ASKING
    // is redirected.
    assert_eq!(there.call("LOCK.ACQUIRE lock C").redirection(), Some(Redirection::Moved(from.port())));
    let mut c = to.client();
    ask_with_leave(&mut c, "LOCK.ACQUIRE lock C BLOCK 0");
    there.see_blocked(1);
    ask_with_leave(&mut there, "LOCK.RELEASE lock B");
    assert_eq!(there.reply(), Reply::Int(0));
    let third = c.reply().grant();
    moving.end();
    assert_eq!(there.holder("lock").token, third.token);
    assert!(first.token < second.token && second.token < third.token);
}

#[test]
fn the_target_of_an_unfinished_migration_grants_nothing_in_the_background() {
    let cluster = three_primaries();
    let (from, to) = cluster.owner_and_other("lock");
    from.client().acquire("lock A PX 2000");
    let moving = cluster.begin_to_move(slot_of("lock"), to);
    moving.carry_all();
    let mut b = to.client();
    ask_with_leave(&mut b, "LOCK.ACQUIRE lock B BLOCK 0 PX 600000");
    assert_eq!(b.reply().error_word(), "TRYAGAIN");
    assert_eq!(from.client().call("LOCK.ACQUIRE lock B").redirection(), Some(Redirection::Ask(to.port())));
    ask_with_leave(&mut b, "LOCK.ACQUIRE lock B BLOCK 0 PX 600000");
    let granted = b.reply().grant();
    moving.end();
    assert_eq!(to.client().holder("lock").token, granted.token);
}

#[test]
fn a_lock_that_is_moved_to_another_node_and_back_is_the_same() {
    let cluster = three_primaries();
    let (from, to) = cluster.owner_and_other("lock");
    let mut here = from.client();
    here.acquire("lock A PX 600000");
    let before = here.holder("lock");
    for (source, target) in [(from, to), (to, from)] {
        let mut waiter = source.waiter("lock B BLOCK 0");
        cluster.move_slot(slot_of("lock"), target);
        assert_eq!(waiter.reply().error_word(), "TRYAGAIN");
    }
    assert_eq!(here.holder("lock").tenure(), before.tenure());
    let mut b = from.waiter("lock B BLOCK 0");
    here.call("LOCK.RELEASE lock A");
    assert!(b.reply().grant().token > before.token);
}

#[test]
fn a_move_counts_the_lease_by_the_wall_clocks_and_never_extends_it() {
    const APART: i64 = 10_000;
    let length = Duration::from_millis(APART.unsigned_abs());
    for (key, taken_off) in [("ahead", APART), ("behind", 0)] {
        let mut clock = WallClock::new();
        let (from, to) = (Server::start(), Setup::new().clock(&clock).start());
        if taken_off > 0 {
            clock.forward(length)
        } else {
            clock.back(length)
        }
        let mut here = from.client();
        here.acquire(&format!("{key} A PX 600000"));
        let (begun, before) = (Instant::now(), here.holder(key));
        assert_eq!(here.call(format!("MIGRATE 127.0.0.1 {} {key} 0 10000", to.port())), Reply::ok());
        let after = to.client().holder(key);
        let took = i64::try_from(begun.elapsed().as_millis()).unwrap();
        let most = before.lease_left - taken_off;
        assert!((most - took - 10..=most + 10).contains(&after.lease_left), "{key}: {before:?}, {after:?}");
        assert_eq!(after.tenure(), before.tenure());
    }
}

#[test]
fn a_waiter_for_a_lock_that_nobody_holds_gets_an_error_when_its_slot_moves() {
    let cluster = Cluster::start_without_replicas(Setup::new().module("quarantine 600000"));
    let (from, to) = cluster.owner_and_other("lock");
    let mut b = from.client();
    b.ask("lock B BLOCK 0");
    let mut here = from.client();
    here.see_blocked(1);
    cluster.move_slot(slot_of("lock"), to);
    assert_eq!(b.reply().error_word(), "TRYAGAIN");
}

#[test]
fn a_waiter_gets_an_error_when_its_slot_moves_although_writes_are_refused() {
    let cluster = Cluster::start_without_replicas(Setup::new().module("quarantine 600000"));
    let (from, to) = cluster.owner_and_other("lock");
    let mut b = from.client();
    b.ask("lock B BLOCK 0");
    let mut here = from.client();
    here.see_blocked(1);
    assert_eq!(here.call("CONFIG SET min-replicas-to-write 1"), Reply::ok());
    cluster.move_slot(slot_of("lock"), to);
    assert_eq!(b.reply().error_word(), "TRYAGAIN");
}

#[test]
fn no_waiter_is_granted_a_lock_whose_slot_has_moved() {
    let node = node_with_all_slots(Setup::new());
    let mut a = node.client();
    a.acquire("lock A PX 2000");
    let slot = slot_of("lock");
    assert_eq!(a.call("CLUSTER KEYSLOT lock"), Reply::Int(slot.into()));
    let mut b = node.waiter("lock B BLOCK 0 PX 600000");
    assert_eq!(a.call(format!("CLUSTER DELSLOTS {slot}")), Reply::ok());
    assert_eq!(b.reply().error_word(), "TRYAGAIN");
    assert_eq!(a.call("LOCK.INFO lock").error_word(), "CLUSTERDOWN");
    assert_eq!(a.call(format!("CLUSTER ADDSLOTS {slot}")), Reply::ok());
    see_state(&mut a, "ok");
    assert_ne!(a.owner("lock").as_deref(), Some("B"));
}

#[test]
fn waiters_get_an_error_in_a_cluster_that_is_down() {
    let node = node_with_all_slots(Setup::new().config("cluster-require-full-coverage yes"));
    let mut a = node.client();
    a.acquire("lock A PX 600000");
    let mut b = node.waiter("lock B BLOCK 0");
    let elsewhere = (0..16_384).find(|slot| *slot != slot_of("lock")).expect("another slot");
    assert_eq!(a.call(format!("CLUSTER DELSLOTS {elsewhere}")), Reply::ok());
    // Some servers end the wait with the error CLUSTERDOWN before the module ends it with TRYAGAIN.
    let reply = b.reply();
    assert!(["TRYAGAIN", "CLUSTERDOWN"].contains(&reply.error_word()), "{reply:?}");
    assert_eq!(b.call("LOCK.ACQUIRE lock B BLOCK 0").error_word(), "CLUSTERDOWN");
    assert_eq!(a.call(format!("CLUSTER ADDSLOTS {elsewhere}")), Reply::ok());
    see_state(&mut a, "ok");
    let mut b = node.waiter("lock B BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
}

/// A short key, and a long key. The module periodically checks the slots of keys with waiters, but for a long key the
/// module checks a short key of the same slot.
fn short_and_long() -> [String; 2] {
    ["lock".to_owned(), "long".repeat(100)]
}

#[test]
fn waiters_get_an_error_when_the_cluster_goes_down_because_any_slot_is_missing() {
    for key in short_and_long() {
        let own = slot_of(&key);
        for missing in [0, own] {
            let node = node_with_all_slots(Setup::new().config("cluster-require-full-coverage yes"));
            let mut a = node.client();
            a.acquire(&format!("{key} A PX 600000"));
            let mut b = node.waiter(&format!("{key} B BLOCK 0"));
            assert_eq!(a.call(format!("CLUSTER DELSLOTS {missing}")), Reply::ok());
            let reply = b.reply();
            assert!(["TRYAGAIN", "CLUSTERDOWN"].contains(&reply.error_word()), "slot {missing}: {reply:?}");
        }
    }
}

#[test]
fn a_waiter_gets_an_error_when_no_node_serves_the_slot_of_a_held_lock() {
    for key in short_and_long() {
        let node = node_with_all_slots(Setup::new().config("cluster-require-full-coverage no"));
        let mut a = node.client();
        a.acquire(&format!("{key} A PX 600000"));
        let mut b = node.waiter(&format!("{key} B BLOCK 0"));
        assert_eq!(a.call(format!("CLUSTER DELSLOTS {}", slot_of(&key))), Reply::ok());
        let reply = b.reply();
        assert!(["TRYAGAIN", "CLUSTERDOWN"].contains(&reply.error_word()), "{reply:?}");
    }
}

#[test]
fn a_waiter_on_a_long_key_that_nobody_holds_gets_an_error_when_its_slot_moves() {
    let [_, key] = short_and_long();
    let cluster = Cluster::start_without_replicas(Setup::new().module("quarantine 600000"));
    let (from, to) = cluster.owner_and_other(&key);
    let mut b = from.client();
    b.ask(&format!("{key} B BLOCK 0"));
    from.client().see_blocked(1);
    cluster.move_slot(slot_of(&key), to);
    assert_eq!(b.reply().error_word(), "TRYAGAIN");
}

#[test]
fn a_waiter_on_a_long_key_that_was_evicted_gets_an_error_when_its_slot_moves() {
    let [_, key] = short_and_long();
    let cluster = three_primaries();
    let (from, to) = cluster.owner_and_other(&key);
    let mut a = from.client();
    a.acquire(&format!("{key} A PX 600000"));
    let mut b = from.waiter(&format!("{key} B BLOCK 0"));
    a.evict(&key);
    cluster.move_slot(slot_of(&key), to);
    assert_eq!(b.reply().error_word(), "TRYAGAIN");
}

#[test]
fn a_tenure_whose_key_was_evicted_ends_with_its_slot() {
    for key in short_and_long() {
        let cluster = three_primaries();
        let (from, to) = cluster.owner_and_other(&key);
        let (mut here, mut there) = (from.client(), to.client());
        here.acquire(&format!("{key} A PX 600000"));
        here.evict(&key);
        cluster.move_slot(slot_of(&key), to);
        let granted = there.acquire(&format!("{key} B PX 600000"));
        assert_eq!(there.call(format!("LOCK.RELEASE {key} B")), Reply::Int(0));
        eventually("the former owner of the slot has forgotten the tenure", || {
            here.stat("lock", "lock_tenures_kept") == 0
        });
        cluster.move_slot(slot_of(&key), from);
        assert_eq!(here.call(format!("LOCK.RENEW {key} A")).error_word(), "NOTHELD");
        assert!(here.acquire(&format!("{key} C PX 600000")).token > granted.token);
    }
}

#[test]
fn replicas_of_both_primaries_follow_a_move() {
    let cluster = Cluster::start();
    let (from, to) = cluster.owner_and_other("lock");
    from.client().acquire("lock A PX 600000");
    cluster.move_slot(slot_of("lock"), to);
    let (left, got) = (cluster.replica_of(from), cluster.replica_of(to));
    left.see_in_sync_with(from);
    got.see_in_sync_with(to);
    let digest = |server: &Server| server.client().call("DEBUG DIGEST-VALUE lock");
    assert_eq!(left.client().call("DBSIZE"), Reply::Int(0));
    assert_eq!(digest(got), digest(to));
    let mut reader = got.client();
    assert_eq!(reader.call("READONLY"), Reply::ok());
    assert_eq!(reader.holder("lock").tenure(), to.client().holder("lock").tenure());
}

#[test]
fn a_planned_failover_keeps_the_tenure_and_waiters_get_an_error() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    let granted = client.call("lock", "LOCK.ACQUIRE lock A PX 600000").grant();
    for how in ["", "FORCE", "TAKEOVER"] {
        let from = cluster.owner(slot_of("lock"));
        let to = cluster.replica_of(from);
        to.see_in_sync_with(from);
        let mut b = from.waiter("lock B BLOCK 0");
        assert_eq!(to.client().call(format!("CLUSTER FAILOVER {how}")), Reply::ok());
        assert_eq!(b.reply().error_word(), "UNBLOCKED", "CLUSTER FAILOVER {how}");
        cluster.see_agreement();
        from.see_in_sync_with(to);
        let mut there = to.client();
        assert_eq!(there.holder("lock").tenure(), ("A", 1, granted.token));
    }
    let owner = cluster.owner(slot_of("lock"));
    let mut b = owner.waiter("lock B BLOCK 0");
    client.call("lock", "LOCK.RELEASE lock A");
    assert!(b.reply().grant().token > granted.token);
}

#[test]
fn the_replica_of_a_primary_that_dies_keeps_its_tenures() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    let granted = client.call("lock", "LOCK.ACQUIRE lock A PX 600000").grant();
    let owner = cluster.owner(slot_of("lock"));
    cluster.replica_of(owner).see_in_sync_with(owner);
    let port = owner.port();
    let died = cluster.nodes_mut().iter_mut().find(|node| node.port() == port).expect("it");
    died.kill();
    // The client repeats the command until the replica has taken over.
    assert!(client.call("lock", "LOCK.ACQUIRE lock B").is_null());
    assert_eq!(client.call("lock", "LOCK.RELEASE lock A"), Reply::Int(0));
    let next = client.call("lock", "LOCK.ACQUIRE lock B PX 600000").grant();
    assert!(next.token > granted.token);
    let died = cluster.nodes_mut().iter_mut().find(|node| node.port() == port).expect("it");
    died.start_again();
    cluster.see_agreement();
    let owner = cluster.owner(slot_of("lock"));
    assert_ne!(owner.port(), port);
    cluster.replica_of(owner).see_in_sync_with(owner);
}

/// What the clients together know about a contended lock.
#[derive(Default)]
struct Contended {
    held: AtomicBool,
    last_token: Mutex<i64>,
}

/// Acquires and releases all `locks`, in turn, until `stop` is set. Returns the number of grants.
fn contend(cluster: &Cluster, who: usize, locks: &HashMap<String, Contended>, stop: &AtomicBool) -> usize {
    let mut client = cluster.client();
    let mut grants = 0;
    while !stop.load(Ordering::Relaxed) {
        for (key, lock) in locks {
            let granted =
                client.call(key, &format!("LOCK.ACQUIRE {key} load-{who} BLOCK 0 PX 60000")).grant();
            assert!(!lock.held.swap(true, Ordering::SeqCst), "{key} has two holders");
            let before = std::mem::replace(&mut *lock.last_token.lock().unwrap(), granted.token);
            assert!(before < granted.token, "{key}: token {} after {before}", granted.token);
            lock.held.store(false, Ordering::SeqCst);
            assert_eq!(client.call(key, &format!("LOCK.RELEASE {key} load-{who}")), Reply::Int(0));
            grants += 1;
        }
    }
    grants
}

/// `each` keys in each of the first `slots` slots.
fn keys_of_first(slots: u16, each: usize) -> BTreeMap<u16, Vec<String>> {
    let mut found = BTreeMap::new();
    for tag in 0.. {
        let slot = slot_of(&format!("{{{tag}}}"));
        if slot < slots {
            found.entry(slot).or_insert_with(|| (0..each).map(|n| format!("{{{tag}}}:{n}")).collect());
        }
        if found.len() == usize::from(slots) {
            break;
        }
    }
    found
}

#[test]
fn slots_with_held_and_contended_locks_move_under_load() {
    const SOON: Duration = Duration::from_millis(200);
    let (slots, each) = rounds((5, 10), (20, 100));
    let cluster = three_steady_primaries();
    let from = cluster.owner(0);
    let to = cluster.owner(16_383);
    let keys = keys_of_first(slots, each);
    let contended = keys.values().map(|keys| (format!("{}:load", keys[0]), Contended::default())).collect();
    let stop = AtomicBool::new(false);
    let (mut late, mut slowest) = (0, Duration::ZERO);
    let grants: usize = thread::scope(|scope| {
        let (cluster, contended, stop) = (&cluster, &contended, &stop);
        let load: Vec<_> =
            (0..3).map(|who| scope.spawn(move || contend(cluster, who, contended, stop))).collect();
        let end = Ends(stop);
        let mut client = cluster.client();
        for (slot, keys) in &keys {
            let mut held: Vec<_> = keys
                .iter()
                .map(|key| {
                    client.call(key, &format!("LOCK.ACQUIRE {key} A PX 600000"));
                    let (since, before) = (Instant::now(), from.client().holder(key));
                    (key, before, since, from.waiter(&format!("{key} B BLOCK 0")))
                })
                .collect();
            cluster.move_slot(*slot, to);
            let moved = Instant::now();
            for (key, .., waiter) in &mut held {
                assert_eq!(waiter.reply().error_word(), "TRYAGAIN", "{key}");
                slowest = slowest.max(moved.elapsed());
                late += usize::from(moved.elapsed() > SOON);
            }
            for (key, before, since, waiter) in &mut held {
                let after = to.client().holder(key);
                let took = i64::try_from(since.elapsed().as_millis()).unwrap();
                assert_eq!(after.tenure(), before.tenure());
                let left = before.lease_left - took - 10..=before.lease_left;
                assert!(left.contains(&after.lease_left), "{key}: {before:?} became {after:?} in {took} ms");
                *waiter = to.waiter(&format!("{key} B BLOCK 0"));
            }
            for (key, before, _, mut waiter) in held {
                assert_eq!(client.call(key, &format!("LOCK.RELEASE {key} A")), Reply::Int(0));
                assert!(waiter.reply().grant().token > before.token);
            }
        }
        drop(end);
        load.into_iter().map(|one| one.join().expect("a load that does not fail")).sum()
    });
    println!(
        "{slots} slots of {each} locks: {grants} grants meanwhile; the last waiter got its error {slowest:?} after the move"
    );
    assert!(grants > usize::from(slots), "no load: {grants} grants");
    // On a busy machine some replies are late, so up to half of the replies may be late. If the module did not end the
    // waits at once, all replies would be late.
    assert!(
        late * 2 <= usize::from(slots) * each,
        "{late} of {} waiters got their error later than {SOON:?}",
        usize::from(slots) * each
    );
}

#[test]
fn operators_move_slots_with_redis_cli() {
    let slots = rounds(20, 1_000);
    let cluster = three_steady_primaries();
    let (from, to) = (cluster.owner(0), cluster.owner(16_383));
    // `reshard` moves the slots with the smallest numbers first, so the keys are in these slots.
    let keys = keys_of_first(slots, 1);
    let contended =
        keys.values().take(5).map(|keys| (format!("{}:load", keys[0]), Contended::default())).collect();
    let stop = AtomicBool::new(false);
    let mut held: Vec<_> = keys
        .values()
        .map(|keys| {
            let key = &keys[0];
            from.client().acquire(&format!("{key} A PX 600000"));
            (key, from.client().holder(key), from.waiter(&format!("{key} B BLOCK 0")))
        })
        .collect();
    let grants = thread::scope(|scope| {
        let load = scope.spawn(|| contend(&cluster, 0, &contended, &stop));
        let end = Ends(&stop);
        cluster.reshard(from, to, slots);
        drop(end);
        load.join().expect("a load that does not fail")
    });
    println!("{slots} slots by redis-cli, {} locks held: {grants} grants meanwhile", held.len());
    for (key, before, waiter) in &mut held {
        assert_eq!(waiter.reply().error_word(), "TRYAGAIN", "{key}");
        assert_eq!(to.client().holder(key).tenure(), before.tenure());
    }
}

#[test]
fn a_node_forgets_a_dropped_lock_whose_slot_has_moved_away() {
    let node = node_with_all_slots(Setup::new());
    let mut a = node.client();
    a.acquire("lock A PX 600000");
    let slot = a.call("CLUSTER KEYSLOT lock").int();
    a.evict("lock");
    assert_eq!(a.owner("lock").as_deref(), Some("A"));
    assert_eq!(a.stat("lock", "lock_tenures_kept"), 1);
    assert_eq!(a.call(format!("CLUSTER DELSLOTS {slot}")), Reply::ok());
    eventually("the tenure is forgotten", || a.stat("lock", "lock_tenures_kept") == 0);
    assert_eq!(a.call(format!("CLUSTER ADDSLOTS {slot}")), Reply::ok());
    see_state(&mut a, "ok");
    assert_eq!(a.info("lock"), None);
    assert_eq!(a.acquire("lock B").holds, 1);
}

#[test]
fn a_snapshot_of_a_node_contains_its_dropped_locks() {
    let node = node_with_all_slots(Setup::new());
    let mut a = node.client();
    let token = a.acquire("lock A PX 600000").token;
    a.evict("lock");
    assert_eq!(a.call("DEBUG RELOAD"), Reply::ok());
    assert_eq!(a.holder("lock").tenure(), ("A", 1, token));
    assert_eq!(a.call("DBSIZE"), Reply::Int(0));
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
}
