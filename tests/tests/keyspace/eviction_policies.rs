//! Memory pressure under every eviction policy: no lock gets a second holder, and every owner keeps its tenure.

use lockward_tests::{Client, Reply, Server, Setup, appended_commands, eventually, rounds};
use std::collections::HashSet;
use std::thread;

/// All eviction policies. Only the first policy, `noeviction`, evicts nothing.
pub(crate) const POLICIES: [&str; 8] = [
    "noeviction",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
];

/// The number of locks on a server.
fn locks() -> usize {
    rounds(300, 1_000)
}

/// Sets `maxmemory` a little above the memory that the server uses now.
#[track_caller]
fn limit_memory(client: &mut Client, policy: &str) {
    let limit = client.stat("memory", "used_memory") + 300_000;
    assert_eq!(client.call(format!("CONFIG SET maxmemory-policy {policy}")), Reply::ok());
    assert_eq!(client.call(format!("CONFIG SET maxmemory {limit}")), Reply::ok());
}

/// Stores more data than `maxmemory` allows, and returns how many keys were evicted.
#[track_caller]
fn press(client: &mut Client) -> i64 {
    let filler = "x".repeat(1_000);
    client
        .call_all((0..rounds(2_000, 6_000)).map(|number| format!("SET plain-{number} {filler} PX 9000000")));
    client.stat("stats", "evicted_keys")
}

fn names() -> impl Iterator<Item = String> {
    (0..locks()).map(|number| format!("lock-{number}"))
}

#[track_caller]
fn acquire_all(client: &mut Client) -> Vec<i64> {
    let replies =
        client.call_all(names().map(|name| format!("LOCK.ACQUIRE {name} owner-of-{name} PX 600000")));
    replies.iter().map(|reply| reply.grant().token).collect()
}

/// Checks that another owner, which tries to acquire every lock, is granted no lock.
#[track_caller]
fn see_no_second_holder(client: &mut Client, policy: &str) {
    let replies = client.call_all(names().map(|name| format!("LOCK.ACQUIRE {name} another PX 600000")));
    for (name, reply) in names().zip(replies) {
        let refused = match &reply {
            Reply::NullArray => true,
            Reply::Error(_) => reply.error_word() == "OOM",
            _ => false,
        };
        assert!(refused, "{policy}: another asks for {name}: {reply:?}");
    }
}

/// Checks that every owner can renew its lock with its token, and can then release the lock.
#[track_caller]
fn see_owners_go_on(client: &mut Client, tokens: &[i64], policy: &str) {
    let each = || names().zip(tokens);
    let renewals =
        each().map(|(name, token)| format!("LOCK.RENEW {name} owner-of-{name} PX 600000 TOKEN {token}"));
    for (reply, token) in client.call_all(renewals).iter().zip(tokens) {
        assert_eq!(*reply, Reply::Int(*token), "{policy}");
    }
    press(client);
    let releases = each().map(|(name, token)| format!("LOCK.RELEASE {name} owner-of-{name} TOKEN {token}"));
    for reply in client.call_all(releases) {
        assert_eq!(reply, Reply::Int(0), "{policy}");
    }
}

/// Tests one policy. `go_on` gets the server before the owners renew, and returns the server on which the owners renew.
fn play(setup: Setup, policy: &str, go_on: impl FnOnce(Server) -> Server) {
    let server = setup.start();
    let mut client = server.client();
    let tokens = acquire_all(&mut client);
    limit_memory(&mut client, policy);
    let evicted = press(&mut client);
    let kept = client.stat("lock", "lock_tenures_kept_from_eviction");
    if policy == "noeviction" {
        assert_eq!((evicted, kept), (0, 0));
    } else {
        assert!(evicted > 0 && kept > 0, "{policy}: {evicted} keys were evicted, of which {kept} are locks");
    }
    see_no_second_holder(&mut client, policy);
    let server = go_on(server);
    let mut client = server.client();
    see_no_second_holder(&mut client, policy);
    see_owners_go_on(&mut client, &tokens, policy);
    assert_eq!(client.stat("lock", "lock_tenures_kept"), 0, "{policy}");
}

#[test]
fn no_lock_has_two_holders_under_any_eviction_policy() {
    thread::scope(|threads| {
        for policies in POLICIES.chunks(4) {
            threads.spawn(|| policies.iter().for_each(|policy| play(Setup::new(), policy, |server| server)));
        }
    });
}

