//! Every error is clear, and has changed nothing.

use lockward_tests::{Client, Command, Reply, Server};

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// A server on which A holds `lock` twice and `string` is a string.
#[track_caller]
fn stage() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("lock A PX 600000");
    client.acquire("lock A");
    client.call("SET string value");
    (server, client)
}

#[track_caller]
fn assert_refused(client: &mut Client, command: impl Command, error: &str) {
    let shown = command.arguments().iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>();
    let digest = client.call("DEBUG DIGEST");
    let reply = client.call(command.arguments());
    let Reply::Error(text) = &reply else { panic!("{shown:?}: {reply:?}") };
    assert!(text.starts_with(error), "{shown:?}: {reply:?}");
    assert_eq!(client.call("DEBUG DIGEST"), digest, "{shown:?} has changed something");
    let holder = client.holder("lock");
    assert_eq!((holder.owner.as_str(), holder.holds), ("A", 2), "{shown:?}");
    assert!(holder.lease_left > 100_000, "{shown:?} has changed the lease");
}

#[test]
fn a_wrong_number_of_arguments_is_an_error() {
    let (_server, mut client) = stage();
    let commands = [
        ("acquire", ["", "lock"].as_slice()),
        ("release", &["", "lock"]),
        ("renew", &["", "lock"]),
        ("info", &[""]),
    ];
    for (name, arguments) in commands {
        for arguments in arguments {
            let error = format!("ERR wrong number of arguments for 'lock.{name}' command");
            assert_refused(&mut client, format!("LOCK.{} {arguments}", name.to_uppercase()), &error);
        }
    }
}

#[test]
fn a_key_of_another_type_is_an_error() {
    let (_server, mut client) = stage();
    let error = "WRONGTYPE Operation against a key holding the wrong kind of value";
    for command in [
        "LOCK.ACQUIRE string A",
        "LOCK.ACQUIRE string A BLOCK 0",
        "LOCK.ACQUIRE string *",
        "LOCK.RELEASE string A",
        "LOCK.RELEASE string A HOLDS 0",
        "LOCK.RENEW string A",
        "LOCK.INFO string",
    ] {
        assert_refused(&mut client, command, error);
    }
    assert_eq!(client.call("GET string"), Reply::bulk("value"));
}

#[test]
fn an_option_that_is_unknown_double_contradictory_or_without_its_value_is_an_error() {
    let (_server, mut client) = stage();
    for command in [
        "LOCK.ACQUIRE lock A NX",
        "LOCK.ACQUIRE lock A 1000",
        "LOCK.ACQUIRE lock A PX",
        "LOCK.ACQUIRE lock A EX",
        "LOCK.ACQUIRE lock A BLOCK",
        "LOCK.ACQUIRE lock A HOLDS",
        "LOCK.ACQUIRE lock A SLOTS",
        "LOCK.ACQUIRE lock A PX 1000 PX 1000",
        "LOCK.ACQUIRE lock A PX 1000 EX 1",
        "LOCK.ACQUIRE lock A EX 1 EX 1",
        "LOCK.ACQUIRE lock A BLOCK 1 BLOCK 1",
        "LOCK.ACQUIRE lock A HOLDS 3 HOLDS 3",
        "LOCK.ACQUIRE lock A SLOTS 1 SLOTS 1",
        "LOCK.ACQUIRE lock A SHARED SHARED",
        "LOCK.ACQUIRE lock A SHARED SLOTS 1",
        "LOCK.ACQUIRE lock A SLOTS 1 SHARED",
        "LOCK.ACQUIRE lock A TOKEN 1",
        "LOCK.ACQUIRE lock A ALL",
        "LOCK.RELEASE lock A 1",
        "LOCK.RELEASE lock A HOLDS",
        "LOCK.RELEASE lock A TOKEN",
        "LOCK.RELEASE lock A HOLDS 1 HOLDS 1",
        "LOCK.RELEASE lock A ALL ALL",
        "LOCK.RELEASE lock A ALL HOLDS 1",
        "LOCK.RELEASE lock A HOLDS 1 ALL",
        "LOCK.RELEASE lock A TOKEN 1 TOKEN 1",
        "LOCK.RELEASE lock A PX 1000",
        "LOCK.RELEASE lock A BLOCK 0",
        "LOCK.RENEW lock A 1000",
        "LOCK.RENEW lock A PX",
        "LOCK.RENEW lock A EX",
        "LOCK.RENEW lock A TOKEN",
        "LOCK.RENEW lock A HOLDS",
        "LOCK.RENEW lock A PX 1000 EX 1",
        "LOCK.RENEW lock A PX 1000 PX 1000",
        "LOCK.RENEW lock A TOKEN 1 TOKEN 1",
        "LOCK.RENEW lock A HOLDS 1 HOLDS 1",
        "LOCK.RENEW lock A ALL",
        "LOCK.RENEW lock A BLOCK 0",
        "LOCK.INFO lock 5",
        "LOCK.INFO lock WAITERS",
        "LOCK.INFO lock WAITERS 1 WAITERS 1",
        "LOCK.INFO lock COUNT 1",
        "LOCK.TOP 5",
        "LOCK.TOP COUNT",
        "LOCK.TOP COUNT 1 COUNT 1",
        "LOCK.TOP WAITERS 1",
    ] {
        assert_refused(&mut client, command, SYNTAX);
    }
}

