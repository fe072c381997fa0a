//! Every way in which a lock can leave a server and come back. Each way is tested with locks on which
//! different commands have run.

use lockward_tests::{Client, Holder, Reply, Server, Setup, eventually};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The lease of the lock `over`. This lease ends before the locks come back.
const SHORT: Duration = Duration::from_millis(200);

/// The state of a lock before it left.
struct Left {
    key: &'static str,
    /// The holder, or `None` if the lock must not come back.
    holder: Option<Holder>,
    at: Instant,
}

/// Creates locks with different commands, and returns the state of each lock.
fn leave(server: &Server) -> Vec<Left> {
    let mut a = server.client();
    for request in [
        "ACQUIRE once A PX 600000",
        "ACQUIRE re-entered A PX 600000",
        "ACQUIRE re-entered A PX 1",
        "ACQUIRE re-entered A PX 700000",
        "ACQUIRE given-back-in-part A PX 600000",
        "ACQUIRE given-back-in-part A",
        "ACQUIRE given-back-in-part A",
        "RELEASE given-back-in-part A",
        "ACQUIRE renewed A PX 600000",
        "RENEW renewed A PX 900000",
        "ACQUIRE shortened A PX 900000",
        "RENEW shortened A PX 300000",
        "ACQUIRE released A PX 600000",
        "RELEASE released A",
        "ACQUIRE taken-again A PX 600000",
        "RELEASE taken-again A",
        "ACQUIRE taken-again B PX 600000",
        "ACQUIRE deleted A PX 600000",
        "ACQUIRE handed-over A PX 600000",
        "ACQUIRE passed-on-by-lease A PX 600000",
        "ACQUIRE passed-on-by-deletion A PX 600000",
    ] {
        assert!(!matches!(a.call(format!("LOCK.{request}")), Reply::Error(_)), "{request}");
    }
    a.call("DEL deleted");
    let wait = |key: &str| server.waiter(&format!("{key} B BLOCK 0 PX 600000"));
    let waiters =
        [wait("handed-over"), wait("handed-over"), wait("passed-on-by-lease"), wait("passed-on-by-deletion")];
    a.call("LOCK.RELEASE handed-over A");
    a.call("LOCK.RENEW passed-on-by-lease A PX 20");
    a.call("DEL passed-on-by-deletion");
    for mut waiter in waiters {
        waiter.reply().grant();
    }
    let mut left: Vec<Left> = [
        ("once", Some(("A", 1))),
        ("re-entered", Some(("A", 3))),
        ("given-back-in-part", Some(("A", 2))),
        ("renewed", Some(("A", 1))),
        ("shortened", Some(("A", 1))),
        ("released", None),
        ("taken-again", Some(("B", 1))),
        ("deleted", None),
        ("handed-over", Some(("B", 2))),
        ("passed-on-by-lease", Some(("B", 1))),
        ("passed-on-by-deletion", Some(("B", 1))),
    ]
    .into_iter()
    .map(|(key, held)| {
        let holder = held.map(|(owner, holds)| {
            let holder = a.holder(key);
            assert_eq!((holder.owner.as_str(), holder.holds), (owner, holds), "{key}");
            holder
        });
        Left { key, holder, at: Instant::now() }
    })
    .collect();
    a.acquire(&format!("over A PX {}", SHORT.as_millis()));
    left.push(Left { key: "over", holder: None, at: Instant::now() });
    left
}

/// Waits until the lease of the lock `over` has ended.
fn see_over(left: &[Left]) {
    let over = left.iter().find(|left| left.key == "over").expect("such a lock");
    eventually("the lease is over", || over.at.elapsed() > SHORT);
}

