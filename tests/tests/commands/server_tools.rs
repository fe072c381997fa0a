//! The lock commands in the server's own tools: SLOWLOG, LATENCY, INFO, MONITOR, CLIENT LIST and redis-cli.

use lockward_tests::{Client, Reply, Server, Setup, eventually};
use std::process::Command;

/// The module's commands in SLOWLOG, with their arguments.
fn slow(client: &mut Client) -> Vec<String> {
    let log = client.call("SLOWLOG GET 1000");
    let words =
        |entry: &Reply| entry.items()[3].items().iter().map(Reply::text).collect::<Vec<_>>().join(" ");
    let mut ours: Vec<String> = log.items().iter().map(words).collect();
    ours.retain(|entry| entry.starts_with("LOCK."));
    ours.reverse();
    ours
}

/// A counter of a command in INFO commandstats, such as `calls` or `failed_calls`.
fn counted(client: &mut Client, command: &str, counter: &str) -> i64 {
    let line = client.server_info("commandstats", &format!("cmdstat_{command}"));
    let found = line.split(',').find_map(|field| field.strip_prefix(counter)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("{counter} in {line}")).parse().unwrap()
}

#[test]
fn the_time_waited_does_not_count_as_command_time() {
    let limits = "CONFIG SET slowlog-log-slower-than 2000000 latency-monitor-threshold 2000";
    let (server, mut a, mut b) = Server::start_contended();
    assert_eq!(a.call(limits), Reply::ok());
    let mut c = server.waiter("lock C BLOCK 2000");
    assert!(c.reply().is_null());
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    assert_eq!(slow(&mut a), [""; 0]);
    assert!(a.call("LATENCY LATEST").items().is_empty());
    assert_eq!(counted(&mut a, "lock.acquire", "calls"), 3);
    assert!(counted(&mut a, "lock.acquire", "usec") < 2_000_000);
    let histogram = a.call("LATENCY HISTOGRAM lock.acquire lock.release");
    assert_eq!(histogram.field("lock.acquire").field("calls"), &Reply::Int(3));
    assert_eq!(histogram.field("lock.release").field("calls"), &Reply::Int(1));
}

#[test]
fn the_slowlog_has_each_command_once_with_its_arguments() {
    let server = Setup::new().config("slowlog-log-slower-than 0").start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let mut b = server.client();
    b.ask("lock B BLOCK 0");
    a.see_blocked(1);
    a.call("LOCK.RELEASE lock A HOLDS 0");
    assert_eq!(b.reply().grant().holds, 1);
    // B's command comes last, because SLOWLOG shows a waiting command only after its wait has ended.
    let expected =
        ["LOCK.ACQUIRE lock A PX 600000", "LOCK.RELEASE lock A HOLDS 0", "LOCK.ACQUIRE lock B BLOCK 0"];
    assert_eq!(slow(&mut a), expected);
}

#[test]
fn errors_are_counted_by_their_first_word_and_null_is_no_error() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut c = server.waiter("lock C BLOCK 0");
    a.call("LOCK.RELEASE free A").error();
    a.call("LOCK.RELEASE lock A HOLDS 5").error();
    a.call("CONFIG SET lock.max-waiters 2");
    a.call("LOCK.ACQUIRE lock D BLOCK 0").error();
    a.call("LOCK.ACQUIRE lock D SOON").error();
    assert!(a.call("LOCK.ACQUIRE lock D").is_null());
    a.call("LOCK.ACQUIRE lock").error();
    let mut again = server.client();
    again.ask("lock C HOLDS 1 BLOCK 0");
    assert_eq!(c.reply().error_word(), "SUPERSEDED");
    for (word, count) in [("NOTHELD", 1), ("HOLDS", 1), ("MAXWAITERS", 1), ("SUPERSEDED", 1), ("ERR", 2)] {
        let counted = a.server_info("errorstats", &format!("errorstat_{word}"));
        assert_eq!(counted, format!("count={count}"), "{word}");
    }
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    a.call("LOCK.RELEASE lock B");
    assert_eq!(again.reply().grant().holds, 1);
    // Some servers count a waiting command only after its wait, and by now all waits have ended. There are
    // seven calls: one by A, one by B, two by C and three by D.
    assert_eq!(counted(&mut a, "lock.acquire", "calls"), 7);
    assert_eq!(counted(&mut a, "lock.acquire", "failed_calls"), 3);
    assert_eq!(counted(&mut a, "lock.acquire", "rejected_calls"), 1);
    assert_eq!(counted(&mut a, "lock.release", "calls"), 4);
    assert_eq!(counted(&mut a, "lock.release", "failed_calls"), 2);
    assert_eq!(a.call("CONFIG RESETSTAT"), Reply::ok());
    assert!(!a.call("INFO errorstats").text().contains("NOTHELD"));
    assert!(!a.call("INFO commandstats").text().contains("lock.release"));
}

