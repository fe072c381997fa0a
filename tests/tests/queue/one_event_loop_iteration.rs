//! Grants, kills and other ends of waits, all in one iteration of the server's event loop.

use lockward_tests::{Client, DEADLINE, Random, Reply, Server, Silence, eventually, rounds};

/// One of B's waits.
struct Wait {
    client: Client,
    id: i64,
    has_more: bool,
}

impl Wait {
    /// Reads how the wait has ended, and checks that each later command on the connection gets one reply.
    #[track_caller]
    fn end(&mut self) -> End {
        let end = match self.client.reply_within(DEADLINE) {
            Ok(Reply::NullArray | Reply::Null | Reply::Error(_)) => End::Unblocked,
            Ok(grant) => End::Granted(grant.grant().token),
            Err(Silence::Closed) => return End::Closed,
            Err(Silence::StillOpen) => panic!("no answer"),
        };
        if self.has_more {
            assert_eq!(self.client.reply(), Reply::Simple("PONG".into()));
        }
        match self.client.try_call("ECHO last") {
            Ok(last) => assert_eq!(last, Reply::bulk("last"), "one reply for each command"),
            Err(silence) => assert_eq!(silence, Silence::Closed),
        }
        end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Granted(i64),
    Unblocked,
    Closed,
}

/// B waits over one to three connections, and C waits behind B. One packet frees the lock, kills some connections of B
/// and unblocks some other connections of B, in any order. If a connection of B receives a grant, B holds the lock.
/// If no connection of B receives a grant, C gets the lock.
#[test]
fn a_lock_freed_together_with_kills_and_unblocks_is_held_by_the_client_that_gets_the_grant() {
    let server = Server::start();
    let mut random = Random::new();
    let mut a = server.client();
    let (mut delivered, mut passed_on, mut partly) = (0, 0, 0);
    for round in 0..rounds(400, 20_000) {
        let (key, db) = (format!("lock-{round}"), random.within(0..3));
        a.call(format!("SELECT {db}"));
        a.acquire(&format!("{key} A PX 600000"));
        let connect = || {
            let mut client = server.client();
            client.call(format!("SELECT {db}"));
            client
        };
        let mut c = connect();
        let mut waits: Vec<Wait> = Vec::new();
        for number in 0..random.within(1..4) {
            let mut client = connect();
            if random.once_in(2) {
                client.speak_resp3();
            }
            let has_more = random.once_in(2);
            let id = client.id();
            let ask = format!("LOCK.ACQUIRE {key} B PX 600000 BLOCK {}", random.one_of(&["0", "600000"]));
            client.send_all([&*ask, "PING"].into_iter().take(if has_more { 2 } else { 1 }));
            a.see_waiters(&key, number + 1);
            waits.push(Wait { client, id, has_more });
        }
        let number = i64::try_from(waits.len()).unwrap();
        c.ask(&format!("{key} C PX 600000 BLOCK 0"));
        a.see_waiters(&key, number + 1);

        let mut packet: Vec<Vec<String>> = Vec::new();
        let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for _ in 0..random.within(1..5) {
            let id = waits[usize::try_from(random.within(0..number)).unwrap()].id;
            packet.push(words(match random.within(0..5) {
                0 | 1 => format!("CLIENT KILL ID {id}"),
                2 => format!("CLIENT UNBLOCK {id}"),
                3 => format!("CLIENT UNBLOCK {id} ERROR"),
                _ => format!("LOCK.INFO {key}"),
            }));
        }
        let freeing = match random.within(0..6) {
            0 => vec!["DEL".to_owned(), key.clone()],
            1 => vec!["FLUSHDB".to_owned()],
            2 => {
                let script = "return redis.call('LOCK.RELEASE', KEYS[1], 'A')";
                ["EVAL", script, "1", &key].map(str::to_owned).to_vec()
            }
            _ => words(format!("LOCK.RELEASE {key} A")),
        };
        let position = random.within(0..i64::try_from(packet.len()).unwrap() + 1);
        packet.insert(usize::try_from(position).unwrap(), freeing);
        if random.once_in(3) {
            packet.insert(0, vec!["MULTI".to_owned()]);
            packet.push(vec!["EXEC".to_owned()]);
        }
        let shown = format!("{key}, {} waits: {packet:?}", waits.len());
        for reply in a.call_all(packet) {
            assert!(!matches!(reply, Reply::Error(_)), "{shown}: {reply:?}");
        }

        let ends: Vec<End> = waits.iter_mut().map(Wait::end).collect();
        let granted = ends.iter().filter(|end| matches!(end, End::Granted(_))).count();
        if granted > 0 {
            let holds = i64::try_from(granted).unwrap();
            eventually(&format!("B has as many holds as grants, {ends:?}: {shown}"), || {
                let holder = a.holder(&key);
                holder.owner == "B" && holder.holds == holds
            });
            let token = a.holder(&key).token;
            assert!(ends.iter().all(|end| !matches!(end, End::Granted(other) if *other != token)), "{shown}");
            assert_eq!(a.call(format!("LOCK.RELEASE {key} B ALL TOKEN {token}")), Reply::Int(0));
            delivered += 1;
            partly += i32::from(granted < waits.len());
        } else {
            passed_on += 1;
        }
        assert!(
            matches!(c.reply_within(DEADLINE), Ok(Reply::Array(_))),
            "C is granted the lock, {ends:?}: {shown}"
        );
        assert_eq!(a.call(format!("LOCK.RELEASE {key} C")), Reply::Int(0), "{shown}");
        assert_eq!(a.info(&key), None, "{shown}");
    }
    println!(
        "B got the grant {delivered} times ({partly} times only on some connections), and C {passed_on} times at once"
    );
    assert!(delivered > 0 && partly > 0 && passed_on > 0);
    a.see_blocked(0);
    for db in 0..3 {
        a.call(format!("SELECT {db}"));
        assert_eq!(a.call("LOCK.TOP"), Reply::Array(vec![]));
        assert_eq!(a.call("DBSIZE"), Reply::Int(0));
    }
}

/// CLIENT REPLY OFF or SKIP suppresses the reply, but not the grant.
#[test]
fn with_client_reply_off_a_waiter_is_granted_the_lock_without_a_reply() {
    for ask in [
        &["CLIENT REPLY OFF", "LOCK.ACQUIRE lock B PX 600000 BLOCK 0", "PING", "CLIENT REPLY ON"][..],
        &["CLIENT REPLY SKIP", "LOCK.ACQUIRE lock B PX 600000 BLOCK 0", "HELLO"][..],
    ] {
        let server = Server::start();
        let (mut a, mut b) = (server.client(), server.client());
        a.acquire("lock A PX 600000");
        b.send_all(ask.iter().copied());
        a.see_waiters("lock", 1);
        let mut c = server.waiter("lock C BLOCK 0");
        a.call("LOCK.RELEASE lock A");
        match b.reply() {
            Reply::Simple(on) => assert_eq!(on, "OK"),
            hello => assert_eq!(hello.field("proto"), &Reply::Int(2)),
        }
        assert_eq!(a.holder("lock").owner, "B");
        assert_eq!(b.call("LOCK.RELEASE lock B"), Reply::Int(0));
        assert_eq!(c.reply().grant().holds, 1);
    }
}

/// Lets B disconnect while the server is busy: after the grant to B, and before the server sends the reply. Returns the
/// connection of C, which waits behind B.
#[track_caller]
fn leave_while_the_server_is_busy(server: &Server, leave: fn(Client)) -> Client {
    let mut a = server.client();
    for round in 0..50 {
        let key = format!("lock-{round}");
        a.acquire(&format!("{key} A PX 600000"));
        let b = server.waiter(&format!("{key} B BLOCK 0 PX 600000"));
        let c = server.waiter(&format!("{key} C BLOCK 0 PX 600000"));
        let release = format!("LOCK.RELEASE {key} A");
        let busy = format!("busy-with-{key}");
        a.send_all(["MULTI", &release, &format!("DEBUG LOG {busy}"), "DEBUG SLEEP 0.3", "EXEC"]);
        server.see_log(&busy);
        leave(b);
        let in_time = !a.has_unread();
        for _ in 0..5 {
            a.reply();
        }
        if in_time {
            return c;
        }
    }
    panic!("B has never left while the server was busy");
}

#[test]
fn a_grant_to_a_client_that_leaves_while_the_server_is_busy_is_passed_on() {
    fn send_and_leave(mut client: Client) {
        client.send("PING");
    }
    for leave in [Client::break_off, drop, send_and_leave] {
        let server = Server::start();
        let mut c = leave_while_the_server_is_busy(&server, leave);
        assert_eq!(c.reply().grant().holds, 1);
    }
}

#[test]
fn a_client_that_sends_quit_behind_its_wait_keeps_the_lock_that_it_was_granted() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.acquire("lock A PX 600000");
    b.send_all(["LOCK.ACQUIRE lock B BLOCK 0 PX 600000", "QUIT"]);
    a.see_waiters("lock", 1);
    a.call("LOCK.RELEASE lock A");
    let grant = b.reply().grant();
    assert!(b.is_closed());
    assert_eq!(a.call("LOCK.ACQUIRE lock C BLOCK 300"), Reply::NullArray);
    assert_eq!(a.holder("lock").tenure(), ("B", 1, grant.token));
}

