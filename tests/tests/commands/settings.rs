//! Settings by module arguments, in redis.conf, and by CONFIG SET.

use lockward_tests::{Client, Reply, Server, Setup, eventually, repository};
use std::fs;
use std::net::TcpListener;

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
fn module_arguments_are_settings_without_the_prefix() {
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
fn settings_in_redis_conf_follow_loadmodule() {
    let server = Setup::new().config("lock.default-lease 12345").config("lock.max-waiters 3").start();
    let mut client = server.client();
    assert_eq!(setting(&mut client, "lock.default-lease"), "12345");
    assert_eq!(setting(&mut client, "lock.max-waiters"), "3");
}

#[test]
fn an_invalid_module_argument_is_refused_at_the_start() {
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
        "quarantine 10s",
        "quarantine 1e3",
        "quarantine 0x10",
        "quarantine +5",
        "quarantine 007",
        "quarantine 9223372036854775808",
        "max-waiters 5 MAX-WAITERS 5",
    ] {
        let log = Setup::new().module(arguments).start_refused();
        let name = arguments.split(' ').next().unwrap();
        assert!(log.to_lowercase().contains(name), "{arguments}:\n{log}");
    }
    let log = Setup::new().module("quarantine 5 quarantine 6").start_refused();
    assert!(log.contains("module argument 'quarantine' is given twice"), "{log}");
}

#[test]
fn a_module_argument_without_its_value_is_refused_at_the_start() {
    let log = Setup::new().module("quarantine 5 default-lease").start_refused();
    assert!(log.contains("argument"), "{log}");
}

#[test]
fn config_set_refuses_invalid_values_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    for value in [
        "-1",
        "abc",
        "",
        "1.5",
        "10s",
        "1e3",
        "1k",
        "1mb",
        "0x10",
        "+5",
        "007",
        " 5",
        "5 ",
        "9223372036854775808",
    ] {
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
        let reply = a.call(request);
        assert!(reply.error().ends_with(" command: at most 60000 (lock.max-lease)"), "{request}: {reply:?}");
    }
    assert_eq!(a.acquire("lock A PX 60000").holds, 1);
    assert_eq!(a.acquire("lock A EX 60").holds, 2);
}

#[test]
fn a_new_setting_does_not_change_leases_and_waits_that_have_begun() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut c = server.waiter("lock C PX 500000 BLOCK 0");
    assert_eq!(
        a.call("CONFIG SET lock.max-lease 5000 lock.max-waiters 0 lock.max-waiters-total 0"),
        Reply::ok()
    );
    assert!(a.holder("lock").lease_left > 100_000);
    assert_eq!(a.queue("lock"), ["B", "C"]);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    a.call("LOCK.RELEASE lock B");
    assert_eq!(c.reply().grant().holds, 1);
    assert!(a.holder("lock").lease_left > 100_000);
    assert_eq!(a.call("LOCK.ACQUIRE lock A BLOCK 0").error_word(), "MAXWAITERS");
}

#[test]
fn config_rewrite_writes_the_settings() {
    let server = Server::start();
    let mut client = server.client();
    client.call("CONFIG SET lock.default-lease 4321");
    assert_eq!(client.call("CONFIG REWRITE"), Reply::ok());
    let written = fs::read_to_string(server.dir().join("server.conf")).unwrap();
    assert!(written.contains("lock.default-lease 4321"), "{written}");
}

/// The module's lines in the server's configuration file.
fn written(server: &Server) -> Vec<String> {
    let file = fs::read_to_string(server.dir().join("server.conf")).unwrap();
    let ours = |line: &&str| line.starts_with("lock.") || line.starts_with("loadmodule ");
    file.lines().filter(ours).map(str::to_owned).collect()
}

#[test]
fn a_server_starts_with_what_config_rewrite_has_written() {
    for beside in ["", "quarantine 0 default-lease 70000 max-waiters 9"] {
        let server = Setup::new().module(beside).config("lock.max-waiters 8").start();
        let mut client = server.client();
        // CONFIG SET gives `lock.default-lease` its default value. CONFIG REWRITE must write this value too, because
        // the module argument may have a different value.
        let set = "CONFIG SET lock.default-lease 30000 lock.max-lease 3000000 lock.quarantine 1234";
        assert_eq!(client.call(set), Reply::ok());
        assert_eq!(client.call("CONFIG REWRITE"), Reply::ok());
        let before = client.call("CONFIG GET lock.*");
        let lines = written(&server);
        let mut setup = Setup::without_module();
        for line in &lines {
            setup = setup.config(line);
        }
        let again = setup.start();
        for (name, _) in DEFAULTS {
            let there = setting(&mut again.client(), name);
            assert_eq!(there, before.field(name).text(), "{name}, beside {beside:?}: {lines:?}");
        }
        assert_eq!(setting(&mut again.client(), "lock.quarantine"), "1234");
        assert_eq!(setting(&mut again.client(), "lock.max-waiters"), "8");
    }
}

