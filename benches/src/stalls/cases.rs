//! The work of each case, on both sides. Each function starts a server, and returns the figures in the order in which
//! the case lists them.

use super::scene::{
    HOLDER, MANY, POLLED, Scene, Side, expect, key, left_until, owner, release_slot, take_slot,
};
use crate::request::{LEASE, request};
use lockward_tests::{Reply, encode, eventually, free_port};
use std::time::{Duration, Instant};
use std::{slice, thread};

/// How long PING is timed while clients only wait.
const STANDING: Duration = Duration::from_secs(2);
/// How long the server's CPU time is counted while clients only wait.
const COUNTED: Duration = Duration::from_millis(500);
/// The time from the beginning of a setup until its leases or wait limits end together.
const LEAD: Duration = Duration::from_millis(1_500);
/// The time from the beginning of the setup of a million holders until their leases end together.
const LONG_LEAD: Duration = Duration::from_secs(15);
/// The number of locks that a client deletes.
const DELETED: usize = 20_000;
/// The number of leases that end together.
const LEASES: usize = 100_000;
/// The time within which all leases of one lock end, one after the other.
const SECOND: Duration = Duration::from_secs(1);
/// The number of locks that a script renews.
const RENEWED: usize = 9_000;
/// The number of locks or strings of a large server.
const MILLION: usize = 1_000_000;
/// How long PING is timed at most while the server saves a snapshot.
const SAVED: Duration = Duration::from_millis(1_500);
/// How long PING is timed while the server frees memory in the background.
const FREED: Duration = Duration::from_millis(500);
/// The number of locks in the slot that moves to another node.
const MOVED: usize = 1_000;
/// How long a slot may take to move.
const MOVES: Duration = Duration::from_secs(60);
/// A memory limit that no case reaches.
const FAR_AWAY: &str = "64gb";

// Lines of scripts. A script runs these lines for each key. `owner` in a script is the name that [`owner`] returns.
const RELEASE: &str = "redis.call('LOCK.RELEASE', key, 'holder')";
const RENEW: &str = "redis.call('LOCK.RENEW', key, owner, 'PX', 60000)";
const PUSH: &str = "redis.call('LPUSH', key, 'x')";
const EXPIRE: &str = "redis.call('PEXPIRE', key, 60000)";

const fn is_error(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(_))
}

/// Whether the reply is a grant, or an element from BLPOP.
const fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(_))
}

/// Clients wait, each for its own key. The keys are a little longer than `length` bytes.
pub fn standing(side: Side, count: usize, length: usize) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let padding = "k".repeat(length);
    let mut clients = scene.connect(count);
    scene.wait(&mut clients, |who| {
        let key = key(who) + &padding;
        let hold = if side == Side::Lockward { side.take(&key, LEASE) } else { Vec::new() };
        [hold, side.wait(&key, &owner(who), None)].concat()
    });
    let longest = scene.longest_ping(|_| thread::sleep(STANDING));
    vec![longest, scene.cpu_percent(COUNTED)]
}

/// A client deletes many held locks, by one DEL or by a DEL for each lock. Both sides have a memory limit.
pub fn deletes(side: Side, by_one: bool) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    limit_memory(&mut scene, FAR_AWAY);
    scene.take(DELETED, None);
    let requests = deletes_of_all(by_one);
    vec![scene.longest_ping(|scene| scene.control.pipeline(&requests))]
}

/// The server's CPU time to delete one lock. The servers of both sides run Lockward. Only the server of
/// [`Side::Lockward`] has a memory limit.
pub fn cost_of_deletes(side: Side, by_one: bool) -> Vec<f64> {
    let mut scene = Scene::start(Side::Lockward, &[]);
    limit_memory(&mut scene, if side == Side::Lockward { FAR_AWAY } else { "0" });
    scene.take(DELETED, None);
    let requests = deletes_of_all(by_one);
    let Scene { server, control, .. } = &mut scene;
    vec![server.cost(DELETED, || control.pipeline(&requests))]
}

fn limit_memory(scene: &mut Scene, limit: &str) {
    scene.control.call(&["CONFIG", "SET", "maxmemory", limit, "maxmemory-policy", "allkeys-lru"]);
}

fn deletes_of_all(by_one: bool) -> Vec<Vec<u8>> {
    let keys: Vec<String> = (0..DELETED).map(key).collect();
    if by_one {
        let words = ["DEL"].into_iter().chain(keys.iter().map(String::as_str));
        vec![request(&words.collect::<Vec<_>>())]
    } else {
        keys.iter().map(|key| request(&["DEL", key])).collect()
    }
}