/// A transaction frees the lock, so that B is granted the lock. The transaction also renames or moves the lock, and
/// kills B before or after the move. The first waiter for the new name gets the lock.
#[test]
fn a_grant_to_a_client_that_has_left_is_passed_on_under_the_new_name_of_the_lock() {
    let moves: [(&[&str], &str, i64); 5] = [
        (&["RENAME lock other"], "other", 0),
        (&["RENAME lock between", "RENAME between other"], "other", 0),
        (&["MOVE lock 1"], "lock", 1),
        (&["SWAPDB 0 1"], "lock", 1),
        (&["RENAME lock other", "SWAPDB 1 0", "SWAPDB 1 2"], "other", 2),
    ];
    for (moves, name, db) in moves {
        for killed_first in [true, false] {
            let server = Server::start();
            if !moves[0].starts_with("SWAPDB") && !server.tells_of_renames() {
                continue; // on this server the module gets no event of RENAME
            }
            let mut a = server.client();
            a.acquire("lock A PX 600000");
            let mut b = server.client();
            let kill = format!("CLIENT KILL ID {}", b.id());
            b.ask("lock B PX 600000 BLOCK 0");
            a.see_waiters("lock", 1);
            let (mut there, mut d) = (server.client(), server.client());
            for client in [&mut there, &mut d] {
                client.call(format!("SELECT {db}"));
            }
            let mut transaction = vec!["MULTI", "LOCK.RELEASE lock A"];
            transaction.extend(moves);
            transaction.insert(if killed_first { 2 } else { transaction.len() }, &kill);
            transaction.push("EXEC");
            let what = transaction.join("; ");
            for reply in a.call_all(transaction) {
                assert!(!matches!(reply, Reply::Error(_)), "{what}: {reply:?}");
            }
            // D must get the lock, whether the server reads D's request in the event loop iteration of the transaction
            // or later.
            d.ask(&format!("{name} D PX 600000 BLOCK 0"));
            assert_eq!(d.reply().grant().holds, 1, "{what}");
            assert_eq!(there.owner(name).as_deref(), Some("D"), "{what}");
        }
    }
}

