//! While there is no replica, AOF or backlog, the module replicates no changes. Nevertheless, a replica or AOF that is
//! added under load must not miss a change.

use lockward_tests::{Client, Random, Reply, Server, Setup, eventually, rounds};
use std::fs;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The number of owners that use locks, each over its own connection.
const OWNERS: u64 = 6;

/// The number of locks that the owners share.
const LOCKS: i64 = 40;

/// The work of clients that use locks. A test can pause and end the work.
#[derive(Default)]
struct Work {
    over: AtomicBool,
    stands: RwLock<()>,
}

impl Work {
    /// Runs `part` again and again until `over` is set, but not while the work is paused.
    fn go_on(&self, mut part: impl FnMut()) {
        while !self.over.load(Ordering::Relaxed) {
            let _goes_on = self.stands.read();
            part();
        }
    }

    /// Pauses the work of all clients, each between two parts, and runs `look` meanwhile.
    fn stand_still<T>(&self, look: impl FnOnce() -> T) -> T {
        let _stands = self.stands.write();
        look()
    }
}

/// Ends the work of the clients when this value goes out of scope, also after a panic.
struct Stop<'a>(&'a Work);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Acquires, renews and releases random locks: directly, in transactions and in scripts.
fn lock_and_unlock(server: &Server, owner: u64, seed: u64, work: &Work) {
    let mut random = Random::from_seed(seed + owner);
    let mut client = server.client();
    let one = |random: &mut Random| {
        let lock = random.within(0..LOCKS);
        match random.within(0..5) {
            0..3 => format!("LOCK.ACQUIRE lock-{lock} {owner} PX {}", random.within(500_000..700_000)),
            3 => format!("LOCK.RENEW lock-{lock} {owner} PX {}", random.within(500_000..700_000)),
            _ => format!("LOCK.RELEASE lock-{lock} {owner}"),
        }
    };
    work.go_on(|| {
        let mut commands: Vec<Vec<String>> = Vec::new();
        let words = |command: String| command.split(' ').map(str::to_owned).collect();
        for _ in 0..12 {
            commands.push(words(one(&mut random)));
        }
        commands.push(words("MULTI".to_owned()));
        for _ in 0..3 {
            commands.push(words(one(&mut random)));
        }
        commands.push(words("EXEC".to_owned()));
        let calls: Vec<String> =
            (0..3).map(|_| format!("redis.pcall('{}')", one(&mut random).replace(' ', "','"))).collect();
        commands.push(["EVAL", &calls.join(";"), "0"].map(str::to_owned).to_vec());
        client.call_all(commands);
    });
}

/// Two clients hand a lock over to each other.
fn hand_over(server: &Server, work: &Work) {
    let mut observer = server.client();
    let (mut holder, mut waiter) = ((server.client(), "A"), (server.client(), "B"));
    holder.0.acquire("handed A PX 600000");
    work.go_on(|| {
        waiter.0.ask(&format!("handed {} PX 600000 BLOCK 0", waiter.1));
        observer.see_waiters("handed", 1);
        assert_eq!(holder.0.call(format!("LOCK.RELEASE handed {}", holder.1)), Reply::Int(0));
        assert_eq!(waiter.0.reply().grant().holds, 1);
        std::mem::swap(&mut holder, &mut waiter);
    });
}

/// Runs `test` while clients use locks, and then stops the clients.
#[track_caller]
fn at_work<T>(server: &Server, seed: u64, test: impl FnOnce(&Work) -> T) -> T {
    let work = Work::default();
    thread::scope(|scope| {
        let _end = Stop(&work);
        for owner in 0..OWNERS {
            let work = &work;
            scope.spawn(move || lock_and_unlock(server, owner, seed, work));
        }
        scope.spawn(|| hand_over(server, &work));
        test(&work)
    })
}

/// Waits until the clients have sent 5,000 more commands. By then the server's cron has also run many times.
#[track_caller]
fn see_work(server: &Server) {
    let mut client = server.client();
    let before = client.stat("stats", "total_commands_processed");
    eventually("clients at work", || client.stat("stats", "total_commands_processed") > before + 5_000);
}

