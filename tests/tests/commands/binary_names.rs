//! Keys and owners of any bytes, in every command and every file.

use lockward_tests::{Client, Reply, Server, Setup, eventually, rounds};
use std::collections::BTreeSet;

/// Names in which each byte is alone, first, in the middle and last, and names with a special meaning in other
/// programs.
fn names() -> Vec<Vec<u8>> {
    let every = (0..=u8::MAX).flat_map(|byte| {
        [vec![byte], vec![byte, b'a', b'b'], vec![b'a', byte, b'b'], vec![b'a', b'b', byte]]
    });
    let odd: [&[u8]; 18] = [
        b"\r\n",
        b"\n",
        b"line\r\n+OK\r\n",
        b"%s%s%s%s%n%n%d",
        b"%",
        b"$3\r\nabc\r\n",
        b"*2",
        b"**",
        b"\xc0\x80",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        "schl\u{fc}ssel \u{9375} \u{1f512}".as_bytes(),
        b"\"'\\",
        b"{}",
        b"{a}b{",
        b"a name in the log",
    ];
    let long = [vec![0; 1_024], vec![0xff; 1_024], (0..1_024).map(|number| number as u8).collect()];
    // `*` is left out, because for the owner `*` the server creates the name of the owner.
    let all: BTreeSet<Vec<u8>> = every.chain(odd.map(<[u8]>::to_vec)).chain(long).collect();
    all.into_iter().filter(|name| name != b"*").collect()
}

/// Sends a command for each name, which is both the key and the owner.
fn all(names: &[Vec<u8>], client: &mut Client, command: &str, more: &[&str]) -> Vec<Reply> {
    let commands = names.iter().map(|name| {
        let words =
            [command.as_bytes(), name, name].into_iter().chain(more.iter().map(|word| word.as_bytes()));
        words.map(<[u8]>::to_vec).collect::<Vec<_>>()
    });
    client.call_all(commands.collect::<Vec<_>>())
}

#[track_caller]
fn see_all_held(client: &mut Client, names: &[Vec<u8>], tokens: &[i64], way: &str) {
    let infos = client.call_all(names.iter().map(|name| [b"LOCK.INFO", name.as_slice()]).collect::<Vec<_>>());
    for ((name, info), token) in names.iter().zip(infos).zip(tokens) {
        let name = name.as_slice();
        assert!(!info.is_null(), "{way}: {} is free", name.escape_ascii());
        let [holder] = info.field("holders").items() else { panic!("{way}: {info:?}") };
        assert_eq!(holder.field("owner").bytes(), name, "{way}");
        assert_eq!((holder.field("holds").int(), holder.field("token").int()), (1, *token), "{way}");
    }
}

#[test]
fn keys_and_owners_of_any_bytes_survive_every_transfer() {
    let mut server = Setup::new()
        .config("appendonly yes")
        .config("appendfsync always")
        .config("aof-use-rdb-preamble no")
        .start();
    let replica = Server::start_replica_of(&server);
    let mut client = server.client();
    let names = names();
    assert!(names.len() > 1_000);
    let grants = all(&names, &mut client, "LOCK.ACQUIRE", &["PX", "600000"]);
    let tokens: Vec<i64> = grants.iter().map(|grant| grant.grant().token).collect();
    see_all_held(&mut client, &names, &tokens, "asked");
    let renewed = all(&names, &mut client, "LOCK.RENEW", &["PX", "700000"]);
    assert!(renewed.iter().zip(&tokens).all(|(reply, token)| *reply == Reply::Int(*token)));
    replica.see_in_sync_with(&server);
    see_all_held(&mut replica.client(), &names, &tokens, "replicated");
    assert_eq!(client.call("DEBUG RELOAD"), Reply::ok());
    see_all_held(&mut client, &names, &tokens, "reloaded");
    server.kill_and_start_again();
    let mut client = server.client();
    see_all_held(&mut client, &names, &tokens, "from the AOF");
    client.call("BGREWRITEAOF");
    eventually("the AOF is rewritten", || client.stat("persistence", "aof_rewrite_in_progress") == 0);
    server.kill_and_start_again();
    let mut client = server.client();
    see_all_held(&mut client, &names, &tokens, "from the rewritten AOF");
    let dumps = client.call_all(names.iter().map(|name| [b"DUMP", name.as_slice()]).collect::<Vec<_>>());
    assert_eq!(client.call("FLUSHALL"), Reply::ok());
    let restores =
        names.iter().zip(&dumps).map(|(name, dump)| [b"RESTORE", name.as_slice(), b"0", dump.bytes()]);
    assert!(client.call_all(restores.collect::<Vec<_>>()).iter().all(|reply| *reply == Reply::ok()));
    see_all_held(&mut client, &names, &tokens, "restored");
    for reply in all(&names, &mut client, "LOCK.RELEASE", &["TOKEN", "1"]) {
        assert!(reply.error().starts_with("NOTHELD the lock is held by this owner with token "), "{reply:?}");
    }
    for reply in all(&names, &mut client, "LOCK.RELEASE", &["\r\n+OK\r\n%s%n"]) {
        assert_eq!(reply.error(), "ERR syntax error");
    }
    assert!(all(&names, &mut client, "LOCK.RELEASE", &[]).iter().all(|reply| *reply == Reply::Int(0)));
    assert_eq!(client.call("DBSIZE"), Reply::Int(0));
}

#[test]
fn owners_of_any_bytes_wait_for_keys_of_any_bytes_and_are_served() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    let one_in = rounds(5, 1);
    for name in names().into_iter().step_by(one_in) {
        let shown = name.escape_ascii();
        a.call([b"LOCK.ACQUIRE", name.as_slice(), b"A", b"PX", b"600000"]).grant();
        b.send([b"LOCK.ACQUIRE", name.as_slice(), &name, b"BLOCK", b"0"]);
        let mut top = Reply::NullArray;
        eventually("B waits", || {
            top = a.call("LOCK.TOP COUNT 1");
            !top.items().is_empty()
        });
        assert_eq!(top.items()[0].field("key"), &Reply::bulk(&name), "{shown}");
        let info = a.call([b"LOCK.INFO", name.as_slice(), b"WAITERS", b"1"]);
        assert_eq!(info.field("queue").items()[0].field("owner"), &Reply::bulk(&name), "{shown}");
        let freed = if name.len() == 1 { "DEL" } else { "UNLINK" };
        a.call([freed.as_bytes(), &name]);
        let token = b.reply().grant().token;
        let reply = a.call([b"LOCK.RELEASE", name.as_slice(), b"A"]);
        assert_eq!(
            reply.error(),
            format!("NOTHELD the lock is held by another owner with token {token}"),
            "{shown}"
        );
        assert_eq!(b.call([b"LOCK.RELEASE", name.as_slice(), &name]), Reply::Int(0), "{shown}");
    }
    // The module must not write keys and owners into the log.
    assert!(!server.log().contains("a name in the log"));
}
