//! Stalls: the longest time for which the server serves no other client while it does one large piece of work.
//!
//! During the work, a client sends PING repeatedly. The longest round trip is the stall. The stall is compared with a
//! similar stall of a server without any module, where keys have a TTL and clients wait with BLPOP. Each round starts
//! a new server, and the two sides alternate. Other load of the machine can only make a round trip longer, so the
//! smallest value of all rounds counts.

use crate::cpu::CpuClock;
use crate::placement::{Place, be_client_of};
use crate::queues::allow_waiters;
use crate::report::Report;
use crate::request::{LONG_LEASE, exchange, fill, owner, request};
use crate::results::{Row, Series, Unit};
use crate::scene::{HOLDER, MANY, Scene, Side, key, left_until};
use lockward_tests::{Client, Reply, encode, eventually, free_port};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 2;
/// The largest allowed ratio of a stall to the stall on a server without any module.
const ALLOWED: f64 = 2.0;
/// A stall of up to this number of milliseconds is always allowed.
const ALWAYS_ALLOWED: f64 = 5.0;
/// The largest allowed CPU of the server while clients only wait, in per cent.
const ALLOWED_CPU: f64 = 10.0;

/// The time from the beginning of a setup until its leases or wait limits end together.
const LEAD: Duration = Duration::from_secs(4);
/// The time from the beginning of the setup of a million holders until their leases end together.
const LONG_LEAD: Duration = Duration::from_secs(15);
/// How long the server's CPU time is counted while clients only wait.
const COUNTED: Duration = Duration::from_millis(500);
const LEASES: usize = 100_000;
const MILLION: usize = 1_000_000;

/// A case: what happens with Lockward, what happens without modules, and the function that measures one side on a new
/// server.
type Case = (&'static str, &'static str, fn(Side) -> f64);

/// The server's CPU in per cent.
const IDLE: Case = (
    "the server's CPU while 10,000 clients wait for 10,000 locks",
    "10,000 clients wait in BLPOP",
    idle_waiters,
);

/// The longest PING, in milliseconds.
#[rustfmt::skip] // what happens on each side in a line
const STALLS: &[Case] = &[
    ("the wait limits of 10,000 waiters of one lock end together",
        "the timeouts of 10,000 clients in BLPOP end together", wait_limits),
    ("10,000 waiters of one lock close their connections",
        "10,000 clients in BLPOP of one list close their connections", vanished),
    ("FLUSHALL deletes 10,000 locks, and the waiter of each lock gets it",
        "a script serves 10,000 clients in BLPOP", |side| granted(side, |scene| scene.call(&["FLUSHALL"]))),
    ("SET overwrites a lock, and its 10,000 waiters get an error",
        "SET overwrites a stream, and 10,000 clients in XREADGROUP get an error", overwritten),
    ("100,000 leases end together",
        "the TTLs of 100,000 strings end together", leases),
    ("10,000 leases end together, and the waiter of each lock gets it",
        "a script serves 10,000 clients in BLPOP", leases_waited_for),
    ("a script releases 10,000 locks that have a waiter each",
        "a script serves 10,000 clients in BLPOP", |side| granted(side, |scene| scene.script(RELEASE))),
    ("DUMP of a lock with 1,000,000 holders",
        "DUMP of a sorted set with 1,000,000 members", |side| dump_and_restore(side).0),
    ("RESTORE of a lock with 1,000,000 holders",
        "RESTORE of a sorted set with 1,000,000 members", |side| dump_and_restore(side).1),
    ("1,000,000 leases of one lock end together, and nobody waits",
        "the TTL of a sorted set with 1,000,000 members ends", million_holders_expire),
    ("an owner gets a lock for which it has 10,000 waiting requests",
        "one LPUSH of 10,000 elements serves 10,000 clients in BLPOP", reentries),
    ("REPLICAOF on a server where 10,000 clients wait for one lock",
        "REPLICAOF on a server where 10,000 clients wait in BLPOP of one list", becomes_replica),
];

const RELEASE: &str = "redis.call('LOCK.RELEASE', key, 'holder')";
const PUSH: &str = "redis.call('LPUSH', key, 'x')";

pub fn measure(report: &mut Report) {
    be_client_of(Place::Apart);
    allow_waiters(MANY);
    report.row(compared(&IDLE, Unit::Percent, |_| ALLOWED_CPU));
    for case in STALLS {
        report.row(compared(case, Unit::Milliseconds, |theirs| ALWAYS_ALLOWED.max(ALLOWED * theirs)));
    }
}

/// Measures both sides of a case. `limit` gets the figure of the server without modules.
fn compared(&(what, against, run): &Case, unit: Unit, limit: fn(f64) -> f64) -> Row {
    let [mut ours, mut theirs] = <[Series; 2]>::default();
    for _ in 0..ROUNDS {
        ours.push(run(Side::Lockward));
        theirs.push(run(Side::Plain));
    }
    let (ours, theirs) = (ours.least(), theirs.least());
    let row = Row::figure(what, unit, &ours).against(against, &theirs);
    row.at_most(limit(theirs.median()))
}

const fn is_error(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(_))
}

/// Whether the reply is a grant, or an element from BLPOP.
const fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(_))
}