/// Runs `begin`, which adds a replica or an AOF, while clients use locks. The clients also work for some time before
/// and after `begin`.
#[track_caller]
fn while_clients_lock<T>(server: &Server, seed: u64, begin: impl FnOnce() -> T) -> T {
    at_work(server, seed, |_| {
        see_work(server);
        let begun = begin();
        see_work(server);
        begun
    })
}

/// The locks of a server, read while no client changes them.
#[derive(Debug)]
struct Locks {
    digest: Reply,
    leases: Vec<i64>,
}

impl Locks {
    fn of(server: &Server) -> Self {
        let mut client = server.client();
        let digest = client.call("DEBUG DIGEST");
        // The leases are read at slightly different times, but in one packet, so the difference is small.
        let infos = client.call_all((0..LOCKS).map(|lock| format!("LOCK.INFO lock-{lock}")));
        let locks = infos.iter().filter(|info| !info.is_null()).map(Reply::info);
        let leases = locks.flat_map(|lock| lock.holders).map(|holder| holder.lease_left).collect();
        Self { digest, leases }
    }
}

impl PartialEq for Locks {
    /// Compares two servers. All leases must differ by about the same time, which is the time between the requests to
    /// the two servers. The tolerance of 10 s is for a busy machine.
    fn eq(&self, other: &Self) -> bool {
        let meanwhile = |(one, other): (&i64, &i64)| one - other;
        let mut shifts = self.leases.iter().zip(&other.leases).map(meanwhile);
        let first = shifts.next().unwrap_or(0);
        self.digest == other.digest
            && self.leases.len() == other.leases.len()
            && shifts.all(|shift| shift.abs_diff(first) < 10_000)
    }
}

#[test]
fn a_replica_that_attaches_while_clients_lock_misses_nothing() {
    let mut random = Random::new();
    for round in 0..rounds(4, 100) {
        let diskless = random.one_of(&["yes", "no"]);
        let delay = random.one_of(&["0", "1"]);
        let primary = Setup::new()
            .config("hz 100")
            .config(&format!("repl-diskless-sync {diskless}"))
            .config(&format!("repl-diskless-sync-delay {delay}"))
            .start();
        let saves = random.once_in(3);
        let replica = while_clients_lock(&primary, random.number(), || {
            if saves {
                // The child process of BGSAVE may still be running when the replica attaches.
                primary.client().call("BGSAVE");
            }
            Setup::new().start_replica_of(&primary)
        });
        replica.see_in_sync_with(&primary);
        assert_eq!(Locks::of(&replica), Locks::of(&primary), "round {round}: {diskless}, {delay}, {saves}");
    }
}

/// Waits until no rewrite of the AOF is running or scheduled.
fn see_no_rewrite(client: &mut Client) {
    // The order of the two conditions matters, because a scheduled rewrite may be running a moment later.
    eventually("no rewrite of the AOF", || {
        client.stat("persistence", "aof_rewrite_scheduled") == 0
            && client.stat("persistence", "aof_rewrite_in_progress") == 0
    });
}

#[test]
fn an_aof_that_is_switched_on_while_clients_lock_misses_nothing() {
    let mut random = Random::new();
    for round in 0..rounds(3, 100) {
        let mut server = Setup::new().config("hz 100").config("appendfsync always").start();
        let saves = random.once_in(3);
        while_clients_lock(&server, random.number(), || {
            let mut client = server.client();
            if saves {
                client.call("BGSAVE");
            }
            assert_eq!(client.call("CONFIG SET appendonly yes"), Reply::ok());
            see_no_rewrite(&mut client);
            assert_eq!(client.server_info("persistence", "aof_last_bgrewrite_status"), "ok");
        });
        let before = Locks::of(&server);
        server.kill();
        server.change_setup(|setup| setup.config("appendonly yes"));
        server.start_again();
        assert_eq!(Locks::of(&server), before, "round {round}: {saves}");
    }
}

#[test]
fn a_promoted_replica_replicates_to_new_replicas() {
    let mut random = Random::new();
    let primary = Server::start();
    let replica = Setup::new().config("hz 100").start_replica_of(&primary);
    primary.client().acquire("lock-0 0 PX 600000");
    replica.see_in_sync_with(&primary);
    replica.promote();
    let next = while_clients_lock(&replica, random.number(), || Setup::new().start_replica_of(&replica));
    next.see_in_sync_with(&replica);
    assert_eq!(Locks::of(&next), Locks::of(&replica));
}

