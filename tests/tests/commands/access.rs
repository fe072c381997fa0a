//! Access control: users, internal commands, renamed commands, and clients in unusual modes.

use lockward_tests::{Client, Reply, Server, Setup, eventually, repository};
use std::fs;

/// A connection that is logged in as the new user `name` with `rules`.
#[track_caller]
fn user(server: &Server, name: &str, rules: &str) -> Client {
    let mut admin = server.client();
    assert_eq!(admin.call(format!("ACL SETUSER {name} reset on >secret {rules}")), Reply::ok());
    let mut client = server.client();
    assert_eq!(client.call(format!("AUTH {name} secret")), Reply::ok());
    client
}

fn is_noperm(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("NOPERM"))
}

#[test]
fn each_acl_recipe_of_the_docs_allows_exactly_what_it_says() {
    let page = fs::read_to_string(repository().join("docs/access.md")).unwrap();
    let table = page.split("## ").find(|section| section.starts_with("Recipes")).unwrap();
    let coded = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(|code| code.replace('\u{1}', "|")).collect()
    };
    let mut recipes = 0;
    for row in table.lines().filter(|line| line.starts_with("| **")) {
        let row = row.replace("\\|", "\u{1}");
        let cells: Vec<&str> = row.split('|').collect();
        let [_, _, rule, may, may_not, _] = cells[..] else { panic!("{row}") };
        let rule = coded(rule).concat();
        for (commands, allowed) in [(coded(may), true), (coded(may_not), false)] {
            assert!(!commands.is_empty(), "{row}");
            for command in commands {
                let server = Server::start();
                let mut admin = server.client();
                admin.acquire("lock:1 w PX 600000");
                let digest = admin.call("DEBUG DIGEST");
                let mut client = user(&server, "user", &rule);
                let tried = admin.call(format!("ACL DRYRUN user {command}"));
                assert_eq!(tried == Reply::ok(), allowed, "{rule}: {command}: {tried:?}");
                let reply = client.call(&*command);
                assert_eq!(!is_noperm(&reply), allowed, "{rule}: {command}: {reply:?}");
                assert!(allowed || admin.call("DEBUG DIGEST") == digest, "{rule}: {command}");
            }
        }
        recipes += 1;
    }
    assert!(recipes >= 5, "{table}");
}

#[test]
fn lock_top_shows_locks_that_the_user_may_not_access() {
    let (server, _a, _b) = Server::start_contended();
    let mut operator = user(&server, "operator", "~other:* +lock.top +lock.info");
    let top = operator.call("LOCK.TOP");
    assert_eq!(top.items()[0].field("key"), &Reply::bulk("lock"));
    assert_eq!(top.items()[0].field("holder"), &Reply::bulk("A"));
    assert!(is_noperm(&operator.call("LOCK.INFO lock")));
}

#[test]
fn the_modules_acl_category_has_all_commands_for_clients() {
    let server = Server::start();
    let mut admin = server.client();
    let rule = "ACL SETUSER user reset on >secret ~* +@lock";
    if !server.has_redis(7, 4) {
        assert!(admin.call(rule).error().contains("Unknown command or category"));
        return;
    }
    let mut client = user(&server, "user", "~* +@lock");
    client.acquire("lock A");
    for command in ["LOCK.RENEW lock A", "LOCK.INFO lock", "LOCK.TOP", "LOCK.RELEASE lock A"] {
        assert!(!matches!(client.call(command), Reply::Error(_)), "{command}");
    }
    for command in ["LOCK._APPLY lock x", "LOCK._GATE lock", "GET lock"] {
        assert!(is_noperm(&client.call(command)), "{command}");
    }
    let mut client = user(&server, "user", "~* +@lock -@dangerous");
    client.acquire("lock A");
    assert!(is_noperm(&client.call("LOCK.TOP")));
    let mut client = user(&server, "user", "~* +@all -@lock");
    for command in
        ["LOCK.ACQUIRE lock A", "LOCK.RELEASE lock A", "LOCK.RENEW lock A", "LOCK.INFO lock", "LOCK.TOP"]
    {
        assert!(is_noperm(&client.call(command)), "{command}");
    }
}

#[test]
fn a_server_starts_with_users_whose_rules_name_the_commands_and_the_category() {
    let setup = Setup::new()
        .config("user worker on nopass ~lock:* +lock.acquire +lock.release")
        .config("user other on nopass ~lock:* -@all +lock.info");
    let setup = if Server::start().has_redis(7, 4) {
        setup.config("user third on nopass ~lock:* +@lock -lock.top")
    } else {
        setup
    };
    let server = setup.start();
    let mut client = server.client();
    client.call("AUTH worker any");
    client.acquire("lock:1 w");
    assert!(is_noperm(&client.call("LOCK.INFO lock:1")));
    if server.has_redis(7, 4) {
        client.call("AUTH third any");
        assert!(client.info("lock:1").is_some());
        assert!(is_noperm(&client.call("LOCK.TOP")));
    }
}