/// Asserts that exactly the locks with a holder have come back.
#[track_caller]
fn assert_back(server: &Server, left: &[Left], way: &str) {
    let mut client = server.client();
    for Left { key, holder: before, at } in left {
        let what = format!("{key}, {way}");
        let Some(before) = before else {
            assert_eq!(client.info(key), None, "{what}");
            assert_eq!(client.call(["EXISTS", key]), Reply::Int(0), "{what}");
            assert_eq!(client.acquire(&format!("{key} C")).holds, 1, "{what}");
            continue;
        };
        let gone = i64::try_from(at.elapsed().as_millis()).expect("a time");
        let after = client.holder(key);
        assert_eq!((after.tenure(), after.slots), (before.tenure(), before.slots), "{what}");
        // The lease is shorter by the time that has passed. A few seconds more are allowed for a busy machine.
        let (most, least) = (before.lease_left - gone + 20, before.lease_left - gone - 20_000);
        assert!(
            least < after.lease_left && after.lease_left <= most,
            "{what}: {before:?} {gone} ms {after:?}"
        );
        assert!(before.held_for + gone - 20 <= after.held_for, "{what}: {before:?} {gone} ms {after:?}");
        let ttl = client.call(["PTTL", key]).int();
        assert!(
            (after.lease_left - 20_000..=after.lease_left + 1_000).contains(&ttl),
            "{what}: {ttl} {after:?}"
        );
        assert_eq!(client.call(["LOCK.ACQUIRE", key, "C"]), Reply::NullArray, "{what}");
        let renewal = format!("LOCK.RENEW {key} {} TOKEN {}", before.owner, before.token);
        assert_eq!(client.call(renewal), Reply::Int(before.token), "{what}");
        assert_eq!(client.call(["LOCK.RELEASE", key, &before.owner, "ALL"]), Reply::Int(0), "{what}");
        assert!(client.acquire(&format!("{key} C")).token > before.token, "{what}");
    }
}

fn with_aof(preamble: &str) -> Setup {
    Setup::new()
        .config("appendonly yes")
        .config("appendfsync always")
        .config(&format!("aof-use-rdb-preamble {preamble}"))
}

#[test]
fn every_lock_comes_back_from_a_snapshot() {
    let mut server = Server::start();
    let left = leave(&server);
    assert_eq!(server.client().call("SAVE"), Reply::ok());
    server.kill();
    see_over(&left);
    server.start_again();
    assert_back(&server, &left, "snapshot");
}

#[test]
fn every_lock_comes_back_from_the_aof() {
    for preamble in ["yes", "no"] {
        let mut server = with_aof(preamble).start();
        let left = leave(&server);
        server.kill();
        see_over(&left);
        server.start_again();
        assert_back(&server, &left, preamble);
    }
}

