//! Pauses, failovers and shutdowns while the leases of contended locks end. During a pause the module must
//! not serve the waiters, because a server aborts if a module then writes in the background.

use lockward_tests::{Client, Link, Reply, Server, Setup, eventually, rounds};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The number of contended locks.
const LOCKS: usize = 100;

fn logged() -> Setup {
    Setup::new().config("appendonly yes").config("shutdown-timeout 20")
}

/// A primary, a replica of it, and a replica of this replica. Each server has an AOF.
fn chain() -> [Server; 3] {
    let primary = logged().start();
    let replica = logged().start_replica_of(&primary);
    let last = logged().start_replica_of(&replica);
    [primary, replica, last]
}

/// Waiters for locks whose leases end one after the other.
struct Contended {
    waiters: Vec<Client>,
    /// A waiter whose wait limit is reached only when all these leases are over. The reply to this waiter
    /// shows that the leases are over.
    last: Client,
}

impl Contended {
    /// Renews all leases and runs `then`. The first lease ends 300 ms after the renewals, and the other leases end
    /// later.
    #[track_caller]
    fn on(server: &Server, then: impl FnOnce(&mut Client)) -> Self {
        let mut client = server.client();
        client.call_all((0..LOCKS).map(|number| format!("LOCK.ACQUIRE lock-{number} A PX 600000")));
        client.acquire("held A PX 600000");
        let mut waiters: Vec<Client> = (0..LOCKS).map(|_| server.client()).collect();
        for (number, waiter) in waiters.iter_mut().enumerate() {
            waiter.ask(&format!("lock-{number} B BLOCK 0 PX 600000"));
        }
        let mut last = server.client();
        last.ask("held B BLOCK 1500");
        client.see_blocked(i64::try_from(LOCKS).unwrap() + 1);
        // The leases are long enough for `then` to begin the tested action before the first lease ends.
        let renew = |number| format!("LOCK.RENEW lock-{number} A PX {}", 300 + 2 * number);
        client.send_all((0..LOCKS).map(renew));
        then(&mut client);
        Self { waiters, last }
    }

    #[track_caller]
    fn see_leases_over(&mut self) {
        assert_eq!(self.last.reply(), Reply::NullArray, "a wait limit ends although writes are refused");
    }

    #[track_caller]
    fn nobody_is_granted(&mut self) {
        self.see_leases_over();
        // Only some waiters are checked, because a check of all waiters would take longer than the pause.
        assert!(self.waiters.iter_mut().step_by(33).all(Client::has_no_reply));
    }

    #[track_caller]
    fn all_are_granted(&mut self) {
        for waiter in &mut self.waiters {
            assert_eq!(waiter.reply().grant().holds, 1);
        }
    }
}

#[track_caller]
fn read_all(client: &mut Client) {
    for _ in 0..LOCKS {
        client.reply().int();
    }
}

#[track_caller]
fn assert_same(primary: &Server, replica: &Server) {
    let digest = |server: &Server| server.client().call("DEBUG DIGEST");
    // When a lease is over, the primary and the replica may delete the key at different times.
    eventually("the same data", || {
        replica.see_in_sync_with(primary);
        digest(primary) == digest(replica)
    });
}

#[track_caller]
fn see_role(server: &Server, role: &str) {
    let mut client = server.client();
    eventually(role, || client.server_info("replication", "role") == role);
}

#[track_caller]
fn see_no_failover(server: &Server) {
    let mut client = server.client();
    eventually("the failover is over", || {
        client.server_info("replication", "master_failover_state") == "no-failover"
    });
}

#[test]
fn nothing_is_granted_while_clients_are_paused() {
    for pause in ["WRITE", "ALL"] {
        let [primary, replica, last] = chain();
        let mut contended = Contended::on(&primary, |client| {
            client.send(format!("CLIENT PAUSE 3000 {pause}"));
            read_all(client);
            assert_eq!(client.reply(), Reply::ok());
        });
        contended.nobody_is_granted();
        contended.all_are_granted();
        assert_same(&primary, &replica);
        assert_same(&replica, &last);
    }
}

#[test]
fn a_failover_that_waits_for_a_lagging_replica_grants_nothing_and_can_be_aborted() {
    let [primary, replica, last] = chain();
    replica.freeze();
    let mut contended = Contended::on(&primary, |client| {
        client.send("FAILOVER TIMEOUT 600000");
        read_all(client);
        assert_eq!(client.reply(), Reply::ok());
    });
    contended.nobody_is_granted();
    assert_eq!(primary.client().call("FAILOVER ABORT"), Reply::ok());
    contended.all_are_granted();
    replica.thaw();
    assert_same(&primary, &replica);
    assert_same(&replica, &last);
}