#[test]
fn acquiring_needs_the_category_blocking_if_modules_can_set_it() {
    let server = Server::start();
    let mut client = user(&server, "user", "~* +@all -@blocking");
    assert_eq!(is_noperm(&client.call("LOCK.ACQUIRE lock A")), server.has_redis(7, 2));
}

#[test]
fn a_refused_command_is_in_acl_log_without_the_owner() {
    let server = Server::start();
    let mut admin = server.client();
    let mut worker = user(&server, "worker", "~lock:* +lock.acquire");
    worker.acquire("lock:1 secret-owner");
    let cases = [
        ("LOCK.ACQUIRE data:1 secret-owner", "key", "data:1"),
        ("LOCK.RELEASE lock:1 secret-owner", "command", "lock.release"),
        ("LOCK.TOP", "command", "lock.top"),
    ];
    for (command, reason, object) in cases {
        assert!(is_noperm(&worker.call(command)), "{command}");
        let log = admin.call("ACL LOG 1");
        let entry = &log.items()[0];
        for (field, text) in [("reason", reason), ("object", object), ("username", "worker")] {
            assert_eq!(entry.field(field).text(), text, "{command}");
        }
        assert!(!format!("{log:?}").contains("secret-owner"), "{log:?}");
    }
    let clients = admin.call("CLIENT LIST").text();
    assert!(clients.contains("cmd=lock.top user=worker"), "{clients}");
    assert!(!clients.contains("secret-owner"), "{clients}");
    assert!(!server.log().contains("secret-owner"), "{}", server.log());
}

#[test]
fn a_user_that_is_disabled_and_disconnected_leaves_the_queue() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut worker = user(&server, "worker", "~* +lock.acquire");
    worker.acquire("other W PX 600000");
    worker.ask("lock W BLOCK 0");
    a.see_waiters("lock", 2);
    assert_eq!(a.call("ACL SETUSER worker off"), Reply::ok());
    assert_eq!(a.call("CLIENT KILL USER worker"), Reply::Int(1));
    assert!(worker.is_closed());
    eventually("the waiter has left the queue", || a.queue("lock") == ["B"]);
    assert_eq!(a.holder("other").owner, "W");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
}

const NO_FOLLOWER: &str = "ERR this command is for replicas and the AOF alone";

#[test]
fn clients_cannot_send_the_commands_of_the_replication_stream() {
    let (server, mut a, mut b) = Server::start_contended();
    let digest = a.call("DEBUG DIGEST");
    // The payload that a primary would send to its replica at the end of A's tenure.
    let end = {
        let (mut token, mut payload) = (a.holder("lock").token, vec![1, 2]);
        while token > 0x7f {
            payload.push((token & 0x7f) as u8 | 0x80);
            token >>= 7;
        }
        payload.push(token as u8);
        payload
    };
    let code = "return redis.call('LOCK._APPLY', KEYS[1], ARGV[1])";
    let library =
        format!("#!lua name=lib\nredis.register_function('apply', function(KEYS, ARGV) {code} end)");
    assert_eq!(a.call(["FUNCTION", "LOAD", &library]), Reply::bulk("lib"));
    for payload in [&end[..], b"", b"\x01", &[0xff; 100]] {
        let direct = a.call([b"LOCK._APPLY", b"lock".as_slice(), payload]);
        a.call("MULTI");
        a.call([b"LOCK._APPLY", b"lock".as_slice(), payload]);
        let queued = a.call("EXEC").items()[0].clone();
        let scripted = a.call([b"EVAL", code.as_bytes(), b"1", b"lock", payload]);
        let called = a.call([b"FCALL", b"apply".as_slice(), b"1", b"lock", payload]);
        for reply in [direct, queued, scripted, called] {
            assert!(reply.error().contains(NO_FOLLOWER), "{reply:?}");
        }
    }
    assert_eq!(a.call("LOCK._APPLY lock").error_word(), "ERR");
    assert_eq!(a.call("DEBUG DIGEST"), digest);
    assert!(b.has_no_reply());
    let replica = Server::start_replica_of(&server);
    let mut there = replica.client();
    for writable in ["yes", "no"] {
        there.call(format!("CONFIG SET replica-read-only {writable}"));
        let reply = there.call([b"LOCK._APPLY", b"lock".as_slice(), &end]);
        assert!(["ERR", "READONLY"].contains(&reply.error_word()), "{reply:?}");
    }
    assert_eq!(there.call("DEBUG DIGEST"), digest);
}