#[test]
fn a_grant_whose_owner_asks_again_is_kept_although_the_key_was_renamed() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let mut b = server.client();
    let kill = format!("CLIENT KILL ID {}", b.id());
    b.ask("lock B PX 600000 BLOCK 0 HOLDS 1");
    a.see_waiters("lock", 1);
    let replies =
        a.transact(["LOCK.RELEASE lock A", "RENAME lock other", &kill, "LOCK.ACQUIRE other B HOLDS 1"]);
    assert_eq!(replies[3].grant().holds, 1);
    // Each call runs in a further event loop iteration, in which the module could wrongly take B's grant back.
    for _ in 0..2 {
        assert_eq!(a.owner("other").as_deref(), Some("B"));
    }
    let mut c = server.client();
    c.ask("other C BLOCK 0");
    a.see_waiters("other", 1);
    assert_eq!(a.owner("other").as_deref(), Some("B"));
}

/// A command that changes nothing, but serves the waiters for `other` at once. Without this command, the module would
/// serve these waiters later, in the background.
const SERVE: &str = "LOCK.RELEASE other C HOLDS 0";

/// The owner B waits for "other" behind C, and then gets this lock by RENAME. So B's wait is granted as a re-entry. A
/// command for "other" in the same iteration decides on the lock first.
#[test]
fn an_owner_that_gets_a_lock_by_rename_re_enters_although_a_command_decides_on_the_lock_first() {
    for command in [SERVE, "LOCK.RENEW other B PX 600000", "LOCK.ACQUIRE other D", "LOCK.INFO other"] {
        let server = Server::start();
        let mut a = server.client();
        a.acquire("other A PX 600000");
        let token = a.acquire("lock B PX 600000").token;
        let _c = server.waiter("other C PX 600000 BLOCK 0");
        let mut b = server.waiter("other B PX 600000 BLOCK 0");
        a.transact(["RENAME lock other", command]);
        let grant = b.reply().grant();
        assert_eq!((grant.token, grant.holds), (token, 2), "{command}");
    }
}