#[test]
fn monitor_shows_commands_of_clients_and_none_of_the_module() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut monitor = server.client();
    assert_eq!(monitor.call("MONITOR"), Reply::ok());
    a.call("LOCK.TOP");
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    a.call("DEL lock");
    a.call("PING");
    let mut shown = Vec::new();
    while shown.last().is_none_or(|line| line != "\"PING\"") {
        let Reply::Simple(line) = monitor.reply() else { panic!("no line of MONITOR") };
        shown.push(line.split_once("] ").expect("a command").1.to_owned());
    }
    // MONITOR never shows commands with the flag `admin`, such as LOCK.TOP.
    assert_eq!(shown, ["\"LOCK.RELEASE\" \"lock\" \"A\"", "\"DEL\" \"lock\"", "\"PING\""]);
}

#[test]
fn client_list_shows_which_clients_wait() {
    let (_server, mut a, mut b) = Server::start_contended();
    let waiting = |line: &str| line.contains(" flags=b ") && line.contains(" cmd=lock.acquire ");
    let count =
        |client: &mut Client| client.call("CLIENT LIST").text().lines().filter(|line| waiting(line)).count();
    assert_eq!(count(&mut a), 1);
    assert_eq!(a.stat("clients", "blocked_clients"), 1);
    a.call("LOCK.RELEASE lock A");
    assert_eq!(b.reply().grant().holds, 1);
    eventually("nobody waits", || a.stat("clients", "blocked_clients") == 0);
    assert_eq!(count(&mut a), 0);
}

#[test]
fn redis_cli_scans_a_keyspace_with_locks_in_it() {
    let server = Setup::new().config("maxmemory-policy allkeys-lfu").start();
    let mut a = server.client();
    for key in ["lock:1", "lock:2", "lock:3"] {
        a.acquire(&format!("{key} A PX 600000"));
    }
    a.call("SET string value");
    let port = server.port().to_string();
    for (option, expected) in [
        ("--bigkeys", "Sampled 4 keys"),
        ("--memkeys", "3 lockward-s with"),
        ("--hotkeys", "keyname: \"lock:1\""),
    ] {
        let output = Command::new("redis-cli").args(["-p", &port, option]).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && shown.contains(expected), "{option}: {shown}");
    }
    assert_eq!(a.holder("lock:1").owner, "A");
}

#[test]
fn a_client_that_waits_is_not_idle() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut idle = server.client();
    let mut c = server.waiter("lock C BLOCK 0");
    assert_eq!(a.call("CONFIG SET timeout 1"), Reply::ok());
    assert!(idle.is_closed());
    let mut a = server.client();
    assert_eq!(a.queue("lock"), ["B", "C"]);
    a.call("DEL lock");
    assert_eq!(b.reply().grant().holds, 1);
    a.call("DEL lock");
    assert_eq!(c.reply().grant().holds, 1);
}