pub fn wait_limits(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let mut clients = scene.connect(MANY);
    scene.hold(1, None);
    let end = Instant::now() + LEAD;
    scene.wait(&mut clients, |who| side.wait(&key(0), &owner(who), Some(end)));
    vec![scene.longest_unblocking(&mut clients, Reply::is_null, |_| thread::sleep(left_until(end)))]
}

pub fn vanished(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let clients = scene.waiters(MANY, 1);
    vec![scene.longest_unblocking(&mut [], is_granted, |_| drop(clients))]
}

pub fn flushed(side: Side) -> Vec<f64> {
    granted(side, MANY, |scene| scene.call(&["FLUSHALL"]), &[PUSH])
}

pub fn script_of_releases(side: Side) -> Vec<f64> {
    granted(side, MANY, |scene| scene.script(MANY, &[RELEASE]), &[PUSH])
}

pub fn script_of_renewals(side: Side) -> Vec<f64> {
    granted(side, RENEWED, |scene| scene.script(RENEWED, &[RELEASE, RENEW]), &[PUSH, EXPIRE])
}

/// Each of `count` clients waits for its own lock or list. `free` makes the server grant all locks. A script of the
/// lines `push` serves all lists.
fn granted(side: Side, count: usize, free: impl FnOnce(&mut Scene), push: &[&str]) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let mut clients = scene.waiters(count, count);
    vec![scene.longest_unblocking(&mut clients, is_granted, |scene| match side {
        Side::Lockward => free(scene),
        Side::Plain => scene.script(count, push),
    })]
}

pub fn overwritten(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let mut clients = match side {
        Side::Lockward => scene.waiters(MANY, 1),
        Side::Plain => {
            scene.call(&["XGROUP", "CREATE", &key(0), "group", "$", "MKSTREAM"]);
            let mut clients = scene.connect(MANY);
            scene.wait(&mut clients, |who| {
                let words =
                    ["XREADGROUP", "GROUP", "group", &owner(who), "BLOCK", "0", "STREAMS", &key(0), ">"];
                request(&words)
            });
            clients
        }
    };
    vec![scene.longest_unblocking(&mut clients, is_error, |scene| scene.call(&["SET", &key(0), "x"]))]
}

pub fn leases(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let end = Instant::now() + LEAD;
    scene.take(LEASES, Some(end));
    vec![scene.longest_ping(|scene| {
        thread::sleep(left_until(end));
        scene.until_empty();
    })]
}

pub fn leases_waited_for(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let mut clients = scene.connect(MANY);
    let end = Instant::now() + LEAD;
    scene.hold(MANY, Some(end));
    scene.wait(&mut clients, |who| side.wait(&key(who), &owner(who), None));
    vec![scene.longest_unblocking(&mut clients, is_granted, |scene| {
        thread::sleep(left_until(end));
        if side == Side::Plain {
            scene.script(MANY, &[PUSH]);
        }
    })]
}

/// Saves a snapshot in a child process.
fn save(scene: &mut Scene) {
    let begin = Instant::now();
    scene.call(&["BGSAVE"]);
    // On a busy machine the snapshot may take much longer, so this function does not wait for its end.
    while begin.elapsed() < SAVED && scene.control.info_number("persistence", "rdb_bgsave_in_progress") > 0.0
    {
        thread::sleep(POLLED);
    }
}

/// What another client does while the leases of many holders of one lock end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// There is no other client. At the end the server deletes the key.
    Nobody,
    /// The client waits for the exclusive lock.
    Waiter,
    /// The client acquires and releases a slot of the lock repeatedly.
    Client,
}

