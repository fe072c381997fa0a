//! The replication stream: the commands that the server sends to replicas and appends to the AOF.

use lockward_tests::{Client, ReplicationStream, Reply, Sent, Server, Setup, appended_commands, eventually};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[track_caller]
fn streamed() -> (Server, ReplicationStream, Client) {
    let server = Server::start();
    let stream = ReplicationStream::attach(&server);
    let client = server.client();
    (server, stream, client)
}

fn names(commands: &[Sent]) -> Vec<String> {
    commands.iter().map(|command| String::from_utf8_lossy(&command[0]).to_uppercase()).collect()
}

#[track_caller]
fn assert_one_effect(commands: &[Sent], key: &str) {
    assert_eq!(names(commands), ["LOCK._APPLY"], "{commands:?}");
    assert_eq!(commands[0].len(), 3, "{commands:?}");
    assert_eq!(commands[0][1], key.as_bytes());
}

#[test]
fn every_grant_and_renewal_is_one_replicated_change() {
    let (_server, mut stream, mut a) = streamed();
    for command in [
        "LOCK.ACQUIRE lock A",
        "LOCK.ACQUIRE lock A PX 100000",
        "LOCK.ACQUIRE lock A HOLDS 3",
        "LOCK.RENEW lock A",
        "LOCK.RENEW lock A PX 1000",
        "LOCK.ACQUIRE other * BLOCK 0",
    ] {
        a.call(command);
        let key = if command.contains("other") { "other" } else { "lock" };
        assert_one_effect(&stream.commands(&mut a), key);
    }
}

#[test]
fn a_release_is_replicated_verbatim_when_nobody_waits() {
    let (_server, mut stream, mut a) = streamed();
    let token = a.acquire("lock A").token;
    for _ in 0..3 {
        a.acquire("lock A");
    }
    stream.commands(&mut a);
    for command in [
        "LOCK.RELEASE lock A".to_owned(),
        "LOCK.RELEASE lock A HOLDS 2".to_owned(),
        format!("LOCK.RELEASE lock A TOKEN {token}"),
        "LOCK.RELEASE lock A ALL".to_owned(),
    ] {
        a.call(command.clone());
        let words: Vec<Vec<u8>> = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        assert_eq!(stream.commands(&mut a), [words]);
    }
}

#[test]
fn a_release_that_leaves_holds_is_replicated_verbatim_although_others_wait() {
    let (server, mut a, _b) = Server::start_contended();
    a.acquire("lock A");
    let mut stream = ReplicationStream::attach(&server);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(names(&stream.commands(&mut a)).len(), 1);
}

#[test]
fn a_hand_off_is_one_replicated_change() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut stream = ReplicationStream::attach(&server);
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    assert_one_effect(&stream.commands(&mut a), "lock");
}

#[test]
fn a_hand_off_with_re_entries_is_one_replicated_change() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut again = server.waiter("lock B BLOCK 0");
    let mut stream = ReplicationStream::attach(&server);
    a.call("LOCK.RELEASE lock A");
    assert_eq!((b.reply().grant().holds, again.reply().grant().holds), (1, 2));
    assert_one_effect(&stream.commands(&mut a), "lock");
}

#[test]
fn commands_that_change_nothing_are_not_replicated() {
    let (server, mut stream, mut a) = streamed();
    a.acquire("lock A PX 600000");
    a.call("SET string value");
    stream.commands(&mut a);
    let _b = server.waiter("lock B BLOCK 0");
    for command in [
        "LOCK.ACQUIRE lock C",
        "LOCK.ACQUIRE lock C BLOCK 20",
        "LOCK.ACQUIRE lock A HOLDS 7",
        "LOCK.ACQUIRE lock A PX 0",
        "LOCK.ACQUIRE lock A HOLDS 1 PX 1000",
        "LOCK.ACQUIRE string A",
        "LOCK.ACQUIRE lock A SLOTS 4 WEIGHT 2",
        "LOCK.ACQUIRE lock C BLOCK 20 HOLDS 1 KEEP 1",
        "LOCK.RELEASE lock C",
        "LOCK.RELEASE lock C HOLDS 0",
        "LOCK.RELEASE lock A HOLDS 1",
        "LOCK.RENEW lock C",
        "LOCK.INFO lock WAITERS 10",
        "LOCK.TOP",
    ] {
        a.call(command);
        assert_eq!(stream.commands(&mut a), [[b""; 0]; 0], "{command}");
    }
}