#[test]
fn the_modules_internal_commands_do_nothing_for_clients() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut stream = lockward_tests::ReplicationStream::attach(&server);
    let digest = a.call("DEBUG DIGEST");
    a.call("SET string value");
    for key in ["lock", "string", "free"] {
        assert_eq!(a.call(["LOCK._GATE", key]), Reply::ok());
        assert_eq!(a.transact([&*format!("LOCK._GATE {key}"), "PING"])[0], Reply::ok());
        assert_eq!(a.call(["EVAL", "return redis.call('LOCK._GATE', KEYS[1])", "1", key]), Reply::ok());
    }
    assert_eq!(a.call("LOCK._GATE").error_word(), "ERR");
    assert_eq!(a.call("LOCK._GATE lock 1").error_word(), "ERR");
    a.call("DEL string");
    assert_eq!(a.call("DEBUG DIGEST"), digest);
    let sent: Vec<Vec<u8>> =
        stream.commands(&mut a).into_iter().map(|mut command| command.remove(0)).collect();
    assert_eq!(sent, [b"SET".to_vec(), b"DEL".to_vec()]);
    assert!(b.has_no_reply());
}

#[test]
fn a_command_of_the_module_cannot_be_renamed_and_the_log_says_so() {
    for command in ["LOCK.ACQUIRE", "LOCK._APPLY", "LOCK._GATE"] {
        let log = Setup::new().config(&format!("rename-command {command} \"\"")).start_refused();
        assert!(log.contains("No such command in rename-command"), "{log}");
        // A command of the server cannot take the name of a module's command either.
        let log = Setup::new().config(&format!("rename-command GET {command}")).start_refused();
        assert!(log.contains(&command.to_lowercase()), "the log does not name the command: {log}");
    }
}

#[test]
fn waiting_needs_no_command_that_can_be_renamed() {
    let mut setup = Setup::new();
    for command in ["CLIENT", "DEL", "UNLINK", "EXPIRE", "PEXPIRE", "PEXPIREAT", "MULTI", "EXEC", "SELECT"] {
        setup = setup.config(&format!("rename-command {command} \"\""));
    }
    let server = setup.start();
    let mut a = server.client();
    a.acquire("lock A PX 100");
    let mut waiters = ["B", "C"].map(|owner| {
        let mut waiter = server.client();
        waiter.ask(&format!("lock {owner} PX 100 BLOCK 0"));
        waiter
    });
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().grant().holds, 1);
    }
    assert_eq!(server.client().acquire("lock D BLOCK 0").holds, 1);
}

#[test]
fn a_user_with_only_the_right_to_acquire_is_served_in_the_background() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("app:lock A PX 100");
    let mut worker = user(&server, "worker", "~app:* +lock.acquire");
    assert_eq!(worker.acquire("app:lock B BLOCK 0").holds, 1);
    for command in ["LOCK._GATE app:lock", "LOCK._APPLY app:lock x", "LOCK.RELEASE app:lock B", "LOCK.TOP"] {
        assert_eq!(worker.call(command).error_word(), "NOPERM", "{command}");
    }
    // The log has only the four commands that the user sent. If the module called its internal commands as the user,
    // the log would also have the internal commands.
    let log = a.call("ACL LOG");
    assert!(log.items().iter().all(|entry| entry.field("context").text() == "toplevel"), "{log:?}");
    assert_eq!(log.items().len(), 4, "{log:?}");
}

#[test]
fn a_replica_whose_users_may_not_call_internal_commands_replicates_and_serves() {
    let server = Server::start();
    let replica = Server::start_replica_of(&server);
    for server in [&server, &replica] {
        let rules = "ACL SETUSER default -lock._apply -lock._gate -select -multi -exec";
        assert_eq!(server.client().call(rules), Reply::ok());
    }
    let mut a = server.client();
    a.acquire("lock A PX 100");
    let token = server.client().acquire("lock B PX 600000 BLOCK 0").token;
    replica.see_in_sync_with(&server);
    assert_eq!(replica.client().holder("lock").tenure(), ("B", 1, token));
}

#[test]
fn a_user_that_is_deleted_while_it_waits_leaves_the_queue() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut worker = user(&server, "worker", "~* +@all");
    worker.ask("lock W BLOCK 0");
    a.see_waiters("lock", 2);
    let mut c = server.waiter("lock C BLOCK 0");
    assert_eq!(a.call("ACL DELUSER worker"), Reply::Int(1));
    assert!(worker.is_closed());
    eventually("the waiter has left the queue", || a.queue("lock") == ["B", "C"]);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    a.call("LOCK.RELEASE lock B");
    assert_eq!(c.reply().grant().holds, 1);
}

