//! Readers, writers and heavy requests in one wait queue, first come, first served.

use lockward_tests::{Client, Reply, Server, Setup};

/// A server on which A holds `lock` as a reader, a writer W waits for the lock, and a reader R waits behind W.
struct Held {
    server: Server,
    a: Client,
    writer: Client,
    reader: Client,
}

impl Held {
    #[track_caller]
    fn start(writer: &str) -> Self {
        let server = Setup::new().start();
        let mut a = server.client();
        a.acquire("lock A SHARED PX 600000");
        let writer = server.waiter(&format!("lock W {writer}"));
        let reader = server.waiter("lock R SHARED BLOCK 0");
        assert_eq!(a.queue("lock"), ["W", "R"]);
        Self { server, a, writer, reader }
    }

    /// The id of the writer's connection.
    #[track_caller]
    fn writer_id(&mut self) -> i64 {
        self.a.first_waiter("lock").client_id
    }

    /// Waits until the reader is granted the lock beside A.
    #[track_caller]
    fn see_reader_in(&mut self) {
        assert_eq!(self.reader.reply().grant().holds, 1);
        assert_eq!(self.a.holders("lock"), ["A x1 SHARED", "R x1 SHARED"]);
    }
}

#[test]
fn a_writer_that_waits_holds_back_readers() {
    let Held { mut a, mut writer, mut reader, server } = Held::start("BLOCK 0");
    for request in ["lock X SHARED", "lock X SHARED BLOCK 20", "lock X SLOTS 9"] {
        assert!(a.call(format!("LOCK.ACQUIRE {request}")).is_null(), "{request}");
    }
    assert!(reader.has_no_reply());
    a.call("LOCK.RELEASE lock A");
    assert_eq!(writer.reply().grant().holds, 1);
    assert!(reader.has_no_reply());
    a.call("LOCK.RELEASE lock W");
    assert_eq!(reader.reply().grant().holds, 1);
    drop(server);
}

#[test]
fn a_reader_re_enters_past_a_writer_that_waits() {
    let Held { mut a, mut writer, reader: _reader, server: _server } = Held::start("BLOCK 0");
    assert_eq!(a.acquire("lock A SHARED BLOCK 0").holds, 2);
    assert_eq!(a.acquire("lock A SHARED HOLDS 3").holds, 3);
    assert!(writer.has_no_reply());
    a.call("LOCK.RELEASE lock A ALL");
    assert_eq!(writer.reply().grant().holds, 1);
}

#[test]
fn a_release_grants_all_waiters_up_to_the_first_that_does_not_fit() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut readers = ["C", "D", "E"].map(|owner| server.waiter(&format!("lock {owner} SHARED BLOCK 0")));
    let mut heavy = server.waiter("lock F SLOTS 4 WEIGHT 2 BLOCK 0");
    let mut last = server.waiter("lock G SHARED BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    let [_, info] = a.transact(["LOCK.RELEASE lock B", "LOCK.INFO lock"]);
    assert_eq!((info.info().holding, info.info().waiters), (3, 2));
    let tokens = readers.each_mut().map(|reader| reader.reply().grant().token);
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2], "{tokens:?}");
    assert!(heavy.has_no_reply() && last.has_no_reply());
    // When C has released, two readers with weight 1 and the heavy request with weight 2 fit into the four
    // slots of the heavy request.
    a.call("LOCK.RELEASE lock C");
    assert_eq!(heavy.reply().grant().holds, 1);
    assert!(last.has_no_reply());
    a.call("LOCK.RELEASE lock D");
    assert_eq!(last.reply().grant().holds, 1);
}

#[test]
fn a_heavy_request_is_not_passed_by_light_ones() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A SLOTS 8 WEIGHT 5 PX 600000");
    let mut heavy = server.waiter("lock H SLOTS 8 WEIGHT 4 BLOCK 0");
    assert!(a.call("LOCK.ACQUIRE lock B SLOTS 8").is_null(), "a light request has passed a heavy one");
    let mut light = server.waiter("lock L SLOTS 8 WEIGHT 3 BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(heavy.reply().grant().holds, 1);
    assert_eq!(light.reply().grant().holds, 1);
    assert_eq!(a.holders("lock"), ["H x1 SLOTS 8 WEIGHT 4", "L x1 SLOTS 8 WEIGHT 3"]);
}