/// What is no integer to a server.
const NO_INTEGERS: [&str; 12] = [
    "",
    " ",
    "abc",
    "1.5",
    " 1",
    "1 ",
    "+1",
    "1e3",
    "0x10",
    "1\0",
    "9223372036854775808",
    "-9223372036854775809",
];

#[test]
fn a_number_that_is_no_integer_is_an_error() {
    let (_server, mut client) = stage();
    let options = [
        ("LOCK.ACQUIRE", "PX"),
        ("LOCK.ACQUIRE", "EX"),
        ("LOCK.ACQUIRE", "HOLDS"),
        ("LOCK.ACQUIRE", "SLOTS"),
        ("LOCK.RELEASE", "HOLDS"),
        ("LOCK.RELEASE", "TOKEN"),
        ("LOCK.RENEW", "PX"),
        ("LOCK.RENEW", "EX"),
        ("LOCK.RENEW", "TOKEN"),
        ("LOCK.RENEW", "HOLDS"),
    ];
    let digits = "9".repeat(400);
    for (name, option) in options {
        for value in NO_INTEGERS.into_iter().chain([digits.as_str()]) {
            assert_refused(&mut client, [name, "lock", "A", option, value], NOT_AN_INTEGER);
        }
    }
    for value in NO_INTEGERS {
        assert_refused(&mut client, ["LOCK.INFO", "lock", "WAITERS", value], NOT_AN_INTEGER);
        assert_refused(&mut client, ["LOCK.TOP", "COUNT", value], NOT_AN_INTEGER);
    }
}

#[test]
fn a_lease_out_of_range_is_an_error() {
    let (_server, mut client) = stage();
    for (name, command) in [("LOCK.ACQUIRE", "lock.acquire"), ("LOCK.RENEW", "lock.renew")] {
        let error = format!("ERR invalid expire time in '{command}' command");
        for lease in ["0", "-1", "-9223372036854775808", "9223372036854775807", "315360000001"] {
            assert_refused(&mut client, [name, "lock", "A", "PX", lease], &error);
        }
        for lease in ["0", "-1", "315360001", "9223372036854775", "9223372036854776", "9223372036854775807"] {
            assert_refused(&mut client, [name, "lock", "A", "EX", lease], &error);
        }
    }
}

#[test]
fn a_wait_limit_out_of_range_is_an_error() {
    let (_server, mut client) = stage();
    for value in NO_INTEGERS {
        let error = "ERR timeout is not an integer or out of range";
        assert_refused(&mut client, ["LOCK.ACQUIRE", "lock", "A", "BLOCK", value], error);
    }
    for value in ["-1", "-9223372036854775808"] {
        let command = ["LOCK.ACQUIRE", "lock", "B", "BLOCK", value];
        assert_refused(&mut client, command, "ERR timeout is negative");
    }
    let command = ["LOCK.ACQUIRE", "lock", "B", "BLOCK", "9223372036854775807"];
    assert_refused(&mut client, command, "ERR timeout is");
}

#[test]
fn a_count_out_of_range_is_an_error() {
    let (_server, mut client) = stage();
    for command in [
        "LOCK.ACQUIRE lock A HOLDS 0",
        "LOCK.ACQUIRE lock A HOLDS -1",
        "LOCK.ACQUIRE lock A HOLDS 4294967296",
        "LOCK.ACQUIRE lock A HOLDS 9223372036854775807",
        "LOCK.ACQUIRE lock A HOLDS -9223372036854775808",
        "LOCK.ACQUIRE lock A SLOTS 0",
        "LOCK.ACQUIRE lock A SLOTS -1",
        "LOCK.ACQUIRE lock A SLOTS 1000001",
        "LOCK.ACQUIRE lock A SLOTS 4294967297",
        "LOCK.RELEASE lock A HOLDS -1",
        "LOCK.RELEASE lock A HOLDS 4294967296",
        "LOCK.RELEASE lock A HOLDS 9223372036854775807",
        "LOCK.RENEW lock A HOLDS 0",
        "LOCK.RENEW lock A HOLDS -1",
        "LOCK.RENEW lock A HOLDS 4294967296",
        "LOCK.INFO lock WAITERS -1",
        "LOCK.TOP COUNT -1",
    ] {
        assert_refused(&mut client, command, "ERR ");
    }
}