#[test]
fn a_user_that_loses_the_right_to_acquire_while_it_waits_is_still_served() {
    let (server, mut a, _b) = Server::start_contended();
    let mut worker = user(&server, "worker", "~lock +lock.acquire");
    worker.ask("lock W BLOCK 0");
    a.see_waiters("lock", 2);
    assert_eq!(a.call("ACL SETUSER worker -lock.acquire resetkeys"), Reply::ok());
    a.call("LOCK.RELEASE lock A");
    a.call("LOCK.RELEASE lock B");
    assert_eq!(worker.reply().grant().holds, 1);
    assert_eq!(worker.call("LOCK.ACQUIRE lock W").error_word(), "NOPERM");
}

#[test]
fn key_permissions_follow_what_a_command_does_to_the_key() {
    let server = Server::start();
    let mut admin = server.client();
    let access = [("%R~lock", [false, false, false, true]), ("%W~lock", [false; 4]), ("%RW~lock", [true; 4])];
    let commands = ["LOCK.ACQUIRE lock A", "LOCK.RENEW lock A", "LOCK.RELEASE lock A", "LOCK.INFO lock"];
    for (pattern, allowed) in access {
        let mut client = user(&server, "user", &format!("+@all {pattern}"));
        for (command, allowed) in commands.into_iter().zip(allowed) {
            let tried = admin.call(format!("ACL DRYRUN user {command}"));
            assert_eq!(tried == Reply::ok(), allowed, "{pattern} {command}: {tried:?}");
            let reply = client.call(command);
            let refused = matches!(&reply, Reply::Error(text) if text.starts_with("NOPERM"));
            assert_eq!(!refused, allowed, "{pattern} {command}: {reply:?}");
        }
    }
}

#[test]
fn the_commands_are_in_their_acl_categories_if_modules_can_set_them() {
    let server = Server::start();
    if !server.has_redis(7, 2) {
        return;
    }
    let mut client = server.client();
    for (category, expected) in [
        ("blocking", &["lock.acquire"][..]),
        ("dangerous", &["lock._apply", "lock._gate", "lock.top"]),
        ("read", &["lock.info", "lock.top"]),
        ("write", &["lock._apply", "lock._gate", "lock.acquire", "lock.guard", "lock.release", "lock.renew"]),
    ] {
        let listed = client.call(["COMMAND", "LIST", "FILTERBY", "ACLCAT", category]);
        let mut ours: Vec<String> = listed.items().iter().map(Reply::text).collect();
        ours.retain(|name| name.starts_with("lock."));
        ours.sort();
        assert_eq!(ours, expected, "{category}");
    }
}

#[test]
fn client_reply_skip_skips_the_reply_to_a_wait() {
    let (server, mut a, _b) = Server::start_contended();
    let mut c = server.client();
    c.send_all(["CLIENT REPLY SKIP", "LOCK.ACQUIRE lock C BLOCK 0", "ECHO next"]);
    a.see_waiters("lock", 2);
    a.call("LOCK.RELEASE lock A");
    a.call("LOCK.RELEASE lock B");
    assert_eq!(c.reply(), Reply::bulk("next"));
    assert_eq!(a.owner("lock").as_deref(), Some("C"));
}

#[test]
fn a_subscriber_can_acquire_locks_in_resp3_only() {
    let (server, mut a, _b) = Server::start_contended();
    let mut subscriber = server.client();
    subscriber.call("SUBSCRIBE channel");
    let reply = subscriber.call("LOCK.ACQUIRE lock C BLOCK 0");
    assert!(reply.error().contains("allowed in this context"), "{reply:?}");
    let mut subscriber = server.client3();
    subscriber.send("SUBSCRIBE channel");
    subscriber.push();
    let reply = subscriber.call("LOCK.ACQUIRE lock C BLOCK 1");
    if !reply.is_null() {
        // Valkey does not let a module block a client that is subscribed to channels.
        assert_eq!(reply.error(), "ERR this server does not let a subscriber wait");
        return;
    }
    subscriber.ask("lock C BLOCK 0");
    a.see_waiters("lock", 2);
    a.call("PUBLISH channel news");
    assert_eq!(subscriber.push().items()[2], Reply::bulk("news"));
    a.call("DEL lock");
    a.call("LOCK.RELEASE lock B");
    assert_eq!(subscriber.reply().grant().holds, 1);
}

#[test]
fn client_no_touch_and_no_evict_do_not_change_the_lock_commands() {
    let (server, mut a, mut b) = Server::start_contended();
    if !server.has_redis(7, 2) {
        return;
    }
    assert_eq!(a.call("CLIENT NO-TOUCH on"), Reply::ok());
    assert_eq!(a.call("CLIENT NO-EVICT on"), Reply::ok());
    a.acquire("lock A HOLDS 2");
    a.call("LOCK.RENEW lock A").int();
    a.call("LOCK.RELEASE lock A ALL");
    assert_eq!(b.reply().grant().holds, 1);
}