#[test]
fn a_transaction_is_replicated_as_one() {
    let (_server, mut stream, mut a) = streamed();
    a.transact(["LOCK.ACQUIRE lock A", "SET key value", "LOCK.RELEASE lock A"]);
    let sent = names(&stream.commands(&mut a));
    assert_eq!(sent, ["MULTI", "LOCK._APPLY", "SET", "LOCK.RELEASE", "EXEC"]);
}

#[test]
fn a_deletion_is_replicated_before_the_grant_that_follows_it() {
    for (ending, name) in [("DEL lock", "DEL"), ("UNLINK lock", "UNLINK"), ("FLUSHALL", "FLUSHALL")] {
        let (server, mut a, mut b) = Server::start_contended();
        let mut stream = ReplicationStream::attach(&server);
        a.call(ending);
        b.reply().grant();
        let commands = stream.commands(&mut a);
        let sent: Vec<String> =
            names(&commands).into_iter().filter(|name| name != "MULTI" && name != "EXEC").collect();
        assert_eq!(sent, [name, "LOCK._APPLY"], "{ending}");
    }
}

#[test]
fn a_lease_that_ends_without_a_waiter_is_replicated_as_a_deletion() {
    let (_server, mut stream, mut a) = streamed();
    a.acquire("lock A PX 50");
    assert_eq!(stream.next_command()[0], b"LOCK._APPLY");
    let deletion = stream.next_command();
    assert!([b"DEL".as_slice(), b"UNLINK"].contains(&deletion[0].to_ascii_uppercase().as_slice()));
    assert_eq!(deletion[1], b"lock");
}

#[test]
fn a_lease_that_ends_with_a_waiter_is_replicated_as_the_grant() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut stream = ReplicationStream::attach(&server);
    a.call("LOCK.RENEW lock A PX 300").int();
    assert_eq!(stream.next_command()[0], b"LOCK._APPLY", "the renewal");
    b.reply().grant();
    let commands = stream.commands(&mut a);
    let sent: Vec<String> = names(&commands)
        .into_iter()
        .filter(|name| !["MULTI", "EXEC", "DEL", "UNLINK"].contains(&name.as_str()))
        .collect();
    assert_eq!(sent, ["LOCK._APPLY"], "{commands:?}");
}

