//! Tests of the test library itself, with servers without the module.

use lockward_tests::{Client, ReplicationStream, Reply, Server, Setup, Silence, decode};
use std::time::Duration;

fn start() -> Server {
    Setup::without_module().start()
}

#[test]
fn the_client_distinguishes_replies_as_on_the_wire() {
    let server = start();
    let mut client = server.client();
    assert_eq!(client.call("SET key value"), Reply::ok());
    assert_eq!(client.call("GET key"), Reply::bulk("value"));
    assert_eq!(client.call("GET none"), Reply::NullBulk);
    assert_eq!(client.call("BLPOP none 0.001"), Reply::NullArray);
    assert_eq!(client.call("INCR key").error_word(), "ERR");
    assert_eq!(client.call("STRLEN key"), Reply::Int(5));
    assert_eq!(client.call("CONFIG GET maxmemory").field("maxmemory"), &Reply::bulk("0"));
    client.speak_resp3();
    assert_eq!(client.call("GET none"), Reply::Null);
    assert!(matches!(client.call("CONFIG GET maxmemory"), Reply::Map(_)));
    assert_eq!(client.call("DEBUG PROTOCOL TRUE"), Reply::Bool(true));
    assert!(matches!(client.call("DEBUG PROTOCOL DOUBLE"), Reply::Double(_)));
    assert!(matches!(client.call("DEBUG PROTOCOL SET"), Reply::Set(_)));
    assert!(matches!(client.call("DEBUG PROTOCOL VERBATIM"), Reply::Verbatim(_)));
}

#[test]
fn pushes_are_kept_apart_from_replies() {
    let server = start();
    let mut client = server.client3();
    assert_eq!(client.call("CLIENT TRACKING ON"), Reply::ok());
    client.call("GET key");
    assert_eq!(client.call("SET key value"), Reply::ok());
    assert_eq!(client.push().items()[0], Reply::bulk("invalidate"));
}

#[test]
fn arguments_may_hold_any_bytes() {
    let server = start();
    let mut client = server.client();
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(client.call([b"SET".as_slice(), b"key", &bytes]), Reply::ok());
    assert_eq!(client.call("GET key"), Reply::Bulk(bytes));
}

#[test]
fn pipelined_replies_come_in_order() {
    let server = start();
    let mut client = server.client();
    client.send_all((0..1000).map(|number| format!("ECHO {number}")));
    for number in 0..1000 {
        assert_eq!(client.reply(), Reply::bulk(number.to_string()));
    }
}

#[test]
fn a_blocked_client_has_no_reply_until_it_is_served() {
    let server = start();
    let (mut waiting, mut other) = (server.client(), server.client());
    waiting.send("BLPOP list 0");
    other.see_blocked(1);
    assert!(waiting.has_no_reply());
    other.call("RPUSH list item");
    assert_eq!(waiting.reply(), Reply::Array(vec![Reply::bulk("list"), Reply::bulk("item")]));
}

#[test]
fn the_server_notices_a_closed_or_broken_connection() {
    let server = start();
    let mut observer = server.client();
    let leave: [fn(Client); 2] = [Client::break_off, drop];
    for leave in leave {
        let mut client = server.client();
        client.send("BLPOP list 0");
        observer.see_blocked(1);
        leave(client);
        observer.see_blocked(0);
    }
}

#[test]
fn the_client_distinguishes_a_closed_connection_from_a_missing_reply() {
    let server = start();
    let (mut client, mut other) = (server.client(), server.client());
    assert_eq!(client.reply_within(Duration::from_millis(1)), Err(Silence::StillOpen));
    let id = client.id();
    assert_eq!(other.call(format!("CLIENT KILL ID {id}")), Reply::Int(1));
    assert!(client.is_closed());
}