#[test]
fn redis_conf_overrides_a_module_argument() {
    let server = Setup::new().module("max-waiters 5 max-lease 6000").config("lock.max-waiters 7").start();
    assert_eq!(setting(&mut server.client(), "lock.max-waiters"), "7");
    assert_eq!(setting(&mut server.client(), "lock.max-lease"), "6000");
}

#[test]
fn names_of_settings_are_case_insensitive() {
    let server = Server::start_with("Max-Waiters 5");
    let mut client = server.client();
    assert_eq!(setting(&mut client, "lock.max-waiters"), "5");
    assert_eq!(client.call("CONFIG SET LOCK.Max-Waiters 6"), Reply::ok());
    assert_eq!(setting(&mut client, "lock.max-waiters"), "6");
}

#[test]
fn config_set_of_several_settings_sets_all_or_none() {
    let server = Server::start();
    let mut client = server.client();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("lock.max-waiters 3 port {}", taken.local_addr().unwrap().port());
    for wrong in [
        "lock.max-waiters 3 lock.default-lease 0",
        "lock.default-lease 0 lock.max-waiters 3",
        "lock.max-waiters 3 lock.no-such-setting 1",
        "lock.max-waiters 3 default-lease 1",
        "lock.max-waiters 3 lock.max-waiters 4",
        // The port in `taken` is in use. The server finds this error only after it has set all settings, and must then
        // roll back the settings.
        &taken,
    ] {
        let reply = client.call(format!("CONFIG SET {wrong}"));
        assert_eq!(reply.error_word(), "ERR", "{wrong}");
        assert_eq!(setting(&mut client, "lock.max-waiters"), "10000", "{wrong}");
    }
    assert_eq!(client.call("CONFIG SET lock.max-waiters 3 lock.quarantine 5 hz 20"), Reply::ok());
    assert_eq!(setting(&mut client, "lock.max-waiters"), "3");
    assert_eq!(setting(&mut client, "lock.quarantine"), "5");
}

#[test]
fn a_quarantine_that_config_set_rolls_back_has_granted_nothing() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    let mut b = server.client();
    b.ask("lock B BLOCK 0");
    a.see_blocked(1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for _ in 0..10 {
        let reply = a.call(format!("CONFIG SET lock.quarantine 0 port {port}"));
        assert_eq!(reply.error_word(), "ERR");
    }
    // When A's lease of `other` ends, the module looks for waiters that it can serve. The quarantine still lasts,
    // because the server has rolled the setting back. So B must not get `lock`.
    a.call("LOCK.RENEW other A TOKEN 1 PX 50").int();
    let mut c = server.client();
    c.ask("other C BLOCK 300");
    assert!(c.reply().is_null());
    assert!(b.has_no_reply());
    assert_eq!(a.call("CONFIG SET lock.quarantine 0"), Reply::ok());
    assert_eq!(b.reply().grant().holds, 1);
}

#[test]
fn config_resetstat_does_not_change_settings() {
    let server = Server::start_with("max-waiters 7");
    let mut client = server.client();
    client.call("CONFIG SET lock.quarantine 5");
    assert_eq!(client.call("CONFIG RESETSTAT"), Reply::ok());
    assert_eq!(setting(&mut client, "lock.max-waiters"), "7");
    assert_eq!(setting(&mut client, "lock.quarantine"), "5");
}

#[test]
fn settings_are_not_replicated() {
    let server = Server::start_with("max-waiters 7");
    let replica = Server::start_replica_of(&server);
    assert_eq!(server.client().call("CONFIG SET lock.max-lease 5000"), Reply::ok());
    replica.see_in_sync_with(&server);
    for (name, default) in DEFAULTS {
        assert_eq!(setting(&mut replica.client(), name), default, "{name}");
    }
    assert_eq!(replica.client().call("CONFIG SET lock.max-lease 6000"), Reply::ok());
    assert_eq!(setting(&mut replica.client(), "lock.max-lease"), "6000");
}