/// Many leases of one lock end, within a second or all at once. A plain server has as many strings with a TTL.
pub fn leases_of_one(side: Side, within_a_second: bool, beside: Beside) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let first = Instant::now() + LEAD;
    let spread = if within_a_second { SECOND } else { Duration::ZERO };
    let until = |who: usize| first + spread.mul_f64(who as f64 / LEASES as f64);
    let last = until(LEASES);
    match side {
        Side::Lockward => scene.hold_together(LEASES, Some(&until)),
        Side::Plain => scene.take_until(LEASES, &until),
    }
    let mut waiter = scene.connect(usize::from(side == Side::Lockward && beside == Beside::Waiter));
    scene.wait(&mut waiter, |_| side.wait(&key(0), HOLDER, None));
    let longest = scene.longest_ping(|scene| {
        if beside == Beside::Client && side == Side::Lockward {
            while Instant::now() < last {
                scene.control.pipeline(&[take_slot(HOLDER, LEASE), release_slot(HOLDER)]);
            }
        }
        thread::sleep(last.saturating_duration_since(Instant::now()));
        if beside == Beside::Waiter {
            scene.until_blocked(0);
        } else {
            scene.until_empty();
        }
    });
    expect(&mut waiter, is_granted);
    vec![longest]
}

/// The server saves, dumps, restores, deletes and flushes one lock with many holders. A plain server has a sorted set
/// with as many members instead of the lock.
pub fn million_holders(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let key = key(0);
    let freed_by = |scene: &mut Scene, words: &[&str]| {
        scene.longest_ping(|scene| {
            scene.call(words);
            thread::sleep(FREED);
        })
    };
    scene.hold_together(MILLION, None);
    let save = scene.longest_ping(save);
    let mut payload = Vec::new();
    let dump = scene.longest_ping(|scene| {
        let Reply::Bulk(dumped) = scene.control.call(&["DUMP", &key]) else { panic!("no payload") };
        payload = dumped;
    });
    let payload = encode(&[b"RESTORE", key.as_bytes(), b"0", &payload]);
    let restore = |scene: &mut Scene| scene.control.pipeline(slice::from_ref(&payload));
    let unlink = freed_by(&mut scene, &["UNLINK", &key]);
    let restored = scene.longest_ping(restore);
    scene.call(&["CONFIG", "SET", "lazyfree-lazy-user-del", "yes"]);
    let delete = freed_by(&mut scene, &["DEL", &key]);
    restore(&mut scene);
    let flush = freed_by(&mut scene, &["FLUSHALL", "ASYNC"]);
    restore(&mut scene);
    limit_memory(&mut scene, FAR_AWAY);
    let unlink_with_limit = freed_by(&mut scene, &["UNLINK", &key]);
    vec![save, dump, restored, unlink, delete, flush, unlink_with_limit]
}

/// All leases of one lock with many holders end, and the server deletes the key. On a plain server, a sorted set
/// expires.
pub fn million_holders_expire(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let end = Instant::now() + LONG_LEAD;
    match side {
        Side::Lockward => scene.hold_together(MILLION, Some(&|_| end)),
        Side::Plain => {
            scene.hold_together(MILLION, None);
            scene.call(&["PEXPIRE", &key(0), &left_until(end).as_millis().to_string()]);
        }
    }
    vec![scene.longest_ping(|scene| {
        thread::sleep(left_until(end));
        scene.until_empty();
        thread::sleep(FREED);
    })]
}

pub fn million(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    scene.take(MILLION, None);
    let info = scene.longest_ping(|scene| scene.call(&["INFO", "everything"]));
    let top = scene.longest_ping(|scene| match side {
        Side::Lockward => scene.call(&["LOCK.TOP"]),
        Side::Plain => scene.call(&["DBSIZE"]),
    });
    let save = scene.longest_ping(save);
    let flush = scene.longest_ping(|scene| {
        scene.call(&["FLUSHALL", "ASYNC"]);
        thread::sleep(FREED);
    });
    vec![save, info, top, flush]
}

pub fn reentries(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    // After a module has unblocked a client, the server keeps the client's memory for the next client that a module
    // blocks. The server frees only about 9 MB of this memory a second. So before the first measurement of memory, the
    // same number of clients wait for other locks.
    drop(scene.waiters(MANY, MANY));
    let used_before = scene.used_once_alone();
    let mut clients = scene.connect(MANY);
    scene.hold(1, None);
    scene.wait(&mut clients, |_| side.wait(&key(0), &owner(0), None));
    let longest = scene.longest_unblocking(&mut clients, is_granted, |scene| match side {
        Side::Lockward => scene.call(&["LOCK.RELEASE", &key(0), HOLDER]),
        Side::Plain => scene.call(&[&["LPUSH", &*key(0)][..], &["x"; MANY]].concat()),
    });
    drop(clients);
    vec![longest, scene.used_once_alone() - used_before]
}