#[test]
fn a_change_right_after_the_aof_is_switched_on_is_in_the_aof() {
    for switch in ["CONFIG SET appendonly yes", "PING"] {
        let server = Setup::new().config("hz 100").config("appendfsync always").start();
        let mut client = see_nobody_listen(&server);
        // The commands are sent in one packet, so the cron does not run in between. In the cron, the module would
        // notice the AOF.
        client.call_all([
            "LOCK.ACQUIRE lock-1 A",
            switch,
            "LOCK.ACQUIRE lock-2 A",
            "LOCK.RENEW lock-1 A PX 60000",
        ]);
        client.transact([
            "LOCK.ACQUIRE lock-3 A",
            "CONFIG SET appendonly yes",
            "LOCK.RENEW lock-3 A PX 60000",
        ]);
        client.acquire("lock-4 A");
        see_no_rewrite(&mut client);
        assert_eq!(locks_of_aof(&server), Some(Locks::of(&server)), "{switch}");
    }
}

#[test]
fn a_change_right_after_a_promotion_is_replicated() {
    let server = Setup::new().config("hz 100").start();
    see_nobody_listen(&server);
    let other = Server::start();
    server.follow(&other);
    server.client().call_all(["REPLICAOF NO ONE", "LOCK.ACQUIRE lock-1 A"]);
    other.follow(&server);
    assert_eq!(server.client().stat("stats", "sync_partial_ok"), 1, "the replica has got a full resync");
    assert_eq!(Locks::of(&other), Locks::of(&server));
}

#[test]
fn a_change_that_is_not_replicated_still_counts_as_a_change() {
    let server = Setup::new().config("hz 100").start();
    let mut client = server.client();
    let changes = |client: &mut Client| client.stat("persistence", "rdb_changes_since_last_save");
    for lock in 0..100 {
        let before = changes(&mut client);
        client.acquire(&format!("lock-{lock} A"));
        client.call(format!("LOCK.RENEW lock-{lock} A"));
        assert!(changes(&mut client) >= before + 2);
    }
}

/// Plays a replica that asks for a snapshot, and waits until the primary lists this replica. The primary delays the
/// snapshot.
fn ask_for_a_snapshot(primary: &Server) -> Client {
    let mut link = primary.client();
    assert_eq!(link.call("REPLCONF capa eof capa psync2"), Reply::ok());
    link.send("PSYNC ? -1");
    let mut observer = primary.client();
    eventually("a replica without a snapshot", || observer.stat("replication", "connected_slaves") == 1);
    link
}

#[test]
fn a_replica_that_starts_from_a_copied_snapshot_misses_nothing() {
    let primary = in_no_hurry();
    let mut client = see_nobody_listen(&primary);
    let mut first = primary.client();
    assert_eq!(first.call("REPLCONF capa eof capa psync2"), Reply::ok());
    // The server reads the three commands PSYNC, SAVE and LOCK.ACQUIRE in one event loop iteration, so its cron does
    // not run in between.
    primary.freeze();
    first.send("PSYNC ? -1");
    primary.see_unread_from(first.port());
    client.send_all(["SAVE", "LOCK.ACQUIRE lock-1 A PX 600000"]);
    primary.see_unread_from(client.port());
    primary.thaw();
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!(client.reply().grant().holds, 1);
    let mut replica = Setup::new().start();
    replica.kill();
    fs::copy(primary.dir().join("dump.rdb"), replica.dir().join("dump.rdb")).expect("a copy of the snapshot");
    replica.change_setup(|setup| setup.config(&format!("replicaof 127.0.0.1 {}", primary.port())));
    replica.start_again();
    replica.see_in_sync_with(&primary);
    assert_eq!(client.stat("stats", "sync_partial_ok"), 1, "the replica has got a full resync");
    assert_eq!(Locks::of(&replica), Locks::of(&primary));
}

/// A primary that delays each snapshot for a long time, in case more replicas come.
fn in_no_hurry() -> Server {
    Setup::new()
        .config("hz 100")
        .config("repl-diskless-sync yes")
        .config("repl-diskless-sync-delay 10000")
        .start()
}