// When the first waiter leaves the queue, the next waiters that fit are served at once.

#[test]
fn waiters_behind_a_writer_that_disconnects_are_served() {
    for leave in [Client::break_off as fn(Client), drop] {
        for keep in ["", "HOLDS 1 KEEP 60000"] {
            let mut held = Held::start(&format!("BLOCK 0 {keep}"));
            let other = held.server.client();
            leave(std::mem::replace(&mut held.writer, other));
            held.see_reader_in();
        }
    }
}

#[test]
fn waiters_behind_a_writer_that_is_killed_are_served() {
    let mut held = Held::start("BLOCK 0");
    let id = held.writer_id();
    assert_eq!(held.a.call(format!("CLIENT KILL ID {id}")), Reply::Int(1));
    held.see_reader_in();
}

#[test]
fn waiters_behind_a_writer_that_reaches_its_limit_are_served() {
    let mut held = Held::start("BLOCK 700");
    assert!(held.writer.reply().is_null());
    held.see_reader_in();
}

#[test]
fn waiters_behind_a_writer_that_is_unblocked_are_served() {
    for (how, reply) in [("", "null"), ("TIMEOUT", "null"), ("ERROR", "UNBLOCKED")] {
        let mut held = Held::start("BLOCK 0");
        let id = held.writer_id();
        if held.a.call(format!("CLIENT UNBLOCK {id} {how}")) == Reply::Int(0) {
            return; // this server cannot unblock a waiter safely
        }
        match held.writer.reply() {
            Reply::Error(text) => assert!(text.starts_with(reply), "{how}: {text}"),
            other => assert!(other.is_null() && reply == "null", "{how}: {other:?}"),
        }
        held.see_reader_in();
    }
}

#[test]
fn waiters_behind_a_writer_that_gives_up_are_served_in_the_same_step() {
    let mut held = Held::start("BLOCK 0 HOLDS 1");
    let [released, info] = held.a.transact(["LOCK.RELEASE lock W HOLDS 0", "LOCK.INFO lock"]);
    assert_eq!((released, info.info().holding), (Reply::Int(0), 2));
    assert_eq!(held.writer.reply().error_word(), "SUPERSEDED");
    held.see_reader_in();
}

#[test]
fn a_writer_that_asks_again_as_a_reader_is_granted_with_the_readers_behind_it() {
    for block in ["", "BLOCK 0"] {
        let mut held = Held::start("BLOCK 0 HOLDS 1");
        let grant = held.a.acquire(&format!("lock W SHARED HOLDS 1 {block}"));
        assert_eq!(grant.holds, 1);
        assert_eq!(held.writer.reply().error_word(), "SUPERSEDED");
        assert_eq!(held.reader.reply().grant().holds, 1);
        assert_eq!(held.a.holders("lock"), ["A x1 SHARED", "W x1 SHARED", "R x1 SHARED"]);
    }
}

#[test]
fn a_repeated_request_of_a_waiting_reader_stays_behind_the_writer() {
    let mut held = Held::start("BLOCK 0");
    let mut again = held.server.client();
    assert!(again.call("LOCK.ACQUIRE lock R SHARED HOLDS 1").is_null(), "R has passed the writer");
    again.ask("lock R SHARED HOLDS 1 BLOCK 0");
    assert_eq!(held.reader.reply().error_word(), "SUPERSEDED");
    assert_eq!(held.a.queue("lock"), ["W", "R"]);
    assert!(again.has_no_reply());
}

#[test]
fn a_grant_that_is_passed_on_serves_all_waiters_that_fit() {
    let (server, mut a, b) = Server::start_contended();
    let id = a.first_waiter("lock").client_id;
    let mut readers = ["C", "D"].map(|owner| server.waiter(&format!("lock {owner} SHARED BLOCK 0")));
    a.transact(["LOCK.RELEASE lock A", &format!("CLIENT KILL ID {id}")]);
    drop(b);
    readers.iter_mut().for_each(|reader| assert_eq!(reader.reply().grant().holds, 1));
    assert_eq!(a.holders("lock"), ["C x1 SHARED", "D x1 SHARED"]);
}

