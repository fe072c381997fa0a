//! Memory does not grow when millions of locks are acquired and released.

use lockward_tests::{Client, Reply, Server, eventually, rounds};
use std::mem;

/// The number of cycles that are sent in one write.
const BATCH: usize = 500;

/// The number of cycles in the measured run of a test.
fn cycles() -> usize {
    rounds(20_000, 1_000_000)
}

/// Runs many cycles, [`BATCH`] cycles at a time, and checks that memory has not grown. `batch` runs one batch, and gets
/// the number of the first cycle in the batch.
#[track_caller]
fn stays_flat(what: &str, a: &mut Client, batch: impl FnMut(&mut Client, usize)) {
    stays_flat_by(BATCH, what, a, batch);
}

/// Runs many cycles, `size` cycles at a time, and checks that memory has not grown.
#[track_caller]
fn stays_flat_by(size: usize, what: &str, a: &mut Client, mut batch: impl FnMut(&mut Client, usize)) {
    let mut run = |a: &mut Client, cycles: usize| {
        for from in (0..cycles).step_by(size) {
            batch(a, from);
        }
        eventually("all locks are gone", || a.call("DBSIZE") == Reply::Int(0));
        (a.stat("memory", "used_memory"), a.stat("memory", "used_memory_rss"))
    };
    run(a, cycles() / 5);
    // At the end of a run, the server may not yet have freed all memory. So the test compares with the larger value of
    // two short runs.
    let before = run(a, cycles() / 10).max(run(a, cycles() / 10));
    let after = run(a, cycles());
    println!(
        "{what}, {} times: used_memory {} to {}, resident {} to {}",
        cycles(),
        before.0,
        after.0,
        before.1,
        after.1
    );
    // The server frees some memory in the background.
    eventually(&format!("{what}: used_memory is below {} + 100,000 again", before.0), || {
        a.stat("memory", "used_memory") < before.0 + 100_000
    });
    // Resident memory is checked only with jemalloc, because the allocator of a memory checker keeps freed memory for a
    // while.
    if a.server_info("memory", "mem_allocator").starts_with("jemalloc") {
        let (before, after) = (before.1, after.1);
        assert!(after < before + 8_000_000, "{what}: {before} resident bytes grew to {after}");
    }
}

#[test]
fn acquiring_and_releasing_uses_no_more_memory() {
    let server = Server::start();
    stays_flat("acquired and released", &mut server.client(), |a, from| {
        let cycle =
            |number| [format!("LOCK.ACQUIRE lock-{number} A"), format!("LOCK.RELEASE lock-{number} A")];
        a.call_all((from..from + BATCH).flat_map(cycle));
    });
}

#[test]
fn acquiring_locks_and_releasing_or_flushing_them_uses_no_more_memory() {
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET lazyfree-lazy-server-del yes");
    stays_flat("acquired by the hundred and released or flushed", &mut a, |a, from| {
        let numbers = || from..from + BATCH;
        a.call_all(numbers().map(|number| format!("LOCK.ACQUIRE lock-{number} A")));
        let flush = ["FLUSHALL ASYNC".to_owned()];
        // The releases free locks on the main thread while the server's background thread frees the flushed locks.
        let release = |number| format!("LOCK.RELEASE lock-{number} A");
        let take_again = |number| format!("LOCK.ACQUIRE lock-{number} B");
        let half = numbers().take(BATCH / 2);
        a.call_all(half.clone().map(release).chain(flush.clone()).chain(half.map(take_again)).chain(flush));
    });
    eventually("the server counts no lock", || a.stat("lock", "lock_held") == 0);
}

#[test]
fn readers_that_come_and_go_use_no_more_memory() {
    let server = Server::start();
    stays_flat("read locks acquired and released", &mut server.client(), |a, from| {
        let owners = from..from + BATCH;
        a.call_all(owners.clone().map(|number| format!("LOCK.ACQUIRE lock reader-{number} SHARED")));
        a.call_all(owners.map(|number| format!("LOCK.RELEASE lock reader-{number}")));
    });
}

#[test]
fn hand_offs_use_no_more_memory() {
    let server = Server::start();
    let mut b = server.client();
    stays_flat("acquired and handed over", &mut server.client(), |a, from| {
        let lock = from % 7;
        let cycles = |owner: &'static str| {
            (0..BATCH / 2).flat_map(move |_| {
                [
                    format!("LOCK.ACQUIRE lock-{lock} {owner} BLOCK 0"),
                    format!("LOCK.RELEASE lock-{lock} {owner}"),
                ]
            })
        };
        a.send_all(cycles("A"));
        b.send_all(cycles("B"));
        for client in [a, &mut b] {
            (0..BATCH).for_each(|_| drop(client.reply()));
        }
    });
}