#[test]
fn a_default_lease_above_the_maximum_is_shortened_and_logged() {
    let server = Server::start_with("default-lease 600000 quarantine 500000");
    server.see_log("lock.default-lease is 600000, but");
    let mut a = server.client();
    a.call("LOCK.RENEW lock A TOKEN 1").int();
    assert!(a.holder("lock").lease_left <= 500_000);
    assert_eq!(a.call("CONFIG SET lock.quarantine 0 lock.max-lease 400000"), Reply::ok());
    server.see_log("allows no lease above 400000");
    a.call("LOCK.RENEW lock A").int();
    assert!(a.holder("lock").lease_left <= 400_000);
    // CONFIG GET still shows the default lease that was set, and not the shortened default lease.
    assert_eq!(setting(&mut a, "lock.default-lease"), "600000");
    assert_eq!(a.call("CONFIG SET lock.max-lease 900000"), Reply::ok());
    a.call("LOCK.RENEW lock A").int();
    assert!(a.holder("lock").lease_left > 500_000);
    // One CONFIG SET logs the warning once, although it changes several settings.
    let together = "CONFIG SET lock.max-lease 3000 lock.default-lease 5000 lock.quarantine 4000";
    assert_eq!(a.call(together), Reply::ok());
    assert_eq!(a.call("CONFIG SET lock.max-waiters 5"), Reply::ok());
    assert_eq!(server.log().matches("lock.default-lease is 5000, but").count(), 1, "{}", server.log());
}

#[test]
fn the_page_on_settings_agrees_with_the_server() {
    let page = fs::read_to_string(repository().join("docs/settings.md")).unwrap();
    let server = Server::start();
    let mut client = server.client();
    let mut documented = Vec::new();
    let table = page.lines().skip_while(|line| !line.starts_with("| setting | default | range |"));
    for row in table.skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, name, default, range, ..] = cells[..] else { panic!("{row}") };
        let (name, (least, most)) = (name.trim_matches('`'), range.split_once(" to ").expect(row));
        assert_eq!(setting(&mut client, name), default, "{row}");
        let (least, most): (i64, i64) = (least.parse().unwrap(), most.parse().unwrap());
        for (number, fits) in [(least - 1, false), (least, true), (most, true), (most + 1, false)] {
            let reply = client.call(["CONFIG", "SET", name, &number.to_string()]);
            assert_eq!(reply == Reply::ok(), fits, "{name} {number}: {reply:?}");
            assert!(fits || reply.error().contains(&format!("between {least} and {most}")), "{reply:?}");
        }
        documented.push(name.to_owned());
    }
    let mut there = client.call("CONFIG GET lock.*").field_names();
    there.sort();
    documented.sort();
    assert_eq!(documented, there);
}

/// A server without the module. The module can be loaded at run time. The server's cron runs often, so that the test
/// does not take long.
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
        &["ARGS", "quarantine", "5", "quarantine", "6"],
        &["ARGS", "quarantine"],
        &["CONFIG", "lock.quarantine", "5000", "CONFIG", "lock.default-lease", "0"],
    ] {
        let (server, mut client, path) = start_empty();
        let load: Vec<&str> = ["MODULE", "LOADEX", &path].into_iter().chain(wrong.iter().copied()).collect();
        assert_eq!(client.call(load).error_word(), "ERR", "{wrong:?}");
        assert!(client.call("CONFIG GET lock.*").field_names().is_empty(), "{wrong:?}");
        assert!(client.call("LOCK.INFO lock").error().contains("unknown command"), "{wrong:?}");
        // These actions cause events: cron, a changed setting, a flush, a swap of databases, a snapshot. The refused
        // module must not be subscribed to any of these events, because its code is unloaded.
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
fn an_unknown_name_in_loadex_fails_as_for_every_module() {
    let (mut server, mut client, path) = start_empty();
    let has_lock = |client: &mut Client| client.call("INFO modules").text().contains("name=lock,");
    match client.try_call(["MODULE", "LOADEX", &path, "CONFIG", "lock.default-leese", "10000"]) {
        Ok(reply) => {
            assert_eq!(reply.error_word(), "ERR");
            assert_eq!(has_lock(&mut client), !server.has_redis(7, 2));
        }
        // After a wrong setting in LOADEX, some servers crash with every module that has a data type. So this crash is
        // not a fault of Lockward.
        Err(_) => {
            let log = server.see_crash();
            assert!(log.contains("Loadex configurations were not applied"), "{log}");
        }
    }
}

#[test]
fn loadex_takes_settings_by_name_and_as_arguments() {
    let (server, mut client, path) = start_empty();
    let load = [
        "MODULE",
        "LOADEX",
        &path,
        "CONFIG",
        "lock.max-waiters",
        "5",
        "CONFIG",
        "lock.max-lease",
        "60000",
        "ARGS",
        "max-waiters",
        "6",
        "max-waiters-total",
        "7",
    ];
    assert_eq!(client.call(load), Reply::ok());
    assert_eq!(setting(&mut client, "lock.max-waiters"), "5");
    assert_eq!(setting(&mut client, "lock.max-waiters-total"), "7");
    assert_eq!(setting(&mut client, "lock.max-lease"), "60000");
    drop(server);
}

#[test]
fn the_module_is_called_lock() {
    let server = Server::start();
    let modules = server.client().call("MODULE LIST");
    // The list may also contain built-in modules, such as `lua` in Valkey 9.
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