#[test]
fn no_lock_has_two_holders_on_a_replica_promoted_under_memory_pressure() {
    play(Setup::new(), "allkeys-lru", |primary| {
        let replica = Server::start_replica_of(&primary);
        press(&mut primary.client());
        replica.see_in_sync_with(&primary);
        limit_memory(&mut replica.promote(), "allkeys-lru");
        replica
    });
    // The same test with a replica that is in sync before the locks are acquired. The replica receives the
    // dropped locks in the replication stream, and not by a full resync.
    let primary = Server::start();
    let replica = Server::start_replica_of(&primary);
    let mut client = primary.client();
    let tokens = acquire_all(&mut client);
    limit_memory(&mut client, "volatile-ttl");
    press(&mut client);
    let kept = client.stat("lock", "lock_tenures_kept");
    assert!(kept > 0);
    eventually("the replica has the dropped locks", || {
        replica.client().stat("lock", "lock_tenures_kept") == kept
    });
    replica.see_in_sync_with(&primary);
    drop(primary);
    let mut client = replica.promote();
    see_no_second_holder(&mut client, "volatile-ttl");
    see_owners_go_on(&mut client, &tokens, "volatile-ttl");
}

/// The keys of the dropped locks in the AOF.
fn dropped_in_aof(server: &Server) -> HashSet<Vec<u8>> {
    let mut kept = HashSet::new();
    for command in appended_commands(server, |_| true) {
        if let [name, key, [_, 5, record @ ..]] = command.iter().map(Vec::as_slice).collect::<Vec<_>>()[..]
            && name.eq_ignore_ascii_case(b"LOCK._APPLY")
            && !record.is_empty()
        {
            kept.insert(key.to_vec());
        } else if let [name, key, ..] = &command[..]
            && name.to_ascii_uppercase().starts_with(b"LOCK.")
        {
            // Only a later lock command for this key puts the lock back into the keyspace. A DEL does not, because the
            // server also writes a DEL for the eviction.
            kept.remove(key);
        }
    }
    kept
}

#[test]
fn no_lock_has_two_holders_after_a_restart_under_memory_pressure() {
    for (aof, save) in [("no", "BGSAVE"), ("yes", "BGREWRITEAOF"), ("yes", "")] {
        let setup = Setup::new().config(&format!("appendonly {aof}")).config("appendfsync always");
        play(setup, "volatile-random", |mut server| {
            let mut client = server.client();
            if !save.is_empty() {
                client.call(save);
                eventually("the snapshot or AOF is written", || {
                    let count = |client: &mut Client, field: &str| client.stat("persistence", field);
                    count(&mut client, "rdb_bgsave_in_progress")
                        + count(&mut client, "aof_rewrite_in_progress")
                        + count(&mut client, "aof_rewrite_scheduled")
                        == 0
                });
            }
            if save.is_empty() {
                let kept = usize::try_from(client.stat("lock", "lock_tenures_kept")).unwrap();
                eventually("the AOF has the dropped locks", || dropped_in_aof(&server).len() == kept);
            }
            server.kill_and_start_again();
            limit_memory(&mut server.client(), "volatile-random");
            server
        });
    }
}

#[test]
fn a_lock_is_kept_although_the_server_gets_below_its_limit_during_the_eviction() {
    // At the end of a rehash, the server frees a hash table. If a rehash ends during an eviction, the used memory falls
    // below the limit at once. The test sends the commands one by one, so each eviction is the first in its event loop
    // pass.
    let server = Server::start();
    let mut client = server.client();
    let filler = "x".repeat(1_000);
    for _ in 0..rounds(40, 400) {
        client.call("CONFIG SET maxmemory 0");
        client.call("FLUSHALL SYNC");
        acquire_all(&mut client);
        limit_memory(&mut client, "allkeys-random");
        for number in 0..800 {
            client.call(format!("SET plain-{number} {filler}"));
        }
        see_no_second_holder(&mut client, "allkeys-random");
    }
}

#[test]
fn a_write_by_a_client_with_no_touch_breaks_a_lock_under_an_eviction_policy() {
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET maxmemory-policy allkeys-lru");
    a.call("CONFIG SET maxmemory 1gb");
    // Redis 7.0 does not have CLIENT NO-TOUCH, and replies with an error.
    a.call("CLIENT NO-TOUCH on");
    for round in 0..3 {
        let packet =
            ["LOCK.ACQUIRE lock A PX 600000", "SET lock value", "PING", "LOCK.INFO lock", "DEL lock"];
        let replies = a.call_all(packet);
        assert_eq!(replies[2], Reply::Simple("PONG".into()), "{round}");
        assert_eq!(replies[3].error_word(), "WRONGTYPE", "{round}");
    }
}

/// The control experiment: without the module, locks are set by SET NX. Such locks get second holders under
/// the same pressure.
#[test]
fn without_the_module_locks_by_set_nx_have_two_holders_under_memory_pressure() {
    let server = Setup::without_module().start();
    let mut client = server.client();
    for reply in client.call_all(names().map(|name| format!("SET {name} owner-of-{name} NX PX 600000"))) {
        assert_eq!(reply, Reply::ok());
    }
    limit_memory(&mut client, "volatile-lru");
    press(&mut client);
    let replies = client.call_all(names().map(|name| format!("SET {name} another NX PX 600000")));
    let second_holders = replies.iter().filter(|reply| **reply == Reply::ok()).count();
    assert!(second_holders > 0, "no lock got a second holder, so this test has no pressure");
}
