//! Settings: module arguments, redis.conf, CONFIG SET and GET.

use lockward_tests::{Client, Reply, Server, Setup, eventually};
use std::fs;

const DEFAULTS: [(&str, &str); 5] = [
    ("lock.default-lease", "30000"),
    ("lock.max-lease", "315360000000"),
    ("lock.max-waiters", "10000"),
    ("lock.max-waiters-total", "10000"),
    ("lock.quarantine", "0"),
];

#[track_caller]
fn setting(client: &mut Client, name: &str) -> String {
    client.call(["CONFIG", "GET", name]).field(name).text()
}

#[test]
fn every_setting_has_its_default() {
    let server = Server::start();
    let mut client = server.client();
    for (name, value) in DEFAULTS {
        assert_eq!(setting(&mut client, name), value, "{name}");
    }
    let mut names = client.call("CONFIG GET lock.*").field_names();
    names.sort();
    assert_eq!(names, DEFAULTS.map(|(name, _)| name));
}

#[test]
fn module_arguments_set_them_by_their_bare_names() {
    let server = Server::start_with(
        "quarantine 60000 default-lease 10000 max-lease 50000 max-waiters 7 max-waiters-total 70",
    );
    let mut client = server.client();
    let values = [
        ("default-lease", "10000"),
        ("max-lease", "50000"),
        ("max-waiters", "7"),
        ("max-waiters-total", "70"),
        ("quarantine", "60000"),
    ];
    for (name, value) in values {
        assert_eq!(setting(&mut client, &format!("lock.{name}")), value, "{name}");
    }
}

#[test]
fn redis_conf_sets_them_after_loadmodule() {
    let server = Setup::new().config("lock.default-lease 12345").config("lock.max-waiters 3").start();
    let mut client = server.client();
    assert_eq!(setting(&mut client, "lock.default-lease"), "12345");
    assert_eq!(setting(&mut client, "lock.max-waiters"), "3");
}

#[test]
fn a_module_argument_that_cannot_be_is_refused_at_the_start() {
    for arguments in [
        "no-such-setting 1",
        "default-lease 0",
        "default-lease -1",
        "default-lease abc",
        "default-lease 1.5",
        "default-lease 99999999999999999999",
        "quarantine -1",
        "max-lease 0",
        "max-waiters -1",
        "lock.quarantine 5",
    ] {
        let log = Setup::new().module(arguments).start_refused();
        let name = arguments.split(' ').next().unwrap();
        assert!(log.contains(name), "{arguments}:\n{log}");
    }
}

#[test]
fn a_module_argument_without_its_value_is_refused_at_the_start() {
    let log = Setup::new().module("quarantine 5 default-lease").start_refused();
    assert!(log.contains("argument"), "{log}");
}

#[test]
fn config_set_refuses_what_cannot_be_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    for value in ["-1", "abc", "", "1.5", "99999999999999999999"] {
        for (name, default) in DEFAULTS {
            let reply = client.call(["CONFIG", "SET", name, value]);
            assert_eq!(reply.error_word(), "ERR", "{name} {value:?}");
            assert_eq!(setting(&mut client, name), default, "{name} {value:?}");
        }
    }
    for name in ["lock.default-lease", "lock.max-lease"] {
        assert_eq!(client.call(["CONFIG", "SET", name, "0"]).error_word(), "ERR", "{name}");
    }
}

#[test]
fn the_default_lease_can_be_set_at_any_time() {
    let server = Server::start();
    let mut a = server.client();
    assert_eq!(a.call("CONFIG SET lock.default-lease 600000"), Reply::ok());
    a.acquire("lock A");
    assert!(a.holder("lock").lease_left > 100_000);
    assert_eq!(a.call("CONFIG SET lock.default-lease 20000"), Reply::ok());
    a.call("LOCK.RENEW lock A").int();
    assert!(a.holder("lock").lease_left <= 20_000);
}