#[test]
fn the_grant_of_a_reader_that_has_left_is_taken_back_and_other_readers_keep_theirs() {
    let (server, mut a, b) = Server::start_contended();
    drop(b);
    a.see_waiters("lock", 0);
    let mut clients = ["C", "D", "E"].map(|owner| server.waiter(&format!("lock {owner} SHARED BLOCK 0")));
    let mut writer = server.waiter("lock W BLOCK 0");
    let queue = a.call("LOCK.INFO lock WAITERS 9").info().queue.unwrap();
    a.transact(["LOCK.RELEASE lock A", &format!("CLIENT KILL ID {}", queue[1].client_id)]);
    for at in [0, 2] {
        assert_eq!(clients[at].reply().grant().holds, 1);
    }
    a.see_holders("lock", ["C x1 SHARED", "E x1 SHARED"]);
    assert!(writer.has_no_reply());
}

#[test]
fn no_waiter_is_granted_while_writes_are_refused() {
    for (refuse, allow) in [
        ("CLIENT PAUSE 600000 WRITE", "CLIENT UNPAUSE"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    ] {
        let mut held = Held::start("BLOCK 0");
        let mut limited = held.server.waiter("lock Z BLOCK 900");
        assert_eq!(held.a.call(refuse), Reply::ok());
        let other = held.server.client();
        drop(std::mem::replace(&mut held.writer, other));
        assert!(limited.reply().is_null(), "a wait limit ends although writes are refused");
        assert_eq!(held.a.queue("lock"), ["R"]);
        assert!(held.reader.has_no_reply(), "{refuse}");
        assert_eq!(held.a.call(allow), Reply::ok());
        held.see_reader_in();
    }
}

#[test]
fn hundreds_of_readers_are_granted_in_one_step() {
    const READERS: usize = 300;
    let (server, mut a, b) = Server::start_contended();
    drop(b);
    a.see_waiters("lock", 0);
    let mut readers: Vec<Client> = (0..READERS).map(|_| server.client()).collect();
    for (number, reader) in readers.iter_mut().enumerate() {
        reader.ask(&format!("lock R{number} SHARED BLOCK 0"));
    }
    a.see_waiters("lock", READERS as i64);
    let [_, info] = a.transact(["LOCK.RELEASE lock A", "LOCK.INFO lock"]);
    assert_eq!((info.info().holding, info.info().waiters), (READERS as i64, 0));
    readers.iter_mut().for_each(|reader| assert_eq!(reader.reply().grant().holds, 1));
}

// Leases.

#[test]
fn the_end_of_one_lease_lets_in_the_waiters_that_fit_beside_the_other_holders() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A SLOTS 4 WEIGHT 2 PX 600000");
    a.acquire("lock B SLOTS 4 WEIGHT 2 PX 600000");
    let mut first = server.waiter("lock C SLOTS 4 BLOCK 0");
    let mut second = server.waiter("lock D SLOTS 4 BLOCK 0");
    let mut third = server.waiter("lock E SLOTS 4 BLOCK 0");
    a.call("LOCK.RENEW lock B PX 30").int();
    assert_eq!((first.reply().grant().holds, second.reply().grant().holds), (1, 1));
    assert!(third.has_no_reply());
    let holders = ["A x1 SLOTS 4 WEIGHT 2", "C x1 SLOTS 4 WEIGHT 1", "D x1 SLOTS 4 WEIGHT 1"];
    assert_eq!(a.holders("lock"), holders);
}

#[test]
fn a_writer_waits_for_the_last_lease_of_the_readers() {
    let server = Server::start();
    let mut a = server.client();
    for owner in ["A", "B", "C"] {
        a.acquire(&format!("lock {owner} SHARED PX 600000"));
    }
    let mut writer = server.waiter("lock W BLOCK 0");
    for (owner, lease) in [("B", 20), ("C", 60)] {
        a.call(format!("LOCK.RENEW lock {owner} PX {lease}")).int();
    }
    a.see_holders("lock", ["A x1 SHARED"]);
    assert!(writer.has_no_reply());
    a.call("LOCK.RENEW lock A PX 20").int();
    assert_eq!(writer.reply().grant().holds, 1);
}

// The other waits of an owner.