/// Waits until the module has noticed, in the server's cron, that there is no replica, AOF or backlog.
fn see_nobody_listen(server: &Server) -> Client {
    let mut client = server.client();
    let_cron_run(&mut client);
    client
}

/// Lets the server's cron run. The sleep is longer than the time between two runs, so the cron runs before the next
/// command.
fn let_cron_run(client: &mut Client) {
    for _ in 0..2 {
        assert_eq!(client.call("DEBUG SLEEP 0.01"), Reply::ok());
    }
}

#[test]
fn a_replica_that_attaches_without_a_snapshot_gets_every_change() {
    let primary = in_no_hurry();
    let mut client = see_nobody_listen(&primary);
    let _waits = ask_for_a_snapshot(&primary);
    let_cron_run(&mut client);
    let mut link = primary.client();
    let id = client.server_info("replication", "master_replid");
    let next = client.stat("replication", "master_repl_offset") + 1;
    link.send(format!("PSYNC {id} {next}"));
    assert_eq!(link.reply(), Reply::Simple("CONTINUE".into()));
    client.acquire("lock-1 A PX 600000");
    eventually("a LOCK._APPLY", || {
        let sent = link.reply();
        let name = sent.items()[0].text();
        assert_ne!(name, "LOCK.ACQUIRE");
        name == "LOCK._APPLY"
    });
}

/// Chooses at random how a server sends or receives snapshots. Valkey and Redis from 8.0 on can use a separate
/// connection for a snapshot.
fn send_snapshots(client: &mut Client, random: &mut Random) {
    for setting in ["repl-diskless-sync", "dual-channel-replication-enabled", "repl-rdb-channel"] {
        client.call(format!("CONFIG SET {setting} {}", random.one_of(&["yes", "yes", "no"])));
    }
}

/// Makes one random change that concerns the AOF, snapshots or their settings.
fn stir(client: &mut Client, random: &mut Random) {
    let lock = random.within(0..LOCKS);
    let switch = format!("CONFIG SET appendonly {}", random.one_of(&["yes", "no"]));
    // Many of these commands fail while the server writes a snapshot or rewrites the AOF, so their replies are ignored.
    match random.within(0..7) {
        0 => drop(client.call(switch)),
        1 => drop(client.call("BGREWRITEAOF")),
        2 => drop(client.call("BGSAVE")),
        3 => drop(client.call("SAVE")),
        4 => send_snapshots(client, random),
        5 => drop(client.call(format!("CONFIG SET repl-diskless-sync-delay {}", random.within(0..2)))),
        _ => {
            // If a transaction switches the AOF on during a rewrite, `startAppendOnly` neither ends this rewrite nor
            // opens a file. The server then fails to append changes, and refuses writes until the next rewrite (seen
            // in Redis 7.0.15 and 8.6.3, and Valkey 9.1.2). So the test waits until no rewrite is running.
            see_no_rewrite(client);
            client.send_all(["MULTI".to_owned(), format!("LOCK.ACQUIRE lock-{lock} C PX 600000"), switch]);
            client.send_all([format!("LOCK.RENEW lock-{lock} C PX 700000"), "BGREWRITEAOF".to_owned()]);
            client.send_all([format!("LOCK.ACQUIRE lock-{lock} C PX 600000"), "BGSAVE".to_owned()]);
            client.send_all([format!("LOCK.RELEASE lock-{lock} C"), "EXEC".to_owned()]);
            (0..9).for_each(|_| drop(client.reply()));
        }
    }
}

/// The locks in the AOF of a server, read after another server has loaded a copy of the AOF. `None` if the AOF is off
/// or is being rewritten.
fn locks_of_aof(server: &Server) -> Option<Locks> {
    let mut client = server.client();
    let mut is_there = |field: &str| client.stat("persistence", field) > 0;
    let whole =
        is_there("aof_enabled") && !is_there("aof_rewrite_scheduled") && !is_there("aof_rewrite_in_progress");
    if !whole {
        return None;
    }
    let mut other = Setup::new().start();
    other.kill();
    let to = other.dir().join("appendonlydir");
    fs::create_dir(&to).expect("a directory for the AOF");
    for file in fs::read_dir(server.dir().join("appendonlydir")).expect("an AOF") {
        let from = file.expect("a file").path();
        fs::copy(&from, to.join(from.file_name().expect("a name"))).expect("a copy of the AOF");
    }
    other.change_setup(|setup| setup.config("appendonly yes"));
    other.start_again();
    Some(Locks::of(&other))
}