#[test]
fn leases_that_end_use_no_more_memory() {
    let server = Server::start();
    stays_flat("acquired and left to its lease", &mut server.client(), |a, from| {
        a.call_all((from..from + BATCH).map(|number| format!("LOCK.ACQUIRE lock-{} A PX 1", number % 5_000)));
    });
}

#[test]
fn evictions_use_no_more_memory() {
    const AT_ONCE: usize = 5_000;
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET maxmemory-policy allkeys-random");
    stays_flat_by(AT_ONCE, "acquired and evicted", &mut a, |a, from| {
        a.call_all((from..from + AT_ONCE).map(|number| format!("LOCK.ACQUIRE lock-{number} A PX 400")));
        a.call("CONFIG SET maxmemory 1");
        eventually("the locks are evicted", || {
            a.call("SET filler value");
            a.call("DBSIZE") == Reply::Int(0)
        });
        a.call("CONFIG SET maxmemory 0");
        eventually("the tenures are over", || a.stat("lock", "lock_tenures_kept") == 0);
    });
    assert!(a.stat("stats", "evicted_keys") > 0);
}

#[test]
fn the_memory_of_very_many_dropped_locks_is_given_back() {
    let server = Server::start();
    let mut a = server.client();
    a.call("CONFIG SET maxmemory-policy allkeys-random");
    let many = rounds(20_000, 1_000_000);
    let mut drop_early = |count: usize| {
        for from in (0..count).step_by(BATCH) {
            a.call_all((from..from + BATCH).map(|number| format!("LOCK.ACQUIRE lock-{number} A PX 3600000")));
        }
        a.call("CONFIG SET maxmemory 1");
        eventually("the locks are evicted", || {
            a.call("SET filler value");
            a.call("DBSIZE") == Reply::Int(0)
        });
        a.call("CONFIG SET maxmemory 0");
        let kept = a.stat("memory", "used_memory");
        a.call("FLUSHALL SYNC");
        // Redis 8 carries out FLUSHALL SYNC like FLUSHALL ASYNC, so the module frees the dropped locks in parts.
        let mut used = kept;
        eventually("all locks are freed", || {
            let before = mem::replace(&mut used, a.stat("memory", "used_memory"));
            used < kept && used >= before
        });
        (kept, used)
    };
    let (_, before) = drop_early(BATCH);
    let (kept, after) = drop_early(many);
    println!("used_memory: {before}, {kept} with {many} locks dropped early, {after} without");
    assert!(after < before + 200_000, "{before} bytes grew to {after}");
}

#[test]
fn renewals_and_re_entries_use_no_more_memory() {
    let server = Server::start();
    stays_flat("renewed and re-entered", &mut server.client(), |a, from| {
        let cycle = |number: usize| {
            let lease = 1_000_000 + number % 7_000;
            [
                format!("LOCK.ACQUIRE lock A PX {lease}"),
                "LOCK.ACQUIRE lock A".to_owned(),
                format!("LOCK.RENEW lock A PX {}", lease / 2),
                "LOCK.RELEASE lock A ALL".to_owned(),
            ]
        };
        a.call_all((from..from + BATCH).flat_map(cycle));
    });
}

#[test]
fn very_many_locks_are_held_at_once_and_released() {
    const OWNER: &str = "2f1c1f0e-7b7e-4b0e-9c53-0b6fb9a1f0d3:17";
    let server = Server::start();
    let mut a = server.client();
    let many = rounds(50_000, 1_000_000);
    let for_each = |a: &mut Client, command: &dyn Fn(usize) -> String| {
        for from in (0..many).step_by(BATCH) {
            a.call_all((from..from + BATCH).map(command));
        }
        (a.stat("memory", "used_memory"), a.stat("memory", "used_memory_rss"))
    };
    let set = |number| format!("SET lock-{number:07} {OWNER} NX PX 3600000");
    let acquire = |number| format!("LOCK.ACQUIRE lock-{number:07} {OWNER} PX 3600000");
    let release = |number| format!("LOCK.RELEASE lock-{number:07} {OWNER}");
    let empty = a.stat("memory", "used_memory");
    let strings = for_each(&mut a, &set).0;
    a.call("FLUSHALL SYNC");
    for_each(&mut a, &acquire);
    for_each(&mut a, &release);
    eventually("the tables have shrunk", || a.stat("memory", "used_memory") < empty + 200_000);
    let before = a.stat("memory", "used_memory");
    let held = for_each(&mut a, &acquire);
    for_each(&mut a, &release);
    eventually("used_memory is at most 2 % larger than before", || {
        a.stat("memory", "used_memory") <= before + before / 50
    });
    let each = |bytes: i64| bytes / many as i64;
    println!(
        "{many} locks: {} bytes each, as a string with SET NX PX {}",
        each(held.0 - before),
        each(strings - empty)
    );
    println!("used_memory {before}, {} held, {} released", held.0, a.stat("memory", "used_memory"));
}