/// Ends the load when this value goes out of scope. Without this value, a failed test would wait forever for the
/// thread of the load.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Acquires, renews, releases and hands over locks until `stop` is set. `done` counts the rounds.
fn be_busy(port: u16, stop: &AtomicBool, done: &AtomicUsize) {
    let [mut a, mut b] = [(); 2].map(|()| Client::connect(port).expect("a connection"));
    for number in (0..8).cycle() {
        let key = format!("busy-{number}");
        if let Some(owner) = a.owner(&key) {
            a.call(["LOCK.RELEASE", &key, &owner, "ALL"]).int();
        }
        a.acquire(&format!("{key} A PX 600000"));
        a.call(format!("LOCK.RENEW {key} A PX 700000")).int();
        a.acquire(&format!("{key} A PX 1"));
        match number {
            0..3 => {
                b.ask(&format!("{key} B BLOCK 0 PX 600000"));
                a.call(format!("LOCK.RELEASE {key} A ALL")).int();
                b.reply().grant();
            }
            3..6 => {
                a.call(format!("LOCK.RELEASE {key} A")).int();
            }
            6 => {
                a.call(format!("LOCK.RELEASE {key} A ALL")).int();
            }
            _ => {}
        }
        done.fetch_add(1, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Rewrites the AOF while locks are acquired and released before, during and after the rewrite.
#[track_caller]
fn rewrite_under_load(server: &Server) {
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut client = server.client();
    // This setting makes the rewrite slow, so that the load runs during the rewrite.
    assert_eq!(client.call("CONFIG SET rdb-key-save-delay 5000"), Reply::ok());
    thread::scope(|scope| {
        scope.spawn(|| be_busy(server.port(), &stop, &done));
        let _stop = Stop(&stop);
        let see_more = |what: &str| {
            let before = done.load(Ordering::Relaxed);
            eventually(what, || done.load(Ordering::Relaxed) > before + 20);
        };
        see_more("work before the rewrite");
        assert!(!matches!(client.call("BGREWRITEAOF"), Reply::Error(_)));
        let begun = done.load(Ordering::Relaxed);
        eventually("the AOF is rewritten", || {
            client.stat("persistence", "aof_rewrite_scheduled") == 0
                && client.stat("persistence", "aof_rewrite_in_progress") == 0
        });
        assert_eq!(client.server_info("persistence", "aof_last_bgrewrite_status"), "ok");
        assert!(done.load(Ordering::Relaxed) > begun, "no work during the rewrite");
        see_more("work after the rewrite");
    });
}

#[test]
fn every_lock_comes_back_from_an_aof_that_was_rewritten_under_load() {
    let tenures = |server: &Server| {
        let mut client = server.client();
        let keys = (0..8).map(|number| format!("busy-{number}"));
        let holders: Vec<_> =
            keys.map(|key| client.info(&key).map(|mut info| info.holders.remove(0))).collect();
        let tenure = |holder: Holder| (holder.owner, holder.holds, holder.token);
        holders.into_iter().map(|holder| holder.map(tenure)).collect::<Vec<_>>()
    };
    for preamble in ["yes", "no"] {
        let mut server = with_aof(preamble).start();
        let left = leave(&server);
        rewrite_under_load(&server);
        let busy = tenures(&server);
        assert_eq!(busy.iter().flatten().count(), 7, "{busy:?}");
        server.kill();
        see_over(&left);
        server.start_again();
        assert_eq!(tenures(&server), busy, "{preamble}");
        assert_back(&server, &left, preamble);
    }
}

#[test]
fn every_lock_comes_back_from_a_reload() {
    for over in [false, true] {
        let server = Server::start();
        let left = leave(&server);
        if over {
            see_over(&left);
        }
        assert_eq!(server.client().call("DEBUG RELOAD"), Reply::ok());
        see_over(&left);
        assert_back(&server, &left, "reload");
    }
}

#[test]
fn every_lock_comes_back_from_a_dump() {
    let (here, there) = (Server::start(), Server::start());
    let left = leave(&here);
    let (mut from, mut to) = (here.client(), there.client());
    let dumps = left.iter().map(|Left { key, .. }| {
        let [payload, expiry] = ["DUMP", "PEXPIRETIME"].map(|command| from.call([command, key]));
        (key, payload, expiry)
    });
    let dumps: Vec<_> = dumps.filter(|(_, payload, _)| !payload.is_null()).collect();
    see_over(&left);
    for (key, payload, expiry) in dumps {
        let expiry = expiry.int().to_string();
        let restore = [b"RESTORE", key.as_bytes(), expiry.as_bytes(), payload.bytes(), b"ABSTTL"];
        assert_eq!(to.call(restore), Reply::ok(), "{key}");
    }
    assert_back(&there, &left, "dump");
}

#[test]
fn every_lock_comes_back_from_a_migration() {
    let (here, there) = (Server::start(), Server::start());
    let left = leave(&here);
    let mut client = here.client();
    for Left { key, .. } in &left {
        let reply = client.call(format!("MIGRATE 127.0.0.1 {} {key} 0 10000", there.port()));
        assert!(matches!(&reply, Reply::Simple(text) if text == "OK" || text == "NOKEY"), "{key}: {reply:?}");
        assert_eq!(client.info(key), None, "{key}");
    }
    see_over(&left);
    assert_back(&there, &left, "migration");
}