#[test]
fn a_lease_longer_than_the_longest_is_an_error() {
    let server = Server::start();
    let mut a = server.client();
    assert_eq!(a.call("CONFIG SET lock.max-lease 60000"), Reply::ok());
    for request in ["LOCK.ACQUIRE lock A PX 60001", "LOCK.ACQUIRE lock A EX 61", "LOCK.RENEW lock A PX 60001"]
    {
        assert!(a.call(request).error().starts_with("ERR invalid expire time"), "{request}");
    }
    assert_eq!(a.acquire("lock A PX 60000").holds, 1);
    assert_eq!(a.acquire("lock A EX 60").holds, 2);
}

#[test]
fn a_rewritten_redis_conf_keeps_them() {
    let server = Server::start();
    let mut client = server.client();
    client.call("CONFIG SET lock.default-lease 4321");
    assert_eq!(client.call("CONFIG REWRITE"), Reply::ok());
    let written = fs::read_to_string(server.dir().join("server.conf")).unwrap();
    assert!(written.contains("lock.default-lease 4321"), "{written}");
}

/// A server without the module, into which it can be loaded, whose housekeeping is seen by its clients.
#[track_caller]
fn start_empty() -> (Server, Client, String) {
    let setup = Setup::without_module().config("enable-module-command yes").config("hz 100");
    let server = setup.start();
    let client = server.client();
    (server, client, Setup::new().module_path())
}

#[test]
fn a_server_goes_on_when_a_load_is_refused() {
    for wrong in [
        &["ARGS", "no-such-setting", "1"][..],
        &["ARGS", "quarantine", "-1"],
        &["ARGS", "quarantine"],
        &["CONFIG", "lock.quarantine", "5000", "CONFIG", "lock.default-lease", "0"],
    ] {
        let (server, mut client, path) = start_empty();
        let load: Vec<&str> = ["MODULE", "LOADEX", &path].into_iter().chain(wrong.iter().copied()).collect();
        assert_eq!(client.call(load).error_word(), "ERR", "{wrong:?}");
        assert!(client.call("CONFIG GET lock.*").field_names().is_empty(), "{wrong:?}");
        assert!(client.call("LOCK.INFO lock").error().contains("unknown command"), "{wrong:?}");
        // What the server would tell the module of: its housekeeping, a change of a setting, a flush, a snapshot.
        let clock = client.stat("server", "lru_clock");
        client.call("SET key value");
        for command in ["CONFIG SET maxmemory-policy allkeys-lru", "FLUSHALL", "SWAPDB 0 1", "SAVE"] {
            assert_eq!(client.call(command), Reply::ok(), "{command}");
        }
        eventually("housekeeping", || client.stat("server", "lru_clock") != clock);
        assert_eq!(client.call("CONFIG SET maxmemory-policy noeviction"), Reply::ok());
        assert_eq!(client.call(["MODULE", "LOAD", &path, "quarantine", "0"]), Reply::ok(), "{wrong:?}");
        client.acquire("lock A PX 600000");
        let mut b = server.waiter("lock B BLOCK 0");
        client.call("LOCK.RELEASE lock A");
        assert_eq!(b.reply().grant().holds, 1, "{wrong:?}");
    }
}

#[test]
fn the_module_is_called_lock() {
    let server = Server::start();
    let modules = server.client().call("MODULE LIST");
    // A server may have modules of its own (Valkey 9: lua).
    let names: Vec<String> = modules.items().iter().map(|module| module.field("name").text()).collect();
    assert!(names.contains(&"lock".to_owned()), "{names:?}");
}

#[test]
fn the_module_can_be_loaded_into_a_running_server() {
    let path = Setup::new().module_path();
    let server = Setup::without_module().config("enable-module-command yes").start();
    let mut a = server.client();
    assert_eq!(a.call(["MODULE", "LOAD", &path, "default-lease", "600000"]), Reply::ok());
    a.acquire("lock A");
    assert!(a.holder("lock").lease_left > 100_000);
    let mut b = server.waiter("lock B BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
}