#[test]
fn a_failover_that_waits_for_a_lagging_replica_goes_on_with_the_same_tenures() {
    let [primary, replica, last] = chain();
    replica.freeze();
    let mut contended = Contended::on(&primary, |client| {
        client.send("FAILOVER");
        read_all(client);
        assert_eq!(client.reply(), Reply::ok());
    });
    contended.nobody_is_granted();
    let token = primary.client().holder("held").token;
    replica.thaw();
    see_role(&replica, "master");
    for waiter in &mut contended.waiters {
        assert_eq!(waiter.reply().error_word(), "UNBLOCKED");
    }
    assert_eq!(replica.client().holder("held").token, token);
    for number in 0..LOCKS {
        assert_eq!(replica.client().acquire(&format!("lock-{number} C BLOCK 0")).holds, 1);
    }
    assert_same(&replica, &primary);
    assert_same(&replica, &last);
}

#[test]
fn a_forced_failover_grants_nothing_meanwhile() {
    let [primary, replica, last] = chain();
    let port = replica.port();
    replica.freeze();
    let mut contended = Contended::on(&primary, |client| {
        client.send(format!("FAILOVER TO 127.0.0.1 {port} FORCE TIMEOUT 2500"));
        read_all(client);
        assert_eq!(client.reply(), Reply::ok());
    });
    contended.nobody_is_granted();
    for waiter in &mut contended.waiters {
        assert_eq!(waiter.reply().error_word(), "UNBLOCKED");
    }
    see_role(&primary, "slave");
    replica.thaw();
    see_role(&replica, "master");
    see_no_failover(&primary);
    for number in 0..LOCKS {
        assert_eq!(replica.client().acquire(&format!("lock-{number} C BLOCK 0")).holds, 1);
    }
    assert_same(&replica, &primary);
    assert_same(&replica, &last);
}

#[test]
fn a_waiter_that_can_be_redirected_gets_an_error_too() {
    let (server, _a, _b) = Server::start_contended();
    let other = Server::start();
    let mut waiter = server.client();
    if waiter.call("CLIENT CAPA redirect") != Reply::ok() {
        return; // only Valkey redirects clients
    }
    waiter.ask("lock C BLOCK 0");
    server.client().see_blocked(2);
    server.begin_to_follow(other.port());
    let reply = waiter.reply();
    assert!(["UNBLOCKED", "REDIRECT"].contains(&reply.error_word()), "{reply:?}");
}

#[test]
fn a_shutdown_that_waits_for_a_lagging_replica_grants_nothing_and_can_be_aborted() {
    let [primary, replica, last] = chain();
    replica.freeze();
    let mut stopper = primary.client();
    let mut contended = Contended::on(&primary, |client| {
        stopper.send("SHUTDOWN");
        read_all(client);
    });
    contended.nobody_is_granted();
    assert_eq!(primary.client().call("SHUTDOWN ABORT"), Reply::ok());
    assert!(matches!(stopper.reply(), Reply::Error(_)));
    contended.all_are_granted();
    replica.thaw();
    assert_same(&primary, &replica);
    assert_same(&replica, &last);
}

#[test]
fn a_shutdown_that_waits_for_a_lagging_replica_ends_normally() {
    let [mut primary, replica, last] = chain();
    replica.freeze();
    let mut contended = Contended::on(&primary, |client| read_all(client));
    primary.begin_to_terminate();
    contended.see_leases_over();
    let mut client = primary.client();
    assert_eq!(client.info("lock-99"), None, "a waiter is granted the lock");
    let token = client.holder("held").token;
    replica.thaw();
    assert!(primary.see_end().success());
    let mut client = replica.promote();
    assert_eq!(client.holder("held").token, token);
    // The replica counts a lease from the arrival of the change, so the lease may end a little later on the
    // replica. So C waits.
    assert_eq!(client.acquire("lock-99 C BLOCK 0").holds, 1);
    assert_same(&replica, &last);
}

#[test]
fn a_replica_that_was_paused_catches_up() {
    let [primary, replica, last] = chain();
    replica.client().call("CLIENT PAUSE 1000 WRITE");
    let mut contended = Contended::on(&primary, read_all);
    contended.see_leases_over();
    contended.all_are_granted();
    assert_same(&primary, &replica);
    assert_same(&replica, &last);
}

