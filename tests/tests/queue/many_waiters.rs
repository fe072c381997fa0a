//! Thousands of waiters arrive, and disconnect or are served. Afterwards the server has no data about these waiters.

use lockward_tests::{Client, Crowd, Reply, Server, Setup, appended_commands, eventually, rounds};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of waiters that the server allows by default.
const MOST: usize = 10_000;

/// The number of waiters in tests where the number does not matter.
fn many() -> usize {
    rounds(2_000, MOST)
}

/// A server with enough connections for the waiters and the observers.
fn roomy() -> Setup {
    Setup::new().config("maxclients 10500")
}

/// Makes all waiters disconnect. The first argument is the connection of a client that does not wait.
type Vanish = fn(&mut Client, Vec<Client>);

/// The ways to disconnect.
const VANISH: [(&str, Vanish); 3] = [
    ("connections that break", |_, waiters| waiters.into_iter().for_each(Client::break_off)),
    ("connections that end", |_, waiters| drop(waiters)),
    ("CLIENT KILL", |a, _waiters| {
        a.call("CLIENT KILL TYPE normal SKIPME yes").int();
    }),
];

/// Waits until the server uses no more memory than `before` plus the memory that it keeps for later waiters: tables
/// with spare capacity, and a few internal clients. The wait is necessary because the server has an internal client of
/// 18 KB for each blocked client, and frees only a few hundred internal clients per second.
#[track_caller]
fn see_memory_back(client: &mut Client, before: i64, count: usize) {
    let kept = 500_000 + 150 * count as i64;
    let mut now = client.stat("memory", "used_memory");
    while now > before + kept {
        let last = now;
        eventually(&format!("less than {last} bytes used, after {before} at the start"), || {
            now = client.stat("memory", "used_memory");
            now < last
        });
    }
    println!("used_memory: {now} again, and {before} before");
}