#[test]
fn a_stream_shows_the_commands_after_a_full_resync_with_and_without_a_disk() {
    let server = start();
    let mut client = server.client();
    client.call("SET before 1");
    for diskless in ["yes", "no"] {
        client.call(format!("CONFIG SET repl-diskless-sync {diskless}"));
        let mut stream = ReplicationStream::attach(&server);
        client.call("SET key value PX 100000");
        client.call("GET key");
        client.call("DEL key");
        let commands = stream.commands(&mut client);
        assert_eq!(commands.len(), 2, "{commands:?}");
        assert_eq!(commands[1], [b"DEL", b"key"]);
        assert!(stream.commands(&mut client).is_empty());
    }
}

#[test]
fn a_replica_follows_its_primary_after_the_primary_was_frozen() {
    let primary = start();
    let replica = Setup::without_module().start_replica_of(&primary);
    primary.freeze();
    primary.thaw();
    primary.client().call("SET key value");
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().call("GET key"), Reply::bulk("value"));
}

#[test]
fn a_killed_server_starts_again_with_its_aof() {
    let mut server = Setup::without_module().config("appendonly yes").config("appendfsync always").start();
    server.client().call("SET key value");
    let commands =
        lockward_tests::appended_commands(&server, |command| command[0].eq_ignore_ascii_case(b"SET"));
    assert_eq!(commands, [[b"SET".to_vec(), b"key".to_vec(), b"value".to_vec()]]);
    server.kill_and_start_again();
    assert_eq!(server.client().call("GET key"), Reply::bulk("value"));
    assert!(server.terminate().success());
}

#[test]
fn a_server_that_refuses_its_configuration_is_reported_with_its_log() {
    let log = Setup::without_module().config("no-such-setting 1").start_refused();
    assert!(log.contains("no-such-setting"), "{log}");
}

#[test]
fn a_server_that_crashes_fails_its_test() {
    let outcome = std::panic::catch_unwind(|| {
        let server = start();
        let mut client = server.client();
        client.send("DEBUG SEGFAULT");
        assert!(client.is_closed());
    });
    let message = *outcome.expect_err("a failure").downcast::<String>().expect("a message");
    assert!(message.contains("the server has ended"), "{message}");
}

#[test]
fn replies_of_both_protocols_are_decoded_when_they_are_complete() {
    let bulk = |text: &str| Reply::bulk(text);
    let simple = |text: &str| Reply::Simple(text.into());
    let table = [
        (&b"+OK\r\n"[..], Reply::ok()),
        (b"-NOTHELD it is free\r\n", Reply::Error("NOTHELD it is free".into())),
        (b"!5\r\nERR x\r\n", Reply::Error("ERR x".into())),
        (b":-12\r\n", Reply::Int(-12)),
        (b",1.5\r\n", Reply::Double(1.5)),
        (b"#t\r\n", Reply::Bool(true)),
        (b"_\r\n", Reply::Null),
        (b"$-1\r\n", Reply::NullBulk),
        (b"*-1\r\n", Reply::NullArray),
        (b"$4\r\na\r\nb\r\n", bulk("a\r\nb")),
        (b"=5\r\ntxt:a\r\n", Reply::Verbatim(b"txt:a".to_vec())),
        (b"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", Reply::Array(vec![Reply::Int(1), Reply::Array(vec![bulk("x")])])),
        (b"%1\r\n+a\r\n:1\r\n", Reply::Map(vec![(simple("a"), Reply::Int(1))])),
        (b">2\r\n+message\r\n$0\r\n\r\n", Reply::Push(vec![simple("message"), bulk("")])),
        (b"|1\r\n+ttl\r\n:3\r\n+OK\r\n", Reply::ok()),
    ];
    for (bytes, reply) in table {
        assert_eq!(decode(bytes), Ok(Some((reply, bytes.len()))), "{}", bytes.escape_ascii());
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), Ok(None), "{length} bytes of {}", bytes.escape_ascii());
        }
    }
}

#[test]
fn bytes_that_are_no_reply_are_refused() {
    let deep = b"*1\r\n".repeat(50);
    for bytes in [&b"hello\r\n"[..], b":12x\r\n", b"$2\r\nabc\r\n", b"*-2\r\n", b"+OK\n", b"\r\n", &deep] {
        assert!(decode(bytes).is_err(), "{}", bytes.escape_ascii());
    }
}