/// Starts a wait for the key "other", and returns its connection and the command that kills this connection.
#[track_caller]
fn wait_for_other(server: &Server, request: &str) -> (Client, String) {
    let mut client = server.client();
    let kill = format!("CLIENT KILL ID {}", client.id());
    client.ask(request);
    server.client().see_waiters("other", 1);
    (client, kill)
}

#[test]
fn a_repeated_request_whose_client_has_left_ends_no_hold_of_a_renamed_lock() {
    let server = Server::start();
    if !server.tells_of_renames() {
        return; // on this server the module gets no event of RENAME
    }
    let mut a = server.client();
    let token = a.acquire("lock A PX 600000").token;
    a.acquire("other B PX 600000");
    let (_waiter, kill) = wait_for_other(&server, "other A PX 600000 BLOCK 0 HOLDS 1");
    assert_eq!(a.transact(["RENAME lock other", SERVE, &kill])[1..], [Reply::Int(0), Reply::Int(1)]);
    a.see_blocked(0);
    assert_eq!(a.holder("other").tenure(), ("A", 1, token));
}

#[test]
fn a_hold_that_was_granted_after_the_owner_repeated_another_request_is_passed_on() {
    let server = Server::start();
    if !server.tells_of_renames() {
        return; // on this server the module gets no event of RENAME
    }
    let mut a = server.client();
    a.acquire("lock B PX 600000");
    a.acquire("other B PX 600000");
    let mut first = server.waiter("lock A PX 600000 BLOCK 0 HOLDS 1");
    let (_waiter, kill) = wait_for_other(&server, "other A PX 600000 BLOCK 0");
    let repeat = "LOCK.ACQUIRE lock A PX 600000 HOLDS 1";
    let replies = a.transact(["LOCK.RELEASE lock B", repeat, "RENAME lock other", SERVE, &kill]);
    let token = replies[1].grant().token;
    assert_eq!(first.reply().grant().token, token);
    eventually("the hold of the killed client is taken back", || {
        a.holder("other").tenure() == ("A", 1, token)
    });
}