fn idle_waiters(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    let _waiters = scene.waiters(MANY, MANY);
    let (cpu, begin) = (CpuClock::of(scene.server.pid()), Instant::now());
    let before = cpu.read();
    thread::sleep(COUNTED);
    (cpu.read() - before).as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0
}

fn wait_limits(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    scene.hold(1);
    let end = Instant::now() + LEAD;
    let clients = scene.waiting(MANY, |who| side.wait(&key(0), &owner(who), left_until(end)));
    scene.longest_unblocking(clients, Reply::is_null, |_| thread::sleep(left_until(end)))
}

fn vanished(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    let clients = scene.waiters(MANY, 1);
    scene.longest_unblocking(Vec::new(), is_granted, |_| drop(clients))
}

/// Each client waits for its own lock or list. `free` makes the server grant all locks. A script serves all lists.
fn granted(side: Side, free: impl FnOnce(&mut Scene)) -> f64 {
    let mut scene = Scene::start(side);
    let clients = scene.waiters(MANY, MANY);
    scene.longest_unblocking(clients, is_granted, |scene| match side {
        Side::Lockward => free(scene),
        Side::Plain => scene.script(PUSH),
    })
}

fn overwritten(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    let clients = match side {
        Side::Lockward => scene.waiters(MANY, 1),
        Side::Plain => {
            scene.call(&["XGROUP", "CREATE", &key(0), "group", "$", "MKSTREAM"]);
            let read = ["XREADGROUP", "GROUP", "group", "reader", "BLOCK", "0", "STREAMS", &key(0), ">"];
            scene.waiting(MANY, |_| request(&read))
        }
    };
    scene.longest_unblocking(clients, is_error, |scene| scene.call(&["SET", &key(0), "x"]))
}

fn leases(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    let end = Instant::now() + LEAD;
    scene.take_until(end, LEASES, |number, lease| side.take(&key(number), lease));
    until_expired(&mut scene, end)
}

fn leases_waited_for(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    let end = Instant::now() + LEAD;
    if side == Side::Lockward {
        scene.take_until(end, MANY, |number, lease| side.take(&key(number), lease));
    }
    let clients = scene.waiting(MANY, |who| side.wait(&key(who), &owner(who), Duration::ZERO));
    scene.longest_unblocking(clients, is_granted, |scene| {
        thread::sleep(left_until(end));
        if side == Side::Plain {
            scene.script(PUSH);
        }
    })
}

/// The longest PING until the leases or TTLs have ended, and the server has deleted all keys.
fn until_expired(scene: &mut Scene, end: Instant) -> f64 {
    scene.longest_ping(|scene| {
        thread::sleep(left_until(end));
        eventually("no key is left", || scene.control.call("DBSIZE") == Reply::Int(0));
    })
}

/// The request of an owner that acquires a slot of the first lock.
fn take_slot(number: usize, lease: &str) -> Vec<u8> {
    request(&["LOCK.ACQUIRE", &key(0), &owner(number), "PX", lease, "SLOTS", "1000000"])
}

/// Adds a million members to a sorted set, which a plain server has instead of a lock with a million holders.
fn add_members(control: &mut Client) {
    fill(control, 0..MILLION, |number| request(&["ZADD", &key(0), &number.to_string(), &owner(number)]));
}

fn dump_and_restore(side: Side) -> (f64, f64) {
    let mut scene = Scene::start(side);
    match side {
        Side::Lockward => fill(&mut scene.control, 0..MILLION, |number| take_slot(number, LONG_LEASE)),
        Side::Plain => add_members(&mut scene.control),
    }
    let mut payload = Vec::new();
    let dump = scene.longest_ping(|scene| {
        let Reply::Bulk(dumped) = scene.control.call(["DUMP", &key(0)]) else { panic!("no payload") };
        payload = dumped;
    });
    scene.call(&["UNLINK", &key(0)]);
    let restore = encode(&[b"RESTORE", key(0).as_bytes(), b"0", &payload]);
    (dump, scene.longest_ping(|scene| _ = exchange(&mut scene.control, slice::from_ref(&restore))))
}

/// All leases of one lock with many holders end, and the server deletes the key. On a plain server, a sorted set
/// expires.
fn million_holders_expire(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    let end = Instant::now() + LONG_LEAD;
    match side {
        Side::Lockward => scene.take_until(end, MILLION, take_slot),
        Side::Plain => {
            add_members(&mut scene.control);
            scene.call(&["PEXPIRE", &key(0), &left_until(end).as_millis().to_string()]);
        }
    }
    until_expired(&mut scene, end)
}

fn reentries(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    scene.hold(1);
    let clients = scene.waiting(MANY, |_| side.wait(&key(0), &owner(0), Duration::ZERO));
    scene.longest_unblocking(clients, is_granted, |scene| match side {
        Side::Lockward => scene.call(&["LOCK.RELEASE", &key(0), HOLDER]),
        Side::Plain => scene.call(&[&["LPUSH", &*key(0)][..], &["x"; MANY]].concat()),
    })
}

fn becomes_replica(side: Side) -> f64 {
    let mut scene = Scene::start(side);
    let clients = scene.waiters(MANY, 1);
    let primary = free_port().to_string();
    scene.longest_unblocking(clients, is_error, |scene| scene.call(&["REPLICAOF", "127.0.0.1", &primary]))
}