#[test]
fn replicas_and_aofs_that_come_and_go_under_load_miss_nothing() {
    let mut random = Random::new();
    let primary =
        Setup::new().config("hz 100").config("repl-backlog-ttl 1").config("appendfsync always").start();
    let (replica, beyond) = (Server::start(), Server::start());
    let (mut replicas, mut files) = (0, 0);
    at_work(&primary, random.number(), |work| {
        let mut client = primary.client();
        for round in 0..rounds(4, 60) {
            if random.once_in(2) {
                eventually("no backlog", || client.stat("replication", "repl_backlog_active") == 0);
            }
            if random.once_in(2) {
                client.call("CONFIG SET appendonly no");
            }
            if random.once_in(4) {
                // During a BGSAVE, DEBUG RELOAD changes the server's counter of changes, so the server would replicate
                // DEBUG RELOAD.
                eventually("no BGSAVE", || client.stat("persistence", "rdb_bgsave_in_progress") == 0);
                assert_eq!(client.call("DEBUG RELOAD"), Reply::ok());
            }
            see_work(&primary);
            (0..random.within(0..3)).for_each(|_| stir(&mut client, &mut random));
            let follows = !random.once_in(4);
            send_snapshots(&mut replica.client(), &mut random);
            if follows {
                replica.begin_to_follow(primary.port());
            }
            (0..random.within(0..3)).for_each(|_| stir(&mut client, &mut random));
            if follows && random.once_in(3) {
                beyond.begin_to_follow(replica.port());
            }
            if follows {
                replica.see_in_sync_with(&primary);
                see_work(&primary);
            } else {
                see_no_rewrite(&mut client);
                see_work(&primary);
            }
            work.stand_still(|| {
                let expected = Locks::of(&primary);
                if follows {
                    replica.see_in_sync_with(&primary);
                    assert_eq!(Locks::of(&replica), expected, "round {round}");
                    if beyond.client().server_info("replication", "role") == "slave" {
                        beyond.see_in_sync_with(&replica);
                        assert_eq!(Locks::of(&beyond), expected, "round {round}");
                    }
                    replicas += 1;
                }
                if let Some(locks) = locks_of_aof(&primary) {
                    assert_eq!(locks, expected, "round {round}");
                    files += 1;
                }
            });
            beyond.promote();
            replica.promote();
        }
    });
    println!("{replicas} replicas and {files} AOFs were compared");
}

#[test]
fn servers_that_alternate_as_primary_stay_identical() {
    let mut random = Random::new();
    let start = || Setup::new().config("hz 100").config("repl-backlog-ttl 1").start();
    let (mut primary, mut replica) = (start(), start());
    let mut failovers = 0;
    for round in 0..rounds(4, 60) {
        let work = Work::default();
        thread::scope(|scope| {
            let _end = Stop(&work);
            for owner in 0..OWNERS {
                let (server, work) = (if owner % 2 == 0 { &primary } else { &replica }, &work);
                let seed = random.number() >> 1;
                scope.spawn(move || lock_and_unlock(server, owner, seed, work));
            }
            if random.once_in(2) {
                let mut client = primary.client();
                eventually("no backlog", || client.stat("replication", "repl_backlog_active") == 0);
            }
            see_work(&primary);
            replica.follow(&primary);
            see_work(&primary);
            let switched = random.once_in(2);
            let (now, then) = if switched { (&replica, &primary) } else { (&primary, &replica) };
            if switched {
                assert_eq!(primary.client().call("FAILOVER"), Reply::ok());
                then.see_in_sync_with(now);
                see_work(now);
                failovers += 1;
            }
            work.stand_still(|| {
                then.see_in_sync_with(now);
                assert_eq!(Locks::of(then), Locks::of(now), "round {round}: {switched}");
            });
            // Both servers are primaries from here on, so their data differ. In the next round, either server may
            // become the replica.
            then.promote();
        });
        if random.once_in(2) {
            std::mem::swap(&mut primary, &mut replica);
        }
    }
    println!("{failovers} failovers");
}
