//! What the server knows about the commands: keys, flags, access control, documentation.

use lockward_tests::{Reply, Server};

const NAMES: [&str; 5] = ["lock.acquire", "lock.release", "lock.renew", "lock.info", "lock.top"];

#[test]
fn each_command_tells_its_arity_flags_and_keys() {
    let server = Server::start();
    let mut client = server.client();
    let facts = [
        ("lock.acquire", -3, "write", true, 1),
        ("lock.release", -3, "write", false, 1),
        ("lock.renew", -3, "write", false, 1),
        ("lock.info", -2, "readonly", false, 1),
        ("lock.top", -1, "readonly", false, 0),
    ];
    for (name, arity, access, denied_out_of_memory, key) in facts {
        let reply = client.call(["COMMAND", "INFO", name]);
        let info = reply.items()[0].items();
        let flags: Vec<String> = info[2].items().iter().map(Reply::text).collect();
        let has = |flag: &str| flags.iter().any(|other| other == flag);
        assert_eq!(info[1], Reply::Int(arity), "{name}");
        assert!(has(access), "{name}: {flags:?}");
        assert_eq!(has("denyoom"), denied_out_of_memory, "{name}: {flags:?}");
        assert_eq!(has("admin"), name == "lock.top", "{name}: {flags:?}");
        assert_eq!((&info[3], &info[4]), (&Reply::Int(key), &Reply::Int(key)), "{name}");
    }
}

#[test]
fn each_command_that_touches_a_key_names_it() {
    let server = Server::start();
    let mut client = server.client();
    for command in [
        "LOCK.ACQUIRE lock A PX 1000 BLOCK 0",
        "LOCK.RELEASE lock A TOKEN 1",
        "LOCK.RENEW lock A",
        "LOCK.INFO lock WAITERS 1",
        "LOCK._APPLY lock changes",
        "LOCK._GATE lock",
    ] {
        let keys = client.call(format!("COMMAND GETKEYS {command}"));
        assert_eq!(keys, Reply::Array(vec![Reply::bulk("lock")]), "{command}");
    }
    assert!(client.call("COMMAND GETKEYS LOCK.TOP COUNT 1").error().contains("no key arguments"));
}

#[test]
fn each_command_is_documented() {
    let server = Server::start();
    let mut client = server.client();
    for name in NAMES {
        let docs = client.call(["COMMAND", "DOCS", name]);
        let docs = docs.field(name);
        for field in ["summary", "since", "complexity"] {
            assert!(!docs.field(field).bytes().is_empty(), "{name}: {docs:?}");
        }
    }
}

#[test]
fn a_user_reaches_only_the_locks_it_may() {
    let server = Server::start();
    let mut admin = server.client();
    assert_eq!(admin.call("ACL SETUSER writer on >secret +@all ~app:*"), Reply::ok());
    assert_eq!(admin.call("ACL SETUSER reader on >secret +@all %R~app:*"), Reply::ok());
    let (mut writer, mut reader) = (server.client(), server.client());
    assert_eq!(writer.call("AUTH writer secret"), Reply::ok());
    assert_eq!(reader.call("AUTH reader secret"), Reply::ok());
    assert_eq!(writer.acquire("app:lock A").holds, 1);
    for command in ["LOCK.ACQUIRE other A", "LOCK.RELEASE other A", "LOCK.RENEW other A", "LOCK.INFO other"] {
        assert_eq!(writer.call(command).error_word(), "NOPERM", "{command}");
    }
    assert_eq!(reader.info("app:lock").unwrap().holders[0].owner, "A");
    for command in ["LOCK.ACQUIRE app:lock A", "LOCK.RELEASE app:lock A", "LOCK.RENEW app:lock A"] {
        assert_eq!(reader.call(command).error_word(), "NOPERM", "{command}");
    }
    assert_eq!(admin.holder("app:lock").holds, 1);
    assert_eq!(admin.call("EXISTS other"), Reply::Int(0));
}

#[test]
fn the_top_is_admin_and_dangerous_where_modules_can_say_so() {
    let server = Server::start();
    if !server.has_redis(7, 2) {
        return; // before 7.2 the commands of a module are in no category
    }
    let mut admin = server.client();
    for category in ["admin", "dangerous"] {
        let rule = format!("ACL SETUSER user on >secret ~* &* +@all -@{category}");
        assert_eq!(admin.call(rule), Reply::ok());
        let mut user = server.client();
        user.call("AUTH user secret");
        assert_eq!(user.call("LOCK.TOP").error_word(), "NOPERM", "{category}");
        assert_eq!(user.call("LOCK.INFO lock"), Reply::NullArray, "{category}");
    }
}