#[test]
fn the_aof_gets_the_same_commands_as_replicas() {
    let server = Setup::new().config("appendonly yes").start();
    let mut stream = ReplicationStream::attach(&server);
    let mut a = server.client();
    a.acquire("lock A");
    let mut b = server.waiter("lock B BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    a.call("LOCK.RELEASE lock B");
    let streamed = stream.commands(&mut a);
    let appended = appended_commands(&server, |command| command[1].starts_with(b"end-of"));
    assert_eq!(names(&streamed), ["LOCK._APPLY", "LOCK._APPLY", "LOCK.RELEASE"]);
    assert_eq!(appended[..streamed.len()], streamed);
}

#[test]
fn a_replicated_change_from_an_ordinary_client_is_refused() {
    let (_server, mut stream, mut a) = streamed();
    a.acquire("lock A");
    let effect = stream.commands(&mut a).remove(0);
    a.call("LOCK.RELEASE lock A");
    let reply = a.call(effect.clone());
    assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
    a.call("MULTI");
    a.call(effect.clone());
    let result = a.call("EXEC");
    let refused = match &result {
        Reply::Array(items) => matches!(items[..], [Reply::Error(_)]),
        other => matches!(other, Reply::Error(_)),
    };
    assert!(refused, "{result:?}");
    let script = b"return redis.pcall('LOCK._APPLY', KEYS[1], ARGV[1])['err']";
    let reply = a.call([b"EVAL".as_slice(), script, b"1", b"lock", &effect[2]]);
    assert!(!reply.is_null(), "{reply:?}");
    assert_eq!(a.info("lock"), None);
    assert_eq!(names(&stream.commands(&mut a)), ["LOCK.RELEASE"]);
}

#[test]
fn malformed_replicated_changes_from_an_ordinary_client_are_refused() {
    let (_server, _stream, mut a) = streamed();
    a.acquire("lock A");
    let digest = a.call("DEBUG DIGEST");
    for payload in [b"".as_slice(), b"\0", b"\x01", b"\x01\xff\xff\xff", &[0xff; 4_096]] {
        let reply = a.call([b"LOCK._APPLY".as_slice(), b"lock", payload]);
        assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
    }
    assert!(matches!(a.call("LOCK._APPLY"), Reply::Error(_)));
    assert_eq!(a.call("DEBUG DIGEST"), digest);
}

/// The changes in a payload of LOCK._APPLY, as docs/design.md describes them.
#[track_caller]
fn changes(command: &Sent) -> Vec<String> {
    assert_eq!(command[0], b"LOCK._APPLY");
    let (version, mut rest) = command[2].split_first().expect("a version");
    assert_eq!(*version, 1);
    let mut changes = Vec::new();
    while let Some((tag, after)) = rest.split_first() {
        rest = after;
        if *tag == 7 {
            changes.push("all leases are over".to_owned());
            continue;
        }
        let weight = if *tag == 6 { number(&mut rest) } else { 1 };
        let token = number(&mut rest);
        changes.push(match tag {
            1 | 6 => {
                let [holds, slots, lease, wall, held_for, length] = [(); 6].map(|()| number(&mut rest));
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
                let begun = u128::from(wall - lease);
                assert!(
                    now - 20_000 < begun && begun <= now,
                    "the lease by the wall clock: {begun}, now {now}"
                );
                assert!(held_for < 20_000, "{held_for}");
                let (owner, after) = rest.split_at(usize::try_from(length).unwrap());
                rest = after;
                let owner = String::from_utf8_lossy(owner);
                let weight = if *tag == 6 { format!(" weight {weight}") } else { String::new() };
                format!("{owner} has {token}, holds {holds}, slots {slots}{weight}, lease {lease}")
            }
            2 => format!("{token} is given back"),
            3 => format!("the lease of {token} is over"),
            4 => format!("{token} holds {}", number(&mut rest)),
            other => panic!("unknown tag of a change: {other}"),
        });
    }
    changes
}

/// An unsigned LEB128 varint.
#[track_caller]
fn number(rest: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (byte, after) = rest.split_first().expect("the rest of a number");
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

#[test]
fn a_replicated_change_contains_exactly_what_has_changed() {
    let (server, mut stream, mut a) = streamed();
    let token = a.acquire("lock A PX 30000").token;
    let sent = stream.commands(&mut a);
    assert_eq!(changes(&sent[0]), [format!("A has {token}, holds 1, slots 1, lease 30000")]);
    for (command, change) in [
        ("LOCK.ACQUIRE lock A PX 1", format!("{token} holds 2")),
        ("LOCK.ACQUIRE lock A PX 100000", format!("A has {token}, holds 3, slots 1, lease 100000")),
        ("LOCK.ACQUIRE lock A HOLDS 3 PX 200000", format!("A has {token}, holds 3, slots 1, lease 200000")),
        ("LOCK.RENEW lock A PX 50000", format!("A has {token}, holds 3, slots 1, lease 50000")),
    ] {
        a.call(command);
        let sent = stream.commands(&mut a);
        assert_eq!(sent.len(), 1, "{command}: {sent:?}");
        assert_eq!(changes(&sent[0]), [change], "{command}");
    }
    let mut b = server.waiter("lock B BLOCK 0 PX 70000");
    let mut again = server.waiter("lock B BLOCK 0 PX 60000");
    let mut c = server.waiter("lock C BLOCK 0 PX 80000");
    a.call("LOCK.RELEASE lock A ALL");
    let next = b.reply().grant().token;
    assert_eq!(again.reply().grant().holds, 2);
    let handed_over = [
        format!("{token} is given back"),
        format!("B has {next}, holds 1, slots 1, lease 70000"),
        format!("{next} holds 2"),
    ];
    assert_eq!(changes(&stream.next_command()), handed_over);
    // Without a TTL on the key, only the module can end the lease.
    a.call_all(["LOCK.RENEW lock B PX 300", "PERSIST lock"]);
    let last = c.reply().grant().token;
    assert_eq!(changes(&stream.next_command()), [format!("B has {next}, holds 2, slots 1, lease 300")]);
    assert_eq!(stream.next_command(), [b"PERSIST".to_vec(), b"lock".to_vec()]);
    let ended =
        [format!("the lease of {next} is over"), format!("C has {last}, holds 1, slots 1, lease 80000")];
    assert_eq!(changes(&stream.next_command()), ended);
    assert_eq!(stream.commands(&mut a), [[b""; 0]; 0], "other commands were replicated too");
}

#[test]
fn a_restored_tenure_is_replicated_with_the_end_of_the_older_one() {
    let server = Server::start_with("quarantine 600000");
    let mut stream = ReplicationStream::attach(&server);
    let mut a = server.client();
    a.call("LOCK.RENEW lock A TOKEN 4711 PX 30000");
    assert_eq!(changes(&stream.next_command()), ["A has 4711, holds 1, slots 1, lease 30000"]);
    a.call("LOCK.RENEW lock B TOKEN 4712 HOLDS 2 PX 30000");
    let restored = ["4711 is given back", "B has 4712, holds 2, slots 1, lease 30000"];
    assert_eq!(changes(&stream.next_command()), restored);
}

// Several holders.

#[test]
fn a_limit_and_a_weight_are_replicated_with_the_tenure() {
    let (_server, mut stream, mut client) = streamed();
    let a = client.acquire("lock A SHARED PX 30000").token;
    let b = client.acquire("lock B SLOTS 5 WEIGHT 2 PX 40000").token;
    for (command, change) in [
        ("", format!("A has {a}, holds 1, slots 0, lease 30000")),
        ("", format!("B has {b}, holds 1, slots 5 weight 2, lease 40000")),
        ("LOCK.ACQUIRE lock A SHARED PX 1", format!("{a} holds 2")),
        ("LOCK.ACQUIRE lock B SHARED PX 50000", format!("B has {b}, holds 2, slots 5 weight 2, lease 50000")),
        ("LOCK.RENEW lock B SLOTS 9 PX 60000", format!("B has {b}, holds 2, slots 9 weight 2, lease 60000")),
        ("LOCK.RENEW lock B SHARED PX 70000", format!("B has {b}, holds 2, slots 0 weight 2, lease 70000")),
    ] {
        if !command.is_empty() {
            client.call(command);
        }
        assert_eq!(changes(&stream.next_command()), [change], "{command}");
    }
    for command in ["LOCK.RELEASE lock A", "LOCK.RELEASE lock A HOLDS 0", "LOCK.RELEASE lock B ALL"] {
        client.call(command);
        let words: Vec<Vec<u8>> = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        assert_eq!(stream.commands(&mut client), [words]);
    }
}

#[test]
fn a_downgrade_is_replicated_with_all_its_grants() {
    let (server, mut a, b) = Server::start_contended();
    drop(b);
    a.see_waiters("lock", 0);
    let mut c = server.waiter("lock C SHARED BLOCK 0 PX 50000");
    let mut d = server.waiter("lock D SLOTS 4 WEIGHT 2 BLOCK 0 PX 60000");
    let mut stream = ReplicationStream::attach(&server);
    let token = a.call("LOCK.RENEW lock A SHARED PX 40000").int();
    let tokens = [c.reply().grant().token, d.reply().grant().token];
    let expected = [
        format!("A has {token}, holds 1, slots 0, lease 40000"),
        format!("C has {}, holds 1, slots 0, lease 50000", tokens[0]),
        format!("D has {}, holds 1, slots 4 weight 2, lease 60000", tokens[1]),
    ];
    assert_eq!(changes(&stream.next_command()), expected);
    assert_eq!(stream.commands(&mut a), [[b""; 0]; 0], "other commands were replicated too");
}

#[test]
fn the_end_of_one_of_several_leases_is_replicated_with_the_grants() {
    let (server, _, mut a) = streamed();
    a.acquire("lock A SHARED PX 600000");
    let token = a.acquire("lock B SHARED PX 600000").token;
    let mut c = server.waiter("lock C SLOTS 2 BLOCK 0 PX 50000");
    a.call("LOCK.RENEW lock B PX 300").int();
    let mut stream = ReplicationStream::attach(&server);
    let next = c.reply().grant().token;
    let expected =
        [format!("the lease of {token} is over"), format!("C has {next}, holds 1, slots 2, lease 50000")];
    assert_eq!(changes(&stream.next_command()), expected);
    assert_eq!(stream.commands(&mut a), [[b""; 0]; 0], "other commands were replicated too");
}

#[test]
fn a_grant_after_a_waiter_has_left_is_replicated_alone() {
    for how in ["LOCK.RELEASE lock W HOLDS 0", "leaves"] {
        let (server, _, mut a) = streamed();
        a.acquire("lock A SHARED PX 600000");
        let w = server.waiter("lock W BLOCK 0 HOLDS 1");
        let mut r = server.waiter("lock R SHARED BLOCK 0 PX 50000");
        let mut stream = ReplicationStream::attach(&server);
        if how == "leaves" {
            drop(w);
        } else {
            assert_eq!(a.call(how), Reply::Int(0));
        }
        let token = r.reply().grant().token;
        let granted = format!("R has {token}, holds 1, slots 0, lease 50000");
        assert_eq!(changes(&stream.next_command()), [granted], "{how}");
        assert_eq!(stream.commands(&mut a), [[b""; 0]; 0], "other commands were replicated too");
    }
}

#[test]
fn very_many_leases_that_are_over_are_replicated_as_one_change() {
    const HOLDERS: usize = 5_000;
    const LEASE: Duration = Duration::from_secs(8);
    let server = Server::start();
    let replica = Server::start_replica_of(&server);
    let mut stream = ReplicationStream::attach(&server);
    let mut a = server.client();
    let (begun, lease) = (Instant::now(), LEASE.as_millis());
    a.call_all((0..HOLDERS).map(|number| format!("LOCK.ACQUIRE lock owner-{number} SHARED PX {lease}")));
    let granted = Instant::now();
    // Without a TTL on the key, only the module can end the leases.
    assert_eq!(a.call("PERSIST lock"), Reply::Int(1));
    let mut w = server.waiter("lock W BLOCK 0 PX 50000");
    stream.commands(&mut a);
    server.freeze();
    if begun.elapsed() >= LEASE {
        return println!("the machine is too slow: the first leases are over");
    }
    // All leases end while the server is stopped, so one decision ends them together.
    eventually("all leases are over", || granted.elapsed() > LEASE);
    server.thaw();
    let token = w.reply().grant().token;
    let expected =
        ["all leases are over".to_owned(), format!("W has {token}, holds 1, slots 1, lease 50000")];
    assert_eq!(changes(&stream.next_command()), expected);
    replica.see_in_sync_with(&server);
    assert_eq!(replica.client().holders("lock"), ["W x1 SLOTS 1 WEIGHT 1"]);
    assert_eq!(replica.client().call("DEBUG DIGEST"), a.call("DEBUG DIGEST"));
}

#[test]
fn kept_places_are_not_replicated() {
    let (server, mut stream, mut a) = streamed();
    a.acquire("lock A PX 600000");
    stream.commands(&mut a);
    drop(server.waiter("lock W BLOCK 0 HOLDS 1 KEEP 60000"));
    a.see_places_kept(1);
    assert!(a.call("LOCK.ACQUIRE lock W BLOCK 1 HOLDS 1 KEEP 60000").is_null());
    a.call("LOCK.RELEASE lock W HOLDS 0");
    assert_eq!(stream.commands(&mut a), [[b""; 0]; 0]);
}