#[test]
fn the_other_waits_of_a_granted_owner_re_enter_or_get_an_error() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut reader = server.waiter("lock C SHARED BLOCK 0");
    let mut between = server.waiter("lock W BLOCK 0");
    let mut writer = server.waiter("lock C BLOCK 0");
    let mut again = server.waiter("lock C SHARED BLOCK 0");
    let mut weighted = server.waiter("lock C SLOTS 9 WEIGHT 2 BLOCK 0");
    let mut last = server.waiter("lock D SHARED BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    a.call("LOCK.RELEASE lock B");
    assert_eq!((reader.reply().grant().holds, again.reply().grant().holds), (1, 2));
    let error = "LIMIT the owner has SHARED: release first, or ask as another owner";
    assert_eq!((writer.reply().error(), weighted.reply().error()), (error, error));
    assert_eq!(a.holders("lock"), ["C x2 SHARED"]);
    assert!(between.has_no_reply() && last.has_no_reply(), "another owner has passed the writer");
    assert_eq!(a.queue("lock"), ["W", "D"]);
}

#[test]
fn an_owner_that_is_granted_a_lock_without_a_wait_is_granted_its_waits_too() {
    let mut held = Held::start("BLOCK 0");
    let mut other = held.server.waiter("lock X BLOCK 0");
    let mut again = held.server.waiter("lock W SHARED BLOCK 0");
    assert!(held.a.call("LOCK.ACQUIRE lock W SHARED").is_null(), "the request has passed W's own first wait");
    // With HOLDS, the request takes over the place of W's first wait. This place is the first in the queue, so the
    // request is granted.
    assert_eq!(held.a.acquire("lock W SHARED HOLDS 1").holds, 1);
    let reply = held.writer.reply();
    assert_eq!(reply.error_word(), "SUPERSEDED", "{reply:?}");
    assert_eq!(again.reply().grant().holds, 2);
    assert_eq!(held.reader.reply().grant().holds, 1);
    assert!(other.has_no_reply());
}

// Every way in which a lock can end.

#[test]
fn however_a_shared_lock_ends_its_waiters_are_served() {
    for how in ["DEL lock", "UNLINK lock", "RENAME lock other", "MOVE lock 1", "FLUSHALL", "SWAPDB 0 1"] {
        let Held { mut a, mut writer, server, .. } = Held::start("BLOCK 0");
        a.acquire("other-lock X PX 600000");
        a.call(how);
        assert_eq!(writer.reply().grant().holds, 1, "{how}");
        drop(server);
    }
}

#[test]
fn a_restored_lock_admits_waiters_by_its_own_limits() {
    let Held { mut a, mut writer, mut reader, server } = Held::start("BLOCK 0");
    a.acquire("other X SHARED PX 600000");
    a.acquire("other Y SHARED PX 600000");
    let payload = a.call("DUMP other").bytes().to_vec();
    assert_eq!(a.call([b"RESTORE".as_slice(), b"lock", b"0", &payload, b"REPLACE"]), Reply::ok());
    assert_eq!(a.holders("lock"), ["X x1 SHARED", "Y x1 SHARED"]);
    assert!(writer.has_no_reply() && reader.has_no_reply());
    a.call_all(["LOCK.RELEASE lock X", "LOCK.RELEASE lock Y"]);
    assert_eq!(writer.reply().grant().holds, 1);
    drop(server);
}

#[test]
fn twenty_thousand_holders_release_in_any_order() {
    const HOLDERS: usize = 20_000;
    let server = Server::start();
    let mut a = server.client();
    a.call_all((0..HOLDERS).map(|number| format!("LOCK.ACQUIRE lock owner-{number} SLOTS 20000 PX 600000")));
    assert!(a.call("LOCK.ACQUIRE lock more SLOTS 20000").is_null());
    let mut waiter = server.waiter("lock more SLOTS 20000 BLOCK 0");
    let releases = (0..HOLDERS).map(|number| format!("LOCK.RELEASE lock owner-{}", number * 7_919 % HOLDERS));
    for reply in a.call_all(releases.collect::<Vec<_>>()) {
        assert_eq!(reply, Reply::Int(0));
    }
    assert_eq!(waiter.reply().grant().holds, 1);
    assert_eq!(a.holders("lock"), ["more x1 SLOTS 20000 WEIGHT 1"]);
}
