//! The table of docs/events.md, row by row: for each action on a lock, the published events, and whether clients that
//! track the lock get an invalidation.

use lockward_tests::{Client, Reply, Server, Setup, WallClock, eventually, repository};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// The events and invalidations that one action causes, in the form of a row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Observed {
    events: String,
    invalidated: String,
}

/// A client that is subscribed to all events, and a client that tracks keys and has read `lock`.
struct Audience {
    events: Client,
    tracker: Client,
    other: Client,
}

impl Audience {
    #[track_caller]
    fn of(server: &Server) -> Self {
        let (mut events, mut tracker, mut other) = (server.client(), server.client3(), server.client());
        assert_eq!(tracker.call("CLIENT TRACKING ON"), Reply::ok());
        tracker.call("LOCK.INFO lock");
        tracker.call("GET the-end");
        assert_eq!(other.call("CONFIG SET notify-keyspace-events EA"), Reply::ok());
        events.call("PSUBSCRIBE __keyevent@*__:*");
        Self { events, tracker, other }
    }

    /// What the two clients have received.
    #[track_caller]
    fn observed(mut self) -> Observed {
        assert_eq!(self.other.call("SET the-end reached"), Reply::ok());
        Observed { events: self.events(), invalidated: self.invalidated() }
    }

    #[track_caller]
    fn events(&mut self) -> String {
        let mut events = Vec::new();
        loop {
            let message = self.events.reply();
            let (channel, key) = (message.items()[2].text(), message.items()[3].text());
            let (_, event) = channel.split_once("__:").expect("the channel of an event");
            match key.as_str() {
                "the-end" => break,
                "filler" => {}
                "lock" => events.push(format!("`{event}`")),
                _ => events.push(format!("`{event}` of `{key}`")),
            }
        }
        // The server ends a TTL by the wall clock, and the module ends a lease by the monotonic clock. If the
        // wall clock runs a little ahead, the server sends `expired` early, and the module sends `expired`
        // again at the end of the lease.
        events.dedup_by(|again, event| again == event && event == "`expired`");
        if events.is_empty() { "none".to_owned() } else { events.join(", ") }
    }

    #[track_caller]
    fn invalidated(&mut self) -> String {
        let mut answer = "no";
        loop {
            match &self.tracker.push().items()[1] {
                Reply::Array(keys) if keys[..] == [Reply::bulk("lock")] => answer = "yes",
                // A flush invalidates all keys, including `the-end`. So no further invalidation follows.
                Reply::Null => return "yes, of all keys".to_owned(),
                _ => return answer.to_owned(),
            }
        }
    }
}

/// What the clients of an [`Audience`] receive from `server` while `act` runs.
#[track_caller]
fn observed_on(server: &Server, act: impl FnOnce(&mut Client)) -> Observed {
    let audience = Audience::of(server);
    act(&mut server.client());
    audience.observed()
}

/// What the clients of an [`Audience`] receive from a new server while `act` runs. `before` runs before the
/// clients subscribe.
#[track_caller]
fn observed(before: impl FnOnce(&mut Client), act: impl FnOnce(&mut Client)) -> Observed {
    let server = Server::start();
    before(&mut server.client());
    observed_on(&server, act)
}

/// What the clients of an [`Audience`] receive on a server where A holds the lock and B waits, from the start of `act`
/// until B has the lock.
#[track_caller]
fn observed_until_granted(act: impl FnOnce(&mut Client)) -> Observed {
    let (server, _a, mut b) = Server::start_contended();
    observed_on(&server, |client| {
        act(client);
        assert_eq!(b.reply().grant().holds, 1);
    })
}

fn held(client: &mut Client) {
    client.acquire("lock A PX 600000");
}

/// Lets A hold the lock with a short lease, which is long enough for the clients of an [`Audience`] to subscribe.
fn held_briefly(client: &mut Client) {
    client.acquire("lock A PX 2000");
}

fn held_twice(client: &mut Client) {
    held(client);
    held(client);
}

/// Lets A and B hold the lock. A's lease is short, but long enough for the clients of an [`Audience`] to subscribe. B's
/// lease does not end during the test.
fn held_by_two(client: &mut Client) {
    client.acquire("lock A SHARED PX 2000");
    client.acquire("lock B SHARED PX 600000");
}

/// Waits until the server has expired the key in the background. This function does not read the key, because a read
/// would make the server expire the key.
#[track_caller]
fn see_dropped(client: &mut Client) {
    eventually("the key is gone", || client.call("DBSIZE") == Reply::Int(0));
}