pub fn replica(side: Side) -> Vec<f64> {
    let mut scene = Scene::start(side, &[]);
    let mut clients = scene.waiters(MANY, 1);
    let primary = free_port().to_string();
    let provoke = |scene: &mut Scene| scene.call(&["REPLICAOF", "127.0.0.1", &primary]);
    vec![scene.longest_unblocking(&mut clients, is_error, provoke)]
}

pub fn slot_moves(side: Side) -> Vec<f64> {
    vec![move_slot(side, MOVED, false).expect("every server has MIGRATE").longest]
}

/// The cost of moving a slot, in milliseconds.
pub struct Moved {
    /// The longest PING of the node that gives the slot away.
    pub longest: f64,
    /// The time from the first command until no client waits any more.
    pub whole: f64,
}

/// Moves a slot with `moved` locks to another node, while each lock has a waiter. A plain server has strings and
/// BLPOPs.
///
/// If `by_server` is set, one command of the server moves the slot, and the result is `None` if the server has no such
/// command. If `by_server` is not set, MIGRATE moves ten keys at a time, as in redis-cli.
pub fn move_slot(side: Side, moved: usize, by_server: bool) -> Option<Moved> {
    let config = ["cluster-enabled yes", "cluster-node-timeout 5000"];
    let [mut source, mut target] = [(); 2].map(|()| Scene::start(side, &config));
    if by_server && !has(&mut source, "migrateslots") && !has(&mut source, "migration") {
        return None;
    }
    let [here, there] = [&mut source, &mut target].map(|node| node.control.call(&["CLUSTER", "MYID"]).text());
    let port = target.server.port().to_string();
    let bus = target.control.call(&["CONFIG", "GET", "cluster-port"]);
    let bus = bus.items().last().expect("a port").text();
    source.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    source.call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    for node in [&mut source, &mut target] {
        eventually("the nodes agree", || {
            let info = node.control.call(&["CLUSTER", "INFO"]).text();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        });
    }
    let keys: Vec<String> = (0..moved).map(|number| format!("{{slot}}:{number}")).collect();
    let slot = source.control.call(&["CLUSTER", "KEYSLOT", &keys[0]]).int().to_string();
    source.control.pipeline(&keys.iter().map(|key| side.take(key, LEASE)).collect::<Vec<_>>());
    let mut clients = source.connect(moved);
    source.wait(&mut clients, |who| match side {
        Side::Lockward => side.wait(&keys[who], &owner(who), None),
        Side::Plain => side.wait(&format!("{}:list", keys[who]), &owner(who), None),
    });
    let mut whole = Duration::ZERO;
    let longest = source.longest_unblocking(&mut clients, is_error, |source| {
        let begin = Instant::now();
        if by_server {
            migrate_slot(source, &mut target, &slot, &there);
        } else {
            target.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &here]);
            source.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &there]);
            for keys in keys.chunks(10) {
                let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
                migrate.extend(keys.iter().map(String::as_str));
                source.call(&migrate);
            }
            target.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &there]);
            source.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &there]);
        }
        source.until_blocked(0);
        whole = begin.elapsed();
    });
    Some(Moved { longest, whole: whole.as_secs_f64() * 1e3 })
}

/// Whether the server has a subcommand of CLUSTER.
fn has(node: &mut Scene, subcommand: &str) -> bool {
    let known = node.control.call(&["COMMAND", "INFO", &format!("cluster|{subcommand}")]);
    !known.items()[0].is_null()
}

/// Moves a slot with one command: CLUSTER MIGRATESLOTS of Valkey, or CLUSTER MIGRATION of Redis.
fn migrate_slot(source: &mut Scene, target: &mut Scene, slot: &str, there: &str) {
    let status: &[&str] = if has(source, "migrateslots") {
        source.call(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", there]);
        &["CLUSTER", "GETSLOTMIGRATIONS"]
    } else {
        target.call(&["CLUSTER", "MIGRATION", "IMPORT", slot, slot]);
        &["CLUSTER", "MIGRATION", "STATUS", "ALL"]
    };
    let deadline = Instant::now() + MOVES;
    loop {
        let jobs = source.control.call(status);
        let state = jobs.items().first().map_or_else(String::new, |job| job.field("state").text());
        match &*state {
            "success" | "completed" => return,
            "failed" | "cancelled" => panic!("the slot does not move: {jobs:?}"),
            _ => assert!(Instant::now() < deadline, "the slot does not move: {jobs:?}"),
        }
        thread::sleep(POLLED);
    }
}
