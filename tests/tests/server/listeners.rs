//! While nobody listens, changes are not told. Whoever begins to listen, in the middle of it all, misses none.

use lockward_tests::{Client, Random, Reply, Server, Setup, eventually, rounds};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Owners at work, each over a connection of its own.
const OWNERS: u64 = 6;

/// Locks that they share.
const LOCKS: i64 = 40;

/// Acquires, renews and releases whatever it meets, until told to stop.
fn lock_and_unlock(server: &Server, owner: u64, seed: u64, stop: &AtomicBool) {
    let mut random = Random::from_seed(seed + owner);
    let mut client = server.client();
    while !stop.load(Ordering::Relaxed) {
        client.call_all((0..20).map(|_| {
            let lock = random.within(0..LOCKS);
            match random.within(0..5) {
                0..3 => format!("LOCK.ACQUIRE lock-{lock} {owner} PX 600000"),
                3 => format!("LOCK.RENEW lock-{lock} {owner} PX {}", random.within(500_000..700_000)),
                _ => format!("LOCK.RELEASE lock-{lock} {owner}"),
            }
        }));
    }
}

/// Two clients hand a lock to and fro, until told to stop.
fn hand_over(server: &Server, stop: &AtomicBool) {
    let mut observer = server.client();
    let (mut holder, mut waiter) = ((server.client(), "A"), (server.client(), "B"));
    holder.0.acquire("handed A PX 600000");
    while !stop.load(Ordering::Relaxed) {
        waiter.0.ask(&format!("handed {} PX 600000 BLOCK 0", waiter.1));
        observer.see_waiters("handed", 1);
        assert_eq!(holder.0.call(format!("LOCK.RELEASE handed {}", holder.1)), Reply::Int(0));
        assert_eq!(waiter.0.reply().grant().holds, 1);
        std::mem::swap(&mut holder, &mut waiter);
    }
}

/// Tells the clients at work to stop when it goes out of scope, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets somebody begin to listen while clients are at work, and stops them when he has heard enough.
#[track_caller]
fn while_clients_lock<T>(server: &Server, seed: u64, begin: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = Stop(&stop);
        for owner in 0..OWNERS {
            let stop = &stop;
            scope.spawn(move || lock_and_unlock(server, owner, seed, stop));
        }
        scope.spawn(|| hand_over(server, &stop));
        let mut client = server.client();
        let mut see_work = || {
            let before = client.stat("stats", "total_commands_processed");
            eventually("clients at work", || {
                client.stat("stats", "total_commands_processed") > before + 5_000
            });
        };
        // By then the server's cron has run many times, and found that nobody listens.
        see_work();
        let begun = begin();
        see_work();
        begun
    })
}

fn digest(server: &Server) -> Reply {
    server.client().call("DEBUG DIGEST")
}

#[test]
fn a_replica_that_attaches_while_clients_lock_misses_nothing() {
    let mut random = Random::new();
    for round in 0..rounds(4, 100) {
        let diskless = random.one_of(&["yes", "no"]);
        let delay = random.one_of(&["0", "1"]);
        let primary = Setup::new()
            .config("hz 500")
            .config(&format!("repl-diskless-sync {diskless}"))
            .config(&format!("repl-diskless-sync-delay {delay}"))
            .start();
        let saves = random.once_in(3);
        let replica = while_clients_lock(&primary, random.number(), || {
            if saves {
                // Its child may still be at work when the replica comes.
                primary.client().call("BGSAVE");
            }
            Setup::new().start_replica_of(&primary)
        });
        replica.see_in_sync_with(&primary);
        assert_eq!(digest(&replica), digest(&primary), "round {round}: {diskless}, {delay}, {saves}");
    }
}

#[test]
fn an_aof_that_is_switched_on_while_clients_lock_misses_nothing() {
    let mut random = Random::new();
    for round in 0..rounds(3, 100) {
        let mut server = Setup::new().config("hz 500").start();
        let saves = random.once_in(3);
        while_clients_lock(&server, random.number(), || {
            let mut client = server.client();
            if saves {
                client.call("BGSAVE");
            }
            assert_eq!(client.call("CONFIG SET appendonly yes"), Reply::ok());
            eventually("the AOF is there", || {
                client.stat("persistence", "aof_rewrite_in_progress") == 0
                    && client.stat("persistence", "aof_rewrite_scheduled") == 0
                    && client.server_info("persistence", "aof_last_bgrewrite_status") == "ok"
            });
        });
        let before = digest(&server);
        server.kill();
        server.change_setup(|setup| setup.config("appendonly yes"));
        server.start_again();
        assert_eq!(digest(&server), before, "round {round}: {saves}");
    }
}

#[test]
fn a_replica_that_is_promoted_tells_those_who_come_then() {
    let mut random = Random::new();
    let primary = Server::start();
    let replica = Setup::new().config("hz 500").start_replica_of(&primary);
    primary.client().acquire("lock-0 0 PX 600000");
    replica.see_in_sync_with(&primary);
    replica.promote();
    let next = while_clients_lock(&replica, random.number(), || Setup::new().start_replica_of(&replica));
    next.see_in_sync_with(&replica);
    assert_eq!(digest(&next), digest(&replica));
}

#[test]
fn what_nobody_hears_counts_as_a_change_all_the_same() {
    let server = Setup::new().config("hz 500").start();
    let mut client = server.client();
    let changes = |client: &mut Client| client.stat("persistence", "rdb_changes_since_last_save");
    for lock in 0..100 {
        let before = changes(&mut client);
        client.acquire(&format!("lock-{lock} A"));
        client.call(format!("LOCK.RENEW lock-{lock} A"));
        assert!(changes(&mut client) >= before + 2);
    }
}