const HOUR: Duration = Duration::from_secs(3_600);

type Case = (&'static str, fn() -> Observed);

const CASES: &[Case] = &[
    ("A free lock is acquired.", || observed(|_| {}, held)),
    ("Its owner acquires it again.", || observed(held, held)),
    ("A repeated LOCK.ACQUIRE extends the lease.", || {
        observed(
            |client| _ = client.acquire("lock A PX 20000 HOLDS 1"),
            |client| {
                client.acquire("lock A PX 600000 HOLDS 1");
            },
        )
    }),
    ("A repeated LOCK.ACQUIRE does not extend the lease.", || {
        observed(held, |client| _ = client.acquire("lock A PX 1000 HOLDS 1"))
    }),
    ("LOCK.RENEW.", || observed(held, |client| _ = client.call("LOCK.RENEW lock A").int())),
    ("One hold of several is released.", || {
        observed(held_twice, |client| assert_eq!(client.call("LOCK.RELEASE lock A"), Reply::Int(1)))
    }),
    ("The last hold is released.", || {
        observed(held, |client| assert_eq!(client.call("LOCK.RELEASE lock A"), Reply::Int(0)))
    }),
    ("All holds are released with `ALL`.", || {
        observed(held_twice, |client| assert_eq!(client.call("LOCK.RELEASE lock A ALL"), Reply::Int(0)))
    }),
    ("A request is refused.", || {
        observed(held, |client| {
            client.call("LOCK.ACQUIRE lock B");
            client.call("LOCK.RENEW lock B");
            client.call("LOCK.RELEASE lock B");
            client.call("LOCK.RELEASE lock A HOLDS 7");
        })
    }),
    ("A client starts to wait, and stops.", || {
        observed(held, |client| _ = client.call("LOCK.ACQUIRE lock B BLOCK 20"))
    }),
    ("Hand-off: the last hold is released, and somebody waits.", || {
        observed_until_granted(|client| _ = client.call("LOCK.RELEASE lock A").int())
    }),
    ("Hand-off to an owner that waits on two connections.", || {
        let (server, mut a, mut b) = Server::start_contended();
        let mut again = server.waiter("lock B BLOCK 0");
        observed_on(&server, |_| {
            a.call("LOCK.RELEASE lock A").int();
            assert_eq!((b.reply().grant().holds, again.reply().grant().holds), (1, 2));
        })
    }),
    ("Hand-off to two readers.", || {
        let server = Server::start();
        let mut a = server.client();
        held(&mut a);
        let mut readers = ["B", "C"].map(|owner| server.waiter(&format!("lock {owner} SHARED BLOCK 0")));
        observed_on(&server, |_| {
            a.call("LOCK.RELEASE lock A").int();
            readers.iter_mut().for_each(|reader| assert_eq!(reader.reply().grant().holds, 1));
        })
    }),
    ("A renewal with a larger limit lets a waiter in.", || {
        let server = Server::start();
        held(&mut server.client());
        let mut reader = server.waiter("lock B SHARED BLOCK 0");
        observed_on(&server, |client| {
            client.call("LOCK.RENEW lock A SHARED").int();
            assert_eq!(reader.reply().grant().holds, 1);
        })
    }),
    ("One of several holders releases.", || {
        observed(held_by_two, |client| assert_eq!(client.call("LOCK.RELEASE lock A"), Reply::Int(0)))
    }),
    ("The lease of one of several holders ends.", || {
        observed(held_by_two, |client| {
            eventually("the lease is over", || {
                client.info("lock").is_some_and(|lock| lock.holders.len() == 1)
            });
        })
    }),
    ("Hand-off to a client that has just left: the next waiter gets the lock.", || {
        let (server, mut a, b) = Server::start_contended();
        let mut c = server.waiter("lock C BLOCK 0");
        observed_on(&server, |_| {
            server.freeze();
            a.send("LOCK.RELEASE lock A");
            server.see_unread_from(a.port());
            let port = b.port();
            drop(b);
            server.see_left(port);
            server.thaw();
            assert_eq!(c.reply().grant().holds, 1);
        })
    }),
    ("The lease ends.", || observed(held_briefly, see_dropped)),
    ("The lease ends, and somebody waits.", || {
        let server = Server::start();
        held_briefly(&mut server.client());
        let mut b = server.waiter("lock B BLOCK 0");
        observed_on(&server, |_| assert_eq!(b.reply().grant().holds, 1))
    }),
    ("The lease ends, and a command finds it first.", || {
        let server = Server::start();
        let mut a = server.client();
        held_briefly(&mut a);
        // Without a TTL the server does not know when the lease ends. So only the module can find that the lease is
        // over.
        a.call("PERSIST lock");
        observed_on(&server, |client| {
            eventually("the lease is over", || !client.call("LOCK.ACQUIRE lock B").is_null());
        })
    }),
    ("DEL, UNLINK.", || observed(held, |client| assert_eq!(client.call("UNLINK lock"), Reply::Int(1)))),
    ("DEL, UNLINK, and somebody waits.", || observed_until_granted(|client| _ = client.call("DEL lock"))),
    ("SET over it.", || {
        let (server, _a, mut b) = Server::start_contended();
        observed_on(&server, |client| {
            client.call("SET lock value");
            assert_eq!(b.reply().error_word(), "WRONGTYPE");
        })
    }),
    ("RENAME to `other`.", || observed(held, |client| _ = client.call("RENAME lock other"))),
    ("RENAME to `other`, and somebody waits.", || {
        observed_until_granted(|client| _ = client.call("RENAME lock other"))
    }),
    ("RENAME of the lock `other` to this.", || {
        observed(
            |client| {
                held(client);
                client.acquire("other C");
            },
            |client| _ = client.call("RENAME other lock"),
        )
    }),
    ("MOVE to another database.", || observed(held, |client| _ = client.call("MOVE lock 1"))),
    ("FLUSHDB, FLUSHALL.", || observed(held, |client| _ = client.call("FLUSHDB"))),
    ("FLUSHDB, FLUSHALL, and somebody waits.", || {
        observed_until_granted(|client| _ = client.call("FLUSHALL"))
    }),
    ("SWAPDB with an empty database.", || observed(held, |client| _ = client.call("SWAPDB 0 1"))),
    ("SWAPDB with an empty database, and somebody waits.", || {
        observed_until_granted(|client| _ = client.call("SWAPDB 0 1"))
    }),
    ("RESTORE.", || {
        let server = Server::start();
        let mut a = server.client();
        held(&mut a);
        let payload = a.call("DUMP lock");
        a.call("DEL lock");
        observed_on(&server, |client| {
            assert_eq!(client.call([b"RESTORE", b"lock".as_slice(), b"0", payload.bytes()]), Reply::ok());
        })
    }),
    ("EXPIRE by hand, and the new TTL ends.", || {
        observed(held, |client| {
            client.call("PEXPIRE lock 20");
            see_dropped(client);
        })
    }),
    ("EXPIRE by hand, and somebody waits.", || {
        observed_until_granted(|client| _ = client.call("PEXPIRE lock 20"))
    }),
    ("Eviction: the tenure is kept.", || observed(held, |client| client.evict("lock"))),
    ("Eviction: the owner's next command puts the lock back.", || {
        let server = Server::start();
        let mut a = server.client();
        held(&mut a);
        a.evict("lock");
        observed_on(&server, |client| _ = client.call("LOCK.RENEW lock A").int())
    }),
    ("Eviction: the lease ends before that.", || {
        let server = Server::start();
        let mut a = server.client();
        held_briefly(&mut a);
        a.evict("lock");
        observed_on(&server, |client| {
            eventually("nothing is kept", || client.stat("lock", "lock_tenures_kept") == 0);
        })
    }),
    ("The wall clock steps past the lease: the module puts the lock back.", || {
        let mut clock = WallClock::new();
        let server = Setup::new().clock(&clock).start();
        held(&mut server.client());
        observed_on(&server, |client| {
            clock.forward(HOUR);
            eventually("it was kept", || client.stat("lock", "lock_tenures_kept_from_clock_steps") == 1);
            eventually("it is back", || client.call("EXISTS lock") == Reply::Int(1));
        })
    }),
    ("Quarantine: LOCK.RENEW restores a tenure.", || {
        let server = Server::start_with("quarantine 600000");
        observed_on(&server, |client| _ = client.call("LOCK.RENEW lock A TOKEN 4711").int())
    }),
    ("Quarantine: LOCK.RENEW with a larger token replaces a restored tenure.", || {
        let server = Server::start_with("quarantine 600000");
        server.client().call("LOCK.RENEW lock A TOKEN 4711").int();
        observed_on(&server, |client| _ = client.call("LOCK.RENEW lock B TOKEN 4712").int())
    }),
    ("The quarantine ends, and somebody waits.", || {
        let server = Server::start_with("quarantine 600000");
        let (mut b, mut observer) = (server.client(), server.client());
        b.ask("lock B BLOCK 0");
        observer.see_blocked(1);
        observed_on(&server, |client| {
            client.call("CONFIG SET lock.quarantine 0");
            assert_eq!(b.reply().grant().holds, 1);
        })
    }),
];

/// Actions that are not on the page docs/events.md, in the form of that page's table.
const NOT_ON_THE_PAGE: &str = "\
| A free lock is acquired. | `lock.acquired` | yes |
| Its owner acquires it again. | `lock.acquired` | yes |
| A repeated LOCK.ACQUIRE does not extend the lease. | none | no |
| LOCK.RENEW. | `lock.renewed` | yes |
| One hold of several is released. | `lock.released` | yes |
| The last hold is released. | `lock.released` | yes |
| A client starts to wait, and stops. | none | no |
| Hand-off to an owner that waits on two connections. | `lock.released`, `lock.acquired`, `lock.acquired` | yes |
| One of several holders releases. | `lock.released` | yes |
| The lease ends. | `expired` | yes |
| The lease ends, and a command finds it first. | `expired`, `lock.acquired` | yes |
| DEL, UNLINK. | `del` | yes |
| SET over it. | `set` | yes |
| RENAME to `other`. | `rename_from`, `rename_to` of `other` | yes |
| RENAME to `other`, and somebody waits. | `rename_from`, `rename_to` of `other`, `lock.acquired` | yes |
| RENAME of the lock `other` to this. | `rename_from` of `other`, `rename_to` | yes |
| MOVE to another database. | `move_from`, `move_to` | yes |
| FLUSHDB, FLUSHALL, and somebody waits. | `lock.acquired` | yes, of all keys |
| SWAPDB with an empty database, and somebody waits. | `lock.acquired` | yes |
| RESTORE. | `restore` | yes |
| EXPIRE by hand, and somebody waits. | `expire`, `expired`, `lock.acquired` | yes |
| Eviction: the lease ends before that. | `expired` | yes |
| The quarantine ends, and somebody waits. | `lock.acquired` | yes |
| All holds are released with `ALL`. | `lock.released` | yes |
| Hand-off to a client that has just left: the next waiter gets the lock. | `lock.released`, `lock.acquired`, `lock.released`, `lock.acquired` | yes |
| Hand-off to two readers. | `lock.released`, `lock.acquired`, `lock.acquired` | yes |
| A renewal with a larger limit lets a waiter in. | `lock.renewed`, `lock.acquired` | yes |
| EXPIRE by hand, and the new TTL ends. | `expire`, `expired` | yes |
| Eviction: the owner's next command puts the lock back. | `lock.renewed` | yes |
| Quarantine: LOCK.RENEW restores a tenure. | `lock.acquired` | yes |
| Quarantine: LOCK.RENEW with a larger token replaces a restored tenure. | `lock.released`, `lock.acquired` | yes |
";

#[test]
fn events_and_invalidations_follow_the_table() {
    let page = fs::read_to_string(repository().join("docs/events.md")).expect("docs/events.md");
    let shown = page.lines().skip_while(|line| !line.starts_with("| what happens |")).skip(2);
    let shown = shown.take_while(|line| line.starts_with("| "));
    let mut rows: BTreeMap<String, Observed> = shown
        .chain(NOT_ON_THE_PAGE.lines())
        .map(|line| {
            let [what, events, invalidated] =
                line.trim_start_matches("| ").trim_end_matches(" |").split(" | ").collect::<Vec<_>>()[..]
            else {
                panic!("no row with three cells: {line}");
            };
            let observed = Observed { events: events.to_owned(), invalidated: invalidated.to_owned() };
            (what.to_owned(), observed)
        })
        .collect();
    let mut wrong = Vec::new();
    for (what, case) in CASES {
        let observed = case();
        let row = rows.remove(*what);
        if row.as_ref() != Some(&observed) {
            wrong.push(format!("| {what} | {} | {} |", observed.events, observed.invalidated));
        }
    }
    assert!(wrong.is_empty(), "the table in docs/events.md should have these rows:\n{}", wrong.join("\n"));
    assert!(rows.is_empty(), "no test has these rows of the table: {rows:#?}");
}

#[test]
fn a_replica_publishes_a_lease_end_found_by_the_module_like_its_primary() {
    let primary = Server::start();
    held_briefly(&mut primary.client());
    let mut b = primary.waiter("lock B BLOCK 0");
    // Without a TTL on the key, only the module can end the lease.
    primary.client().call("PERSIST lock");
    let replica = Server::start_replica_of(&primary);
    let mut audience = Audience::of(&replica);
    b.reply().grant();
    replica.see_in_sync_with(&primary);
    primary.client().call("SET the-end reached");
    assert_eq!(audience.events(), "`expired`, `lock.acquired`");
    assert_eq!(audience.invalidated(), "yes");
}

#[test]
fn a_replica_publishes_a_lease_end_found_by_the_server_as_a_deletion() {
    let primary = Server::start();
    held_briefly(&mut primary.client());
    let replica = Server::start_replica_of(&primary);
    let mut audience = Audience::of(&replica);
    see_dropped(&mut primary.client());
    primary.client().call("SET the-end reached");
    assert_eq!(audience.events(), "`del`");
    assert_eq!(audience.invalidated(), "yes");
}

#[test]
fn a_full_resync_and_a_promotion_have_no_events() {
    let (primary, other) = (Server::start(), Server::start());
    held(&mut primary.client());
    other.client().acquire("lock B PX 600000");
    let mut audience = Audience::of(&other);
    other.follow(&primary);
    assert_eq!(audience.other.owner("lock").as_deref(), Some("A"));
    other.promote();
    audience.other.call("SET the-end reached");
    assert_eq!(audience.events(), "none");
}

#[test]
fn when_the_wall_clock_is_ahead_expired_is_published_early_and_again_at_the_end_of_the_lease() {
    let mut clock = WallClock::new();
    let server = Setup::new().clock(&clock).start();
    held_briefly(&mut server.client());
    let mut audience = Audience::of(&server);
    clock.forward(Duration::from_millis(900));
    assert_eq!(audience.events.reply().items()[2].text(), "__keyevent@0__:expired");
    assert_told_of(&mut audience.tracker, "lock");
    assert_eq!(audience.tracker.call("LOCK.INFO lock").info().holders[0].owner, "A");
    assert_eq!(audience.events.reply().items()[2].text(), "__keyevent@0__:expired");
    assert_told_of(&mut audience.tracker, "lock");
    assert_eq!(audience.tracker.call("LOCK.INFO lock"), Reply::Null);
}

/// A server on which A holds the lock. Also returns a connection with the options `how` of CLIENT TRACKING ON, and A's
/// connection.
#[track_caller]
fn tracker_of_a_held_lock(how: &str) -> (Server, Client, Client) {
    let server = Server::start();
    let (mut tracker, mut a) = (server.client3(), server.client());
    held(&mut a);
    assert_eq!(tracker.call(format!("CLIENT TRACKING ON {how}")), Reply::ok());
    (server, tracker, a)
}

/// Asserts that the next push is an invalidation of `key`.
#[track_caller]
fn assert_told_of(tracker: &mut Client, key: &str) {
    let expected = [Reply::bulk("invalidate"), Reply::Array(vec![Reply::bulk(key)])];
    assert_eq!(tracker.push().items(), expected);
}

#[test]
fn a_tracking_client_gets_one_invalidation_until_it_reads_again() {
    let (_server, mut tracker, mut a) = tracker_of_a_held_lock("");
    tracker.call("LOCK.INFO lock");
    tracker.call("LOCK.INFO mark");
    a.call("LOCK.RENEW lock A");
    a.call("LOCK.RELEASE lock A");
    a.acquire("mark A");
    assert_told_of(&mut tracker, "lock");
    assert_told_of(&mut tracker, "mark");
}

#[test]
fn a_tracking_client_gets_an_invalidation_for_a_lock_that_was_free_when_read() {
    let (_server, mut tracker, mut a) = tracker_of_a_held_lock("");
    assert_eq!(tracker.call("LOCK.INFO free"), Reply::Null);
    a.acquire("free A");
    assert_told_of(&mut tracker, "free");
}

#[test]
fn a_client_that_tracks_a_prefix_gets_every_invalidation_without_reading() {
    let (server, mut tracker, mut a) = tracker_of_a_held_lock("BCAST PREFIX lo PREFIX other");
    let mut b = server.waiter("lock B PX 600000 BLOCK 0");
    for _ in 0..2 {
        a.call("LOCK.RENEW lock A PX 600000");
        assert_told_of(&mut tracker, "lock");
    }
    a.acquire("unasked-for A");
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    assert_told_of(&mut tracker, "lock");
    a.acquire("other A PX 20");
    assert_told_of(&mut tracker, "other");
    assert_told_of(&mut tracker, "other");
}

#[test]
fn with_noloop_a_client_that_tracks_a_prefix_gets_invalidations_for_changes_of_others_only() {
    let (_server, mut tracker, mut a) = tracker_of_a_held_lock("BCAST PREFIX lock NOLOOP");
    tracker.call("LOCK.RENEW lock A PX 600000").int();
    a.acquire("lock-mark A");
    assert_told_of(&mut tracker, "lock-mark");
    a.call("DEL lock");
    assert_told_of(&mut tracker, "lock");
}

/// With NOLOOP the client gets no invalidation for its own change, but the server forgets that the client has read
/// the lock.
#[test]
fn with_noloop_a_tracking_client_must_read_again_after_its_own_renewal() {
    let (_server, mut tracker, mut a) = tracker_of_a_held_lock("NOLOOP");
    tracker.call("LOCK.INFO lock");
    tracker.call("LOCK.RENEW lock A PX 600000").int();
    tracker.call("LOCK.INFO mark");
    a.call("LOCK.RENEW lock A PX 600000").int();
    a.acquire("mark A");
    assert_told_of(&mut tracker, "mark");
    tracker.call("LOCK.INFO lock");
    a.call("DEL lock");
    assert_told_of(&mut tracker, "lock");
}

#[test]
fn with_optin_a_tracking_client_gets_invalidations_for_what_it_opted_for() {
    let (_server, mut tracker, mut a) = tracker_of_a_held_lock("OPTIN");
    tracker.call("LOCK.INFO lock");
    assert_eq!(tracker.call("CLIENT CACHING YES"), Reply::ok());
    tracker.call("LOCK.INFO mark");
    a.call("DEL lock");
    a.acquire("mark A");
    assert_told_of(&mut tracker, "mark");
}

#[test]
fn in_resp2_invalidations_go_to_another_connection() {
    let server = Server::start();
    let (mut observed, mut tracker, mut a) = (server.client(), server.client(), server.client());
    held(&mut a);
    let id = observed.id();
    observed.call("SUBSCRIBE __redis__:invalidate");
    assert_eq!(tracker.call(format!("CLIENT TRACKING ON REDIRECT {id}")), Reply::ok());
    tracker.call("LOCK.INFO lock");
    a.call("LOCK.RELEASE lock A");
    let message = observed.reply();
    let expected = ["message", "__redis__:invalidate"].map(Reply::bulk);
    assert_eq!(message.items()[..2], expected);
    assert_eq!(message.items()[2], Reply::Array(vec![Reply::bulk("lock")]));
}

#[test]
fn a_tracking_client_gets_invalidations_while_it_waits() {
    let (server, mut tracker, mut a) = tracker_of_a_held_lock("");
    tracker.call("LOCK.INFO lock");
    a.acquire("other A");
    tracker.ask("other B BLOCK 0");
    server.client().see_waiters("other", 1);
    a.call("DEL lock");
    assert_told_of(&mut tracker, "lock");
    a.call("LOCK.RELEASE other A");
    tracker.reply().grant();
}

#[test]
fn a_user_with_read_access_alone_can_track_locks() {
    let server = Server::start();
    let (mut a, mut observed, mut tracker) = (server.client(), server.client(), server.client());
    held(&mut a);
    let may = "+lock.info ~lock +client|tracking +client|id +ping +subscribe &__redis__:invalidate";
    assert_eq!(a.call(format!("ACL SETUSER watcher on nopass {may}")), Reply::ok());
    for client in [&mut observed, &mut tracker] {
        assert_eq!(client.call("AUTH watcher any"), Reply::ok());
    }
    let id = observed.id();
    assert_eq!(observed.call("SUBSCRIBE __redis__:invalidate").items()[2], Reply::Int(1));
    assert_eq!(tracker.call(format!("CLIENT TRACKING ON REDIRECT {id}")), Reply::ok());
    assert_eq!(tracker.call("LOCK.INFO lock").info().holders[0].owner, "A");
    assert_eq!(tracker.call("DEL lock").error_word(), "NOPERM");
    a.call("DEL lock");
    assert_eq!(observed.reply().items()[2], Reply::Array(vec![Reply::bulk("lock")]));
}