#[test]
fn a_token_that_there_cannot_be_is_an_error() {
    let (_server, mut client) = stage();
    for token in ["0", "-1", "9007199254740992", "9223372036854775807", "-9223372036854775808"] {
        assert_refused(&mut client, ["LOCK.RELEASE", "lock", "A", "TOKEN", token], "");
        assert_refused(&mut client, ["LOCK.RENEW", "lock", "A", "TOKEN", token], "");
    }
}

#[test]
fn an_owner_without_a_byte_or_with_too_many_is_an_error() {
    let (_server, mut client) = stage();
    for owner in [String::new(), "A".repeat(1_025), "A".repeat(1_000_000)] {
        for name in ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RENEW"] {
            for key in ["lock", "free"] {
                assert_refused(&mut client, [name, key, &owner], "ERR ");
            }
        }
    }
    assert_eq!(client.call("EXISTS free"), Reply::Int(0));
}

#[test]
fn an_owner_of_1_024_bytes_is_fine() {
    let server = Server::start();
    let mut client = server.client();
    let owner = "A".repeat(1_024);
    assert_eq!(client.acquire(&format!("lock {owner}")).holds, 1);
    assert_eq!(client.holder("lock").owner, owner);
    client.call(format!("LOCK.RENEW lock {owner}")).int();
    assert_eq!(client.call(format!("LOCK.RELEASE lock {owner}")), Reply::Int(0));
}

#[test]
fn keys_and_owners_are_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let every: Vec<u8> = (0..=255).collect();
    let names = [
        b"a\0b".as_slice(),
        b"\0",
        b"line\r\nline",
        b"%s%s%s%n%n%d",
        b"\xff\xfe\xc0\x80",
        "schlüssel 鍵".as_bytes(),
        b" ",
        b"*2",
        &every,
    ];
    for key in names.into_iter().chain([b"".as_slice()]) {
        for owner in names {
            let token = client.call([b"LOCK.ACQUIRE", key, owner]).grant().token;
            assert_eq!(client.call([b"LOCK.ACQUIRE", key, b"other"]), Reply::NullArray);
            assert_eq!(client.call([b"LOCK.RENEW", key, owner]), Reply::Int(token));
            let info = client.call([b"LOCK.INFO", key]);
            assert_eq!(info.field("holders").items()[0].field("owner"), &Reply::bulk(owner));
            assert_eq!(client.call([b"LOCK.RELEASE", key, b"other"]).error_word(), "NOTHELD");
            assert_eq!(client.call([b"LOCK.RELEASE", key, owner]), Reply::Int(0));
        }
    }
    assert_eq!(client.call("DBSIZE"), Reply::Int(0));
}

#[test]
fn keys_and_owners_of_any_bytes_wait_and_are_told() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    let (key, owner) = (b"%s\0\r\n\xff".as_slice(), b"\xff%n\r\n\0".as_slice());
    a.call([b"LOCK.ACQUIRE", key, b"A"]).grant();
    b.send([b"LOCK.ACQUIRE", key, owner, b"BLOCK", b"0"]);
    a.see_blocked(1);
    let info = a.call([b"LOCK.INFO", key, b"WAITERS", b"1"]);
    assert_eq!(info.field("queue").items()[0].field("owner"), &Reply::bulk(owner));
    assert_eq!(a.call("LOCK.TOP").items()[0].field("key"), &Reply::bulk(key));
    a.call([b"DEL", key]);
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn a_very_long_key_is_fine() {
    let server = Server::start();
    let mut client = server.client();
    let key = "k".repeat(1_000_000);
    assert_eq!(client.acquire(&format!("{key} A")).holds, 1);
    assert_eq!(client.call(format!("LOCK.RELEASE {key} A")), Reply::Int(0));
}

#[test]
fn arguments_are_judged_before_the_key() {
    let (_server, mut client) = stage();
    assert_refused(&mut client, "LOCK.ACQUIRE string A NX", SYNTAX);
    assert_refused(&mut client, "LOCK.ACQUIRE string A PX 0", "ERR invalid expire time");
    assert_refused(&mut client, "LOCK.RELEASE string A NX", SYNTAX);
    assert_refused(&mut client, "LOCK.INFO string NX", SYNTAX);
}

#[test]
fn an_error_is_one_line_whatever_was_sent() {
    let (_server, mut client) = stage();
    let option = b"PX\r\n+OK\r\n%s%n".as_slice();
    for _ in 0..3 {
        assert_refused(&mut client, [b"LOCK.ACQUIRE", b"lock".as_slice(), b"A", option, b"1"], SYNTAX);
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    }
}
