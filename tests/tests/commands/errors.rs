//! Errors: each has a clear text, and the command changes nothing.

use lockward_tests::{Client, Command, Reply, Server};

const SYNTAX: &str = "ERR syntax error";

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
fn an_owner_may_have_1_024_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let owner = "A".repeat(1_024);
    assert_eq!(client.acquire(&format!("lock {owner}")).holds, 1);
    assert_eq!(client.holder("lock").owner, owner);
    client.call(format!("LOCK.RENEW lock {owner}")).int();
    assert_eq!(client.call(format!("LOCK.RELEASE lock {owner}")), Reply::Int(0));
}

#[test]
fn a_key_may_be_very_long() {
    let server = Server::start();
    let mut client = server.client();
    let key = "k".repeat(1_000_000);
    assert_eq!(client.acquire(&format!("{key} A")).holds, 1);
    assert_eq!(client.call(format!("LOCK.RELEASE {key} A")), Reply::Int(0));
}

#[test]
fn arguments_are_checked_before_the_key() {
    let (_server, mut client) = stage();
    assert_refused(&mut client, "LOCK.ACQUIRE string A NX", SYNTAX);
    assert_refused(&mut client, "LOCK.ACQUIRE string A PX 0", "ERR invalid expire time");
    assert_refused(&mut client, "LOCK.RELEASE string A NX", SYNTAX);
    assert_refused(&mut client, "LOCK.INFO string NX", SYNTAX);
}

#[test]
fn an_error_is_one_line_whatever_the_client_sent() {
    let (_server, mut client) = stage();
    let option = b"PX\r\n+OK\r\n%s%n".as_slice();
    for _ in 0..3 {
        assert_refused(&mut client, [b"LOCK.ACQUIRE", b"lock".as_slice(), b"A", option, b"1"], SYNTAX);
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    }
}