#[test]
fn changes_on_a_writable_replica_stay_there() {
    let primary = Server::start();
    let replica = Setup::new().config("replica-read-only no").start_replica_of(&primary);
    let last = Server::start_replica_of(&replica);
    let mut there = replica.client();
    let spoils = [
        "DEL",
        "UNLINK",
        "SET {} value",
        "PEXPIRE {} 1",
        "PERSIST",
        "RENAME {} other",
        "MOVE {} 1",
        "SADD {} x",
    ];
    let mut contended = Contended::on(&primary, |client| {
        read_all(client);
        replica.see_in_sync_with(&primary);
        for (number, spoil) in (0..LOCKS).zip(spoils.iter().cycle()) {
            let key = format!("lock-{number}");
            there.call(if spoil.contains("{}") {
                spoil.replace("{}", &key)
            } else {
                format!("{spoil} {key}")
            });
        }
        there.call("DEL held");
    });
    contended.all_are_granted();
    for (number, waiter) in contended.waiters.iter_mut().enumerate() {
        assert_eq!(waiter.call(format!("LOCK.RELEASE lock-{number} B")), Reply::Int(0));
    }
    replica.see_in_sync_with(&primary);
    last.see_in_sync_with(&replica);
    // The writes on the replica may have made its data different. After a full resync, the replica has the
    // same data as its primary again.
    let mut a = primary.client();
    a.acquire("lock A PX 600000");
    replica.promote();
    replica.follow(&primary);
    assert_same(&primary, &replica);
    assert_eq!(replica.promote().owner("lock").as_deref(), Some("A"));
}

#[test]
fn an_isolated_primary_with_min_replicas_to_write_grants_nothing_in_the_background() {
    let primary = Setup::new().config("min-replicas-to-write 1").config("min-replicas-max-lag 2").start();
    let link = Link::to(&primary);
    let replica = Server::start();
    replica.follow_through(&link, &primary);
    let mut client = primary.client();
    let ask = "LOCK.ACQUIRE lock A PX 600000 HOLDS 1";
    eventually("the primary sees its replica", || !matches!(client.call(ask), Reply::Error(_)));
    let mut b = primary.waiter("lock B BLOCK 0");
    let mut c = primary.waiter("lock C BLOCK 5500");
    // The server measures the lag in whole seconds, and refuses writes when the lag exceeds 2 seconds. The lease of 5
    // seconds certainly ends after that.
    client.call("LOCK.RENEW lock A PX 5000").int();
    link.swallow();
    assert_eq!(c.reply(), Reply::NullArray, "a wait limit ends although writes are refused");
    assert_eq!(client.call("LOCK.ACQUIRE other A").error_word(), "NOREPLICAS");
    assert_eq!(client.info("lock"), None);
    assert!(b.has_no_reply());
    link.mend();
    assert_eq!(b.reply().grant().holds, 1);
    assert_same(&primary, &replica);
}

/// Sets the flag when it is dropped.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn servers_that_swap_roles_all_the_time_end_up_identical() {
    let servers = [logged().start(), logged().start()];
    let ports = servers.each_ref().map(Server::port);
    let (over, with_a_grant) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..8 {
            let (over, with_a_grant) = (&over, &with_a_grant);
            scope.spawn(move || {
                let (mut attempt, mut granted) = (0_usize, 0);
                while !over.load(Ordering::Relaxed) {
                    attempt += 1;
                    let Ok(mut client) = Client::connect(ports[attempt % 2]) else { continue };
                    let key = format!("lock-{}", (attempt + number) % 3);
                    let ask = format!("LOCK.ACQUIRE {key} A{number} PX {} BLOCK 200", 5 + attempt * 7 % 90);
                    while let Ok(reply) = client.try_call(&ask[..]) {
                        if matches!(reply, Reply::Array(_)) {
                            with_a_grant.fetch_add(usize::from(granted == 0), Ordering::Relaxed);
                            granted += 1;
                        }
                        if matches!(reply, Reply::Error(_)) || over.load(Ordering::Relaxed) {
                            break;
                        }
                        if granted % 3 > 0 {
                            let _ = client.try_call(format!("LOCK.RELEASE {key} A{number}"));
                        }
                    }
                }
            });
        }
        let _end = SetAtEnd(&over); // also if this thread panics: the scope waits for the clients
        let [mut one, mut other] = servers.each_ref().map(Server::client);
        for round in 0..rounds(8, 200) {
            // The PING is in the same packet as REPLICAOF, so the server reads both commands in one iteration of its
            // event loop.
            one.call_all([format!("REPLICAOF 127.0.0.1 {}", ports[1]), "PING".to_owned()]);
            if round % 3 > 0 {
                servers[0].see_in_sync_with(&servers[1]);
            }
            one.call("REPLICAOF NO ONE");
            if round % 5 == 0 {
                one.call_all([format!("REPLICAOF 127.0.0.1 {}", ports[1]), "REPLICAOF NO ONE".to_owned()]);
            }
            other.call(format!("REPLICAOF 127.0.0.1 {}", ports[0]));
            if round % 3 > 1 {
                servers[1].see_in_sync_with(&servers[0]);
            }
            other.call("REPLICAOF NO ONE");
        }
        eventually("each client has had a grant", || with_a_grant.load(Ordering::Relaxed) == 8);
    });
    let [one, other] = &servers;
    one.client().see_blocked(0);
    other.client().see_blocked(0);
    one.client().acquire("lock A PX 600000");
    other.follow(one);
    assert_same(one, other);
}
