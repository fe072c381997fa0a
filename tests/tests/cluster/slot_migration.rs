//! Atomic slot migration by the servers: `CLUSTER MIGRATESLOTS` from Valkey 9 on, `CLUSTER MIGRATION` from Redis 8.4
//! on.

use lockward_tests::{Cluster, Reply, Server, Setup, eventually, slot_of};

/// A cluster with atomic slot migration.
struct Migrations {
    cluster: Cluster,
    is_valkey: bool,
}

impl Migrations {
    /// Returns `None` if the server has no atomic slot migration.
    #[track_caller]
    fn start() -> Option<Self> {
        let node = Setup::new().start_node();
        let is_valkey = node.has_command("cluster|migrateslots");
        (is_valkey || node.has_command("cluster|migration"))
            .then(|| Self { cluster: Cluster::start_without_replicas(Setup::new()), is_valkey })
    }

    /// The node that serves the slot of `lock`, and another node.
    #[track_caller]
    fn nodes(&self) -> (&Server, &Server) {
        self.cluster.owner_and_other("lock")
    }

    /// Begins to move the slot of `lock`.
    #[track_caller]
    fn begin(&self, from: &Server, to: &Server) {
        let slot = slot_of("lock");
        if self.is_valkey {
            let request = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", to.node_id());
            assert_eq!(from.client().call(request), Reply::ok());
        } else {
            let id = to.client().call(format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
            assert!(matches!(id, Reply::Bulk(_)), "{id:?}");
        }
    }

    /// Begins a slow move of the slot of `lock`. On Valkey the move ends only with [`Migrations::finish`].
    #[track_caller]
    fn begin_slowly(&self, from: &Server, to: &Server) {
        let mut client = from.client();
        if self.is_valkey {
            assert_eq!(client.call("DEBUG SLOTMIGRATION PREVENT-PAUSE 1"), Reply::ok());
            self.begin(from, to);
            self.see(from, "waiting-to-pause");
        } else {
            // With this delay for each key, the snapshot takes 2 seconds. After the snapshot, the server sends the
            // changes made in these 2 seconds.
            client.call_all((0..100).map(|number| format!("SET {{lock}}:{number} value")));
            assert_eq!(client.call("CONFIG SET rdb-key-save-delay 20000"), Reply::ok());
            self.begin(from, to);
            self.see(from, "send-bulk-and-stream");
        }
    }

    /// Lets a move of [`Migrations::begin_slowly`] finish.
    #[track_caller]
    fn finish(&self, from: &Server) {
        if self.is_valkey {
            assert_eq!(from.client().call("DEBUG SLOTMIGRATION PREVENT-PAUSE 0"), Reply::ok());
        }
        self.see_end(from);
    }

    #[track_caller]
    fn see_end(&self, from: &Server) {
        self.see(from, if self.is_valkey { "success" } else { "completed" });
    }

    #[track_caller]
    fn cancel(&self, from: &Server, to: &Server) {
        if self.is_valkey {
            from.client().call("CLUSTER CANCELSLOTMIGRATIONS");
            self.see(from, "cancelled");
        } else {
            assert_eq!(to.client().call("CLUSTER MIGRATION CANCEL ALL"), Reply::Int(1));
            eventually("the migration is cancelled", || {
                self.state(from).is_none_or(|state| state == "failed")
            });
        }
    }

    /// Waits until the state of the source node's latest migration begins with `state`.
    #[track_caller]
    fn see(&self, from: &Server, state: &str) {
        eventually(&format!("the migration is in state {state}"), || {
            let now = self.state(from);
            assert_ne!(now.as_deref(), Some("failed"));
            now.is_some_and(|now| now.starts_with(state))
        });
    }

    fn state(&self, from: &Server) -> Option<String> {
        let status =
            if self.is_valkey { "CLUSTER GETSLOTMIGRATIONS" } else { "CLUSTER MIGRATION STATUS ALL" };
        let jobs = from.client().call(status);
        jobs.items().first().map(|job| job.field("state").text())
    }

    #[track_caller]
    fn migrate(&self, from: &Server, to: &Server) {
        self.begin(from, to);
        self.see_end(from);
        let mut far = to.client();
        eventually("the target serves the slot", || far.call("LOCK.INFO lock").redirection().is_none());
    }
}

#[test]
fn a_held_lock_moves_with_its_slot() {
    let Some(migrations) = Migrations::start() else { return };
    let (first, second) = migrations.nodes();
    let mut a = first.client();
    a.acquire("lock A PX 600000");
    a.acquire("lock A");
    let before = a.holder("lock");
    migrations.migrate(first, second);
    let mut far = second.client();
    let after = far.holder("lock");
    assert_eq!(after.tenure(), before.tenure());
    assert!(after.lease_left > 500_000, "{after:?}");
    assert_eq!(a.call("LOCK.INFO lock").error_word(), "MOVED");
    assert_eq!(far.call("LOCK.RELEASE lock A ALL"), Reply::Int(0));
}

#[test]
fn all_holders_of_a_lock_move_with_its_slot_and_kept_places_end() {
    let Some(migrations) = Migrations::start() else { return };
    let (first, second) = migrations.nodes();
    let mut a = first.client();
    for request in ["A SLOTS 9 WEIGHT 3", "B SHARED", "C SHARED"] {
        a.acquire(&format!("lock {request} PX 600000"));
    }
    drop(first.waiter("lock W BLOCK 0 HOLDS 1 KEEP 60000"));
    a.see_places_kept(1);
    let before = a.holders("lock");
    assert_eq!(before.len(), 3);
    migrations.migrate(first, second);
    let mut far = second.client();
    assert_eq!(far.holders("lock"), before);
    assert!(far.call("LOCK.ACQUIRE lock D").is_null());
    assert_eq!(far.acquire("lock D SHARED").holds, 1);
    a.see_places_kept(0);
}

#[test]
fn waiters_are_sent_away_when_their_slot_is_moved_whole() {
    let Some(migrations) = Migrations::start() else { return };
    let (first, second) = migrations.nodes();
    let mut a = first.client();
    a.acquire("lock A PX 600000");
    let before = a.holder("lock");
    let mut b = first.waiter("lock B BLOCK 0");
    migrations.migrate(first, second);
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
    let Some(migrations) = Migrations::start() else { return };
    let (first, second) = migrations.nodes();
    let mut a = first.client();
    a.acquire("lock A PX 600000");
    migrations.begin_slowly(first, second);
    let mut b = first.waiter("lock B BLOCK 0 PX 600000");
    let mut c = first.waiter("lock C BLOCK 0 PX 600000");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    // B's lease ends without a command, so the module must replicate this end from a background callback.
    a.call("LOCK.RENEW lock B PX 50").int();
    let grant = c.reply().grant();
    assert_eq!(second.client().call("LOCK.INFO lock").error_word(), "MOVED");
    migrations.finish(first);
    assert_eq!(second.client().holder("lock").tenure(), ("C", 1, grant.token));
}

#[test]
fn a_slot_whose_migration_is_cancelled_keeps_its_waiters() {
    let Some(migrations) = Migrations::start() else { return };
    let (first, second) = migrations.nodes();
    let mut a = first.client();
    a.acquire("lock A PX 600000");
    let mut b = first.waiter("lock B BLOCK 0");
    if migrations.is_valkey {
        assert_eq!(second.client().call("DEBUG SLOTMIGRATION PREVENT-FAILOVER 1"), Reply::ok());
        migrations.begin(first, second);
        // In the states that begin with `failover-`, the source node pauses writes.
        migrations.see(first, "failover-");
    } else {
        migrations.begin_slowly(first, second);
    }
    migrations.cancel(first, second);
    assert!(b.has_no_reply());
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    assert_eq!(b.reply().grant().holds, 1);
    assert_eq!(second.client().call("LOCK.INFO lock").error_word(), "MOVED");
}

#[test]
fn waiters_on_a_long_key_are_sent_away_when_their_slot_is_moved_whole() {
    let Some(migrations) = Migrations::start() else { return };
    let (first, second) = migrations.nodes();
    let key = format!("{{lock}}{}", "long".repeat(100));
    let token = first.client().acquire(&format!("{key} A PX 600000")).token;
    let mut b = first.waiter(&format!("{key} B BLOCK 0"));
    migrations.migrate(first, second);
    assert_eq!(second.client().holder(&key).token, token);
    let reply = b.reply();
    assert!(["MOVED", "TRYAGAIN"].contains(&reply.error_word()), "{reply:?}");
}