/// Runs `work`, and prints how long `work` and the slowest PING meanwhile took.
fn with_pings<R>(server: &Server, what: &str, work: impl FnOnce() -> R) -> R {
    let done = AtomicBool::new(false);
    let probe = || {
        let (mut longest, mut prober) = (Duration::ZERO, server.client());
        while !done.load(Ordering::Relaxed) {
            let asked = Instant::now();
            match prober.try_call("PING") {
                Ok(_) => longest = longest.max(asked.elapsed()),
                Err(_) => prober = server.client(),
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        longest
    };
    thread::scope(|scope| {
        let probing = scope.spawn(probe);
        let begun = Instant::now();
        let result = work();
        let took = begun.elapsed();
        done.store(true, Ordering::Relaxed);
        let longest = probing.join().unwrap();
        println!("{what}: {took:.1?}; the longest PING meanwhile: {longest:.1?}");
        result
    })
}

/// Makes `count` clients wait and then disconnect. Repeats this `crowds` times, each time in another of the ways in
/// [`VANISH`]. Checks that the server keeps no data about the clients.
#[track_caller]
fn come_and_vanish(count: usize, crowds: usize, request: fn(usize) -> String) {
    let crowd = Crowd::gather();
    let server = roomy().start();
    let mut a = server.client();
    assert_eq!(a.call(format!("CONFIG SET lock.max-waiters-total {count}")), Reply::ok());
    a.call_all((0..count).map(|number| format!("LOCK.ACQUIRE lock-{number} A PX 3600000")));
    let before = a.stat("memory", "used_memory");
    for (how, vanish) in VANISH.into_iter().cycle().take(crowds) {
        let waiters = crowd.ask(&server, count, request);
        a.see_blocked(count as i64);
        assert_eq!(server.client().call("LOCK.ACQUIRE lock-7 late BLOCK 0").error_word(), "MAXWAITERS");
        let full = a.stat("memory", "used_memory");
        with_pings(&server, how, || {
            vanish(&mut a, waiters);
            a.see_blocked(0);
        });
        assert_eq!(a.call("LOCK.TOP"), Reply::Array(vec![]), "{how}");
        println!("used_memory: {before}, {full} with {count} waiters");
        if count <= many() {
            see_memory_back(&mut a, before, count);
        }
    }
    let left = a.call_all((0..count).map(|number| format!("LOCK.RELEASE lock-{number} A")));
    assert!(left.iter().all(|left| *left == Reply::Int(0)));
}

#[test]
fn ten_thousand_waiters_for_one_lock_vanish_and_leave_nothing_behind() {
    come_and_vanish(MOST, rounds(3, 6), |number| format!("lock-7 {number} BLOCK 0"));
}

#[test]
fn waiters_for_as_many_locks_vanish_and_leave_nothing_behind() {
    come_and_vanish(rounds(500, 2_000), rounds(3, 12), |number| format!("lock-{number} B BLOCK 0"));
}

#[test]
fn many_waiters_are_served_one_after_the_other() {
    let crowd = Crowd::gather();
    let server = roomy().start();
    let mut a = server.client();
    a.acquire("lock A PX 3600000");
    let mut waiters = crowd.ask(&server, many(), |number| format!("lock {number} PX 3600000 BLOCK 0"));
    a.see_blocked(many() as i64);
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(format!("LOCK.RELEASE lock {number}"));
    }
    with_pings(&server, "many hand-offs", || {
        a.call("LOCK.RELEASE lock A");
        for waiter in &mut waiters {
            assert_eq!(waiter.reply().grant().holds, 1);
            assert_eq!(waiter.reply(), Reply::Int(0));
        }
    });
    assert_eq!(a.info("lock"), None);
}

#[test]
fn many_wait_limits_are_reached_together() {
    let crowd = Crowd::gather();
    let server = roomy().start();
    let mut a = server.client();
    a.acquire("lock A PX 3600000");
    let mut waiters = crowd.ask(&server, many(), |number| format!("lock {number} BLOCK 2000"));
    with_pings(&server, "many wait limits", || {
        for waiter in &mut waiters {
            assert_eq!(waiter.reply(), Reply::NullArray);
        }
    });
    assert_eq!(a.info("lock").unwrap().waiters, 0);
}

/// The server ends thousands of waits in several iterations. Between two iterations, a client renames a key to `lock`.
/// The last waiter holds this key, so its wait is granted as a re-entry.
#[test]
fn a_waiter_that_gets_the_lock_by_rename_re_enters_although_the_other_waits_are_still_ending() {
    let crowd = Crowd::gather();
    let server = roomy().start();
    let mut a = server.client();
    a.acquire("lock A PX 3600000");
    let count = MOST - 1_000;
    let mut waiters = crowd.ask(&server, count, |number| format!("lock {number} PX 3600000 BLOCK 0"));
    a.see_blocked(count as i64);
    let (last, first) = (count - 1, &mut waiters[0]);
    let token = a.acquire(&format!("other {last} PX 3600000")).token;
    server.client().call("SET lock value");
    assert_eq!(first.reply().error_word(), "WRONGTYPE");
    a.transact(["DEL lock", "RENAME other lock"]);
    let grant = waiters[last].reply().grant();
    assert_eq!((grant.token, grant.holds), (token, 2));
}

#[test]
fn many_waits_of_one_owner_are_granted_together() {
    let crowd = Crowd::gather();
    let server = roomy().start();
    let mut a = server.client();
    a.acquire("lock A PX 3600000");
    let mut waiters = crowd.ask(&server, many(), |_| "lock B PX 3600000 BLOCK 0".into());
    a.see_blocked(many() as i64);
    with_pings(&server, "many waits of one owner", || {
        a.call("LOCK.RELEASE lock A");
        let mut holds: Vec<i64> = waiters.iter_mut().map(|waiter| waiter.reply().grant().holds).collect();
        holds.sort_unstable();
        assert!(holds.into_iter().eq(1..=many() as i64));
    });
}

#[test]
fn a_flush_of_many_locks_grants_each_to_its_waiter() {
    let crowd = Crowd::gather();
    let server = roomy().start();
    let mut a = server.client();
    a.call_all((0..many()).map(|number| format!("LOCK.ACQUIRE lock-{number} A PX 3600000")));
    let mut waiters = crowd.ask(&server, many(), |number| format!("lock-{number} B PX 3600000 BLOCK 0"));
    a.see_blocked(many() as i64);
    with_pings(&server, "FLUSHALL of many locks", || {
        assert_eq!(a.call("FLUSHALL"), Reply::ok());
        assert!(waiters.iter_mut().all(|waiter| waiter.reply().grant().holds == 1));
    });
}

#[test]
fn clients_that_acquire_and_disconnect_at_once_leave_nothing_behind() {
    let crowd = Crowd::gather();
    let server = roomy().start();
    let mut a = server.client();
    a.acquire("lock A PX 3600000");
    let mut before = None;
    for round in 0..rounds(3, 30) {
        for number in 0..1_000 {
            let client = crowd.ask(&server, 1, |_| format!("lock {number} BLOCK 0")).remove(0);
            if number % 2 == 0 { client.break_off() } else { drop(client) }
        }
        eventually("nobody waits", || {
            a.info("lock").unwrap().waiters == 0 && a.stat("clients", "connected_clients") == 1
        });
        let before = *before.get_or_insert_with(|| a.stat("memory", "used_memory"));
        see_memory_back(&mut a, before, 1_000);
        assert_eq!(a.owner("lock").as_deref(), Some("A"), "round {round}");
    }
}

#[test]
fn a_limit_below_the_number_of_waiters_keeps_them_and_refuses_new_ones() {
    for setting in ["lock.max-waiters", "lock.max-waiters-total"] {
        let server = Server::start();
        let (mut a, mut late) = (server.client(), server.client());
        a.acquire("lock A PX 3600000");
        let mut waiters = server.waiters("lock", ["B", "C", "D", "E"]);
        assert_eq!(a.call(["CONFIG", "SET", setting, "2"]), Reply::ok());
        assert_eq!(a.queue("lock"), ["B", "C", "D", "E"], "{setting}");
        for (holder, waiter) in ["A", "B", "C"].iter().zip(&mut waiters) {
            // The limit is two. Four clients wait, then three, then two, so the server refuses a new waiter each time.
            assert_eq!(late.call("LOCK.ACQUIRE lock F BLOCK 0").error_word(), "MAXWAITERS", "{setting}");
            a.call(format!("LOCK.RELEASE lock {holder}"));
            assert_eq!(waiter.reply().grant().holds, 1);
        }
        late.ask("lock F BLOCK 0");
        a.see_waiters("lock", 2);
        assert_eq!(a.queue("lock"), ["E", "F"], "{setting}");
        assert_eq!(server.client().call("LOCK.ACQUIRE lock G BLOCK 0").error_word(), "MAXWAITERS");
    }
}

#[test]
fn a_wait_can_be_taken_over_above_the_limit() {
    for setting in ["lock.max-waiters", "lock.max-waiters-total"] {
        let (server, mut a, mut b) = Server::start_contended();
        let mut first = server.waiter("lock C HOLDS 1 BLOCK 0");
        assert_eq!(a.call(["CONFIG", "SET", setting, "0"]), Reply::ok());
        let mut second = server.client();
        second.ask("lock C HOLDS 1 BLOCK 0");
        assert_eq!(first.reply().error_word(), "SUPERSEDED", "{setting}");
        assert_eq!(first.call("LOCK.ACQUIRE lock D HOLDS 1 BLOCK 0").error_word(), "MAXWAITERS", "{setting}");
        assert_eq!(a.queue("lock"), ["B", "C"]);
        a.call("LOCK.RELEASE lock A");
        assert_eq!(b.reply().grant().holds, 1);
        b.call("LOCK.RELEASE lock B");
        assert_eq!(second.reply().grant().holds, 1);
    }
}

/// A key of a million bytes.
fn large_key(number: usize) -> String {
    format!("{}-{number}", "k".repeat(1_000_000))
}

#[test]
fn the_memory_of_waiters_counts_against_the_memory_limit() {
    let server = Setup::new().config("maxmemory-policy noeviction").start();
    let mut a = server.client();
    for number in 0..40 {
        a.acquire(&format!("{} A PX 3600000", large_key(number)));
    }
    let before = a.stat("memory", "used_memory");
    a.call(format!("CONFIG SET maxmemory {}", before + 20_000_000));
    let owner = "B".repeat(1_024);
    let mut waiters = Vec::new();
    let refused = (0..40).find_map(|number| {
        let mut waiter = server.client();
        waiter.ask(&format!("{} {owner} BLOCK 0", large_key(number)));
        let mut answer = None;
        eventually("the client waits or is refused", || {
            answer = waiter.reply_within(Duration::from_millis(1)).ok();
            answer.is_some() || a.stat("clients", "blocked_clients") > waiters.len() as i64
        });
        waiters.push(waiter);
        answer
    });
    assert_eq!(refused.expect("a refusal").error_word(), "OOM");
    // Each waiter takes at least 2 MB: one copy of the key in the queue, and one in the client's arguments.
    println!("{} waiters of 2 MB within 20 MB", waiters.len() - 1);
    assert!((4..=10).contains(&(waiters.len() - 1)), "{}", waiters.len());
    let first = large_key(0);
    assert!(a.call(format!("LOCK.RENEW {first} A PX 3600000")).int() > 0);
    assert_eq!(a.call(format!("LOCK.RELEASE {first} A")), Reply::Int(0));
    assert_eq!(waiters[0].reply().grant().holds, 1);
    drop(waiters);
    a.see_blocked(0);
    eventually("there is memory for a lock again", || {
        matches!(a.call("LOCK.ACQUIRE other A"), Reply::Array(_))
    });
    see_memory_back(&mut a, before, 40);
}

#[test]
fn waiters_that_the_server_evicts_leave_their_queues() {
    let (server, mut a, _b) = Server::start_contended();
    let large = large_key(0);
    a.acquire(&format!("{large} A PX 3600000"));
    let waiters: Vec<Client> = (0..40)
        .map(|number| {
            let mut waiter = server.client();
            waiter.ask(&format!("{large} {number} BLOCK 0"));
            waiter
        })
        .collect();
    a.see_blocked(41);
    assert_eq!(a.call("CLIENT NO-EVICT on"), Reply::ok()); // this client has large buffers too, because it has sent the key
    assert_eq!(a.call("CONFIG SET maxmemory-clients 20000000"), Reply::ok());
    eventually("some clients are evicted", || a.stat("stats", "evicted_clients") > 0);
    eventually("the other clients wait", || {
        let left = a.stat("clients", "blocked_clients");
        left < 30 && a.call("LOCK.TOP").items()[0].field("waiters").int() == left - 1
    });
    drop(waiters);
    a.see_waiters(&large, 0);
    assert_eq!(a.queue("lock"), ["B"]);
}

#[test]
fn the_waits_of_one_owner_are_replicated_as_one_change() {
    const WAITS: usize = 2_000;
    let crowd = Crowd::gather();
    let server = Setup::new().config("appendonly yes").start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    // Each wait asks for a lease of a different length. If each grant changed the lease separately, the
    // server would replicate the whole tenure for each grant.
    let mut waits = crowd.ask(&server, WAITS, |number| format!("lock B PX {} BLOCK 0", 600_000 + number));
    a.see_blocked(i64::try_from(WAITS).unwrap());
    assert_eq!(a.call("LOCK.RELEASE lock A"), Reply::Int(0));
    for (holds, wait) in (1..).zip(&mut waits) {
        assert_eq!(wait.reply().grant().holds, holds);
    }
    let is_hand_off =
        |command: &[Vec<u8>]| command.len() == 3 && command[0].eq_ignore_ascii_case(b"LOCK._APPLY");
    let appended = appended_commands(&server, is_hand_off);
    let changes: Vec<usize> =
        appended.iter().filter(|command| is_hand_off(command)).map(|command| command[2].len()).collect();
    assert!(changes.iter().all(|length| *length < 100), "{changes:?}");
}

#[test]
fn many_waiters_for_a_long_key_that_holds_another_value_all_get_the_error() {
    let crowd = Crowd::gather();
    let (server, key) = (Server::start(), "long".repeat(100));
    let mut a = server.client();
    a.acquire(&format!("{key} A"));
    let mut waiters = crowd.ask(&server, 3_000, |number| format!("{key} B{number} BLOCK 0"));
    a.see_waiters(&key, 3_000);
    a.call(format!("SET {key} value"));
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().error_word(), "WRONGTYPE");
    }
}
