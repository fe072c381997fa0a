//! Mutual exclusion.

use lockward_tests::{Reply, Server, eventually};
use std::thread;

#[test]
fn fifty_clients_count_to_exactly_five_thousand() {
    let server = Server::start();
    let mut observer = server.client();
    observer.call("SET counter 0");
    thread::scope(|scope| {
        for owner in 0..50 {
            let mut client = server.client();
            scope.spawn(move || {
                for _ in 0..100 {
                    client.acquire(&format!("lock {owner} BLOCK 0"));
                    let count: i64 = client.call("GET counter").text().parse().unwrap();
                    client.call(format!("SET counter {}", count + 1));
                    assert_eq!(client.call(format!("LOCK.RELEASE lock {owner}")), Reply::Int(0));
                }
            });
        }
    });
    assert_eq!(observer.call("GET counter"), Reply::bulk("5000"));
    assert_eq!(observer.info("lock"), None);
    observer.see_blocked(0);
}

/// Many clients at the same time acquire locks, wait, reach their limits, disconnect, and let leases end.
#[test]
fn under_mixed_load_locks_exclude_each_other_and_leave_nothing_behind() {
    let server = Server::start();
    thread::scope(|scope| {
        for owner in 0..24_u64 {
            let server = &server;
            scope.spawn(move || {
                let mut seed = owner;
                let mut random = move |below: u64| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 33) % below
                };
                let mut client = server.client();
                for round in 0..60 {
                    let key = random(3);
                    let (leaves, limit) = (random(4), 1 + random(40));
                    // A client may hold the lock when it disconnects. So a client that will disconnect asks
                    // for a short lease.
                    let lease = if leaves < 2 { 20 } else { 60_000 };
                    client.ask(&format!("lock-{key} {owner}-{round} PX {lease} BLOCK {limit}"));
                    match leaves {
                        0 => {
                            client.break_off();
                            client = server.client();
                        }
                        1 => client = server.client(),
                        _ if client.reply() != Reply::NullArray => {
                            assert_eq!(client.call(format!("INCR inside-{key}")), Reply::Int(1));
                            assert_eq!(client.call(format!("DECR inside-{key}")), Reply::Int(0));
                            let release = format!("LOCK.RELEASE lock-{key} {owner}-{round}");
                            assert_eq!(client.call(release), Reply::Int(0));
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    let mut observer = server.client();
    observer.see_blocked(0);
    for key in 0..3 {
        eventually("the lock is free", || observer.info(&format!("lock-{key}")).is_none());
    }
    assert_eq!(observer.call("LOCK.TOP"), Reply::Array(vec![]));
}
