//! INFO lock: gauges, counters and durations.

use lockward_tests::{Client, Reply, Server, Setup, WallClock, eventually, repository};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// The counters, in the order of INFO lock.
const COUNTS: [&str; 14] = [
    "acquired",
    "re_entered",
    "handed_off",
    "busy",
    "wait_limits_reached",
    "disconnected_while_waiting",
    "superseded",
    "released",
    "renewed",
    "leases_ended",
    "tenures_kept_from_eviction",
    "tenures_kept_from_clock_steps",
    "restored_in_quarantine",
    "errors",
];

fn read(client: &mut Client, field: &str) -> i64 {
    client.stat("lock", &format!("lock_{field}"))
}

/// The counters that are not zero.
fn counted(client: &mut Client) -> BTreeMap<&'static str, i64> {
    let counts = COUNTS.map(|field| (field, read(client, field)));
    counts.into_iter().filter(|(_, count)| *count != 0).collect()
}

/// p50, p99, p99.9 and max of a field of durations.
fn durations(client: &mut Client, field: &str) -> [i64; 4] {
    let text = client.server_info("lock", &format!("lock_{field}"));
    let parts: Vec<(&str, &str)> = text.split(',').filter_map(|part| part.split_once('=')).collect();
    let [p50, p99, p999, max] = parts[..] else { panic!("no percentiles: {text}") };
    assert_eq!([p50.0, p99.0, p999.0, max.0], ["p50", "p99", "p99.9", "max"], "{text}");
    [p50, p99, p999, max].map(|(_, number)| number.parse().unwrap())
}

#[track_caller]
fn assert_counted<const N: usize>(client: &mut Client, counts: [(&'static str, i64); N]) {
    assert_eq!(counted(client), BTreeMap::from(counts));
}

// The fields of the section.

#[test]
fn the_fields_of_info_are_documented_and_numeric() {
    let (_server, mut a, _b) = Server::start_contended();
    let page = fs::read_to_string(repository().join("docs/metrics.md")).expect("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `lock_")?.split_once('`'));
    // The page also has a table of alerts. In its rows, a condition follows the name of the field, and the filter
    // leaves these rows out.
    let documented: Vec<String> =
        rows.filter(|(_, rest)| rest.starts_with(" |")).map(|(field, _)| format!("lock_{field}")).collect();
    let text = a.call("INFO lock").text();
    let (title, fields) = text.trim_start().split_once("\r\n").expect("a title");
    assert_eq!(title, "# lock");
    let fields: Vec<(&str, &str)> = fields.lines().filter_map(|line| line.split_once(':')).collect();
    let shown: Vec<&str> = fields.iter().map(|(field, _)| *field).collect();
    assert_eq!(shown, documented, "the fields of INFO and the rows of docs/metrics.md");
    for (field, value) in fields {
        for number in value.split(',').map(|part| part.rsplit('=').next().unwrap_or(part)) {
            assert!(number.parse::<u64>().is_ok(), "{field}:{value}");
        }
    }
}

#[test]
fn the_section_is_part_of_info_only_if_it_or_modules_are_requested() {
    let server = Server::start();
    let mut a = server.client();
    for section in ["lock", "everything", "modules", "server lock"] {
        assert!(a.call(format!("INFO {section}")).text().contains("\r\nlock_held:0\r\n"), "{section}");
    }
    for section in ["", "default", "all", "stats", "lockward"] {
        assert!(!a.call(format!("INFO {section}")).text().contains("lock_held"), "{section}");
    }
}

#[test]
fn a_new_server_reports_zeros() {
    let server = Server::start();
    let mut a = server.client();
    assert_counted(&mut a, []);
    let gauges = ["held", "waiting", "places_kept", "tenures_kept"].map(|field| read(&mut a, field));
    assert_eq!(gauges, [0; 4]);
    assert_eq!([durations(&mut a, "wait_usec"), durations(&mut a, "hold_usec")], [[0; 4]; 2]);
}

#[test]
fn a_script_reads_the_section() {
    let server = Server::start();
    let text = server.client().call(["EVAL", "return redis.call('INFO', 'lock')", "0"]).text();
    assert!(text.contains("lock_held:0"));
}

// Gauges: the number of held locks.

/// At first A holds `lock` twice and `other` once, so two locks are held. Each row is a list of commands, and the
/// number of held locks after these commands.
#[test]
fn the_count_of_held_locks_follows_every_change_of_the_keyspace() {
    for (commands, held) in [
        ("LOCK.ACQUIRE third A", 3),
        ("LOCK.ACQUIRE lock A", 2),
        ("LOCK.RELEASE lock A", 2),
        ("LOCK.RELEASE lock A ALL", 1),
        ("LOCK.ACQUIRE lock B", 2),
        ("DEL lock", 1),
        ("UNLINK lock other", 0),
        ("SET lock value", 1),
        ("PEXPIRE lock 0", 1),
        ("PERSIST lock", 2),
        ("RENAME lock third", 2),
        ("RENAME lock other", 1),
        ("RENAMENX lock other", 2),
        ("MOVE lock 1", 2),
        ("SWAPDB 0 1", 2),
        ("SELECT 1 | FLUSHDB", 2),
        ("FLUSHDB SYNC", 0),
        ("FLUSHALL SYNC", 0),
        ("SWAPDB 0 1 | FLUSHDB SYNC", 2),
        ("DEBUG RELOAD", 2),
        ("DEBUG RELOAD | DEL lock", 1),
        ("MULTI | DEL lock | LOCK.ACQUIRE lock B | EXEC", 2),
        ("EVAL return{redis.call('DEL','lock'),redis.call('LOCK.ACQUIRE','third','B')} 2 lock third", 2),
    ] {
        let server = Server::start();
        let mut a = server.client();
        a.acquire("lock A PX 600000");
        a.acquire("lock A PX 600000");
        a.acquire("other A PX 600000");
        assert_eq!(read(&mut a, "held"), 2);
        for command in commands.split(" | ") {
            a.call(command);
        }
        // At DEBUG RELOAD, Valkey frees the old locks in the background, so the number is right only after some time.
        eventually(&format!("{held} locks are held after {commands}"), || read(&mut a, "held") == held);
    }
}

#[test]
fn locks_flushed_in_the_background_count_as_held_until_they_are_freed() {
    let server = Server::start();
    let mut a = server.client();
    for command in ["FLUSHALL ASYNC", "FLUSHDB ASYNC"] {
        for number in 0..500 {
            a.acquire(&format!("lock-{number} A"));
        }
        assert_eq!(read(&mut a, "held"), 500);
        a.call(command);
        eventually("all locks are freed", || read(&mut a, "held") == 0);
        a.acquire("lock A");
        assert_eq!(read(&mut a, "held"), 1);
        a.call("LOCK.RELEASE lock A");
    }
}

#[test]
fn a_lock_whose_lease_is_over_is_held_until_its_key_goes() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 1");
    eventually("the server drops the key", || read(&mut a, "held") == 0);
    assert_counted(&mut a, [("acquired", 1), ("leases_ended", 1)]);
}

#[test]
fn a_restored_lock_counts_as_held_and_a_refused_payload_does_not() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    let payload = a.call("DUMP lock").bytes().to_vec();
    let restore =
        |key: &'static [u8], ttl: &'static [u8]| [b"RESTORE", key, ttl, &payload[..]].map(<[u8]>::to_vec);
    assert_eq!(a.call(restore(b"copy", b"0")), Reply::ok());
    assert_eq!(read(&mut a, "held"), 2);
    assert_eq!(a.call(restore(b"copy", b"0")).error_word(), "BUSYKEY");
    assert_eq!(read(&mut a, "held"), 2);
    a.call([b"RESTORE".as_slice(), b"past", b"1000", &payload, b"ABSTTL"]);
    assert_eq!(read(&mut a, "held"), 2);
}

#[test]
fn an_evicted_lock_counts_as_held_and_as_dropped() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    a.evict("lock");
    assert_eq!([read(&mut a, "held"), read(&mut a, "tenures_kept")], [1, 1]);
    assert_counted(&mut a, [("acquired", 1), ("tenures_kept_from_eviction", 1)]);
    a.call("LOCK.RENEW lock A");
    assert_eq!([read(&mut a, "held"), read(&mut a, "tenures_kept")], [1, 0]);
    a.evict("lock");
    a.call("LOCK.RELEASE lock A");
    assert_eq!([read(&mut a, "held"), read(&mut a, "tenures_kept")], [0, 0]);
    assert_eq!([read(&mut a, "released"), read(&mut a, "tenures_kept_from_eviction")], [1, 2]);
}

#[test]
fn a_lock_that_a_step_of_the_clock_drops_stays_held() {
    let mut clock = WallClock::new();
    let server = Setup::new().clock(&clock).start();
    let mut a = server.client();
    a.acquire("lock A PX 600000");
    clock.forward(Duration::from_secs(3_600));
    eventually("the lock was dropped and is in the keyspace again", || {
        read(&mut a, "tenures_kept_from_clock_steps") == 1 && read(&mut a, "tenures_kept") == 0
    });
    assert_eq!(read(&mut a, "held"), 1);
    assert_eq!(durations(&mut a, "hold_usec"), [0; 4], "the tenure has ended");
}

#[test]
fn loaded_locks_count_as_held_and_not_as_acquired() {
    for config in ["save 3600 1000", "appendonly yes"] {
        let mut server = Setup::new().config(config).start();
        let mut a = server.client();
        a.acquire("lock A PX 600000");
        a.acquire("lock A PX 600000");
        a.acquire("other A PX 600000");
        a.call("LOCK.RELEASE other A");
        drop(a);
        server.terminate();
        server.start_again();
        let mut a = server.client();
        assert_eq!(read(&mut a, "held"), 1, "{config}");
        assert_counted(&mut a, []);
    }
}

#[test]
fn a_replica_counts_held_locks_but_no_operations_of_its_primary() {
    let primary = Server::start();
    let replica = Server::start();
    let (mut a, mut there) = (primary.client(), replica.client());
    for key in ["its", "own", "locks"] {
        there.acquire(&format!("{key} A PX 600000"));
    }
    assert_counted(&mut there, [("acquired", 3)]);
    there.call("CONFIG RESETSTAT");
    assert_counted(&mut there, []);
    a.acquire("lock A PX 600000");
    replica.follow(&primary);
    // Valkey 9 frees the old data in the background.
    eventually("the replica has as many held locks as its primary", || read(&mut there, "held") == 1);
    let mut b = primary.waiter("lock B BLOCK 0");
    a.call("LOCK.RENEW lock A");
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    a.acquire("other A PX 600000");
    replica.see_in_sync_with(&primary);
    assert_eq!([read(&mut there, "held"), read(&mut there, "waiting")], [2, 0]);
    a.call("LOCK.RELEASE other A");
    a.call("DEL lock");
    replica.see_in_sync_with(&primary);
    assert_eq!(read(&mut there, "held"), 0);
    assert_counted(&mut there, []);
    assert_eq!([durations(&mut there, "wait_usec"), durations(&mut there, "hold_usec")], [[0; 4]; 2]);
    let mut there = replica.promote();
    there.acquire("lock A");
    assert_counted(&mut there, [("acquired", 1)]);
}

// Counters.

#[test]
fn a_tenure_is_acquired_re_entered_renewed_and_released() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert_counted(&mut a, [("acquired", 1)]);
    a.acquire("lock A");
    a.acquire("lock A HOLDS 2");
    assert_counted(&mut a, [("acquired", 1), ("re_entered", 1)]);
    a.call("LOCK.RENEW lock A");
    a.call("LOCK.RELEASE lock A");
    assert_counted(&mut a, [("acquired", 1), ("re_entered", 1), ("renewed", 1)]);
    a.call("LOCK.RELEASE lock A HOLDS 0");
    a.call("LOCK.RELEASE lock A HOLDS 0");
    assert_counted(&mut a, [("acquired", 1), ("re_entered", 1), ("renewed", 1), ("released", 1)]);
}

#[test]
fn an_acquisition_that_fails_at_once_counts_as_busy() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert!(a.call("LOCK.ACQUIRE lock B").is_null());
    a.transact(["LOCK.ACQUIRE lock B BLOCK 0"]);
    assert_counted(&mut a, [("acquired", 1), ("busy", 2)]);
}

#[test]
fn a_hand_off_is_counted_and_its_wait_is_measured() {
    let (_server, mut a, mut b) = Server::start_contended();
    assert_eq!(read(&mut a, "waiting"), 1);
    eventually("B has waited", || a.first_waiter("lock").waited >= 20);
    a.call("LOCK.RELEASE lock A");
    b.reply().grant();
    assert_counted(&mut a, [("acquired", 2), ("handed_off", 1), ("released", 1)]);
    assert_eq!(read(&mut a, "waiting"), 0);
    for field in ["wait_usec", "hold_usec"] {
        let [p50, p99, p999, max] = durations(&mut a, field);
        assert!(max >= 20_000, "{field}: {max} µs");
        assert_eq!([p50, p99, p999], [max; 3], "with one duration, all percentiles are equal");
    }
}

#[test]
fn another_wait_of_a_granted_owner_counts_as_a_re_entry() {
    let (server, mut a, mut b) = Server::start_contended();
    let mut again = server.waiter("lock B BLOCK 0");
    a.call("LOCK.RELEASE lock A");
    assert_eq!([b.reply().grant().holds, again.reply().grant().holds], [1, 2]);
    assert_counted(&mut a, [("acquired", 2), ("re_entered", 1), ("handed_off", 1), ("released", 1)]);
}

#[test]
fn a_wait_that_reaches_its_limit_is_counted() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert!(a.call("LOCK.ACQUIRE lock B BLOCK 1").is_null());
    assert_counted(&mut a, [("acquired", 1), ("wait_limits_reached", 1)]);
    assert_eq!(durations(&mut a, "wait_usec"), [0; 4], "a wait without a grant counts as a duration");
}

#[test]
fn a_wait_ended_by_client_unblock_counts_as_timed_out() {
    let (_server, mut a, mut b) = Server::start_contended();
    let id = a.first_waiter("lock").client_id;
    if a.call(format!("CLIENT UNBLOCK {id}")) == Reply::Int(1) {
        assert!(b.reply().is_null());
        assert_counted(&mut a, [("acquired", 1), ("wait_limits_reached", 1)]);
    } else {
        assert_counted(&mut a, [("acquired", 1)]);
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_is_counted() {
    let (_server, mut a, b) = Server::start_contended();
    drop(b);
    eventually("B has left", || read(&mut a, "waiting") == 0);
    assert_counted(&mut a, [("acquired", 1), ("disconnected_while_waiting", 1)]);
}

#[test]
fn a_wait_that_is_repeated_counts_as_superseded_and_as_an_error() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    let mut first = server.waiter("lock B HOLDS 1 BLOCK 0");
    let mut second = server.client();
    second.ask("lock B HOLDS 1 BLOCK 0");
    assert_eq!(first.reply().error_word(), "SUPERSEDED");
    assert_counted(&mut a, [("acquired", 1), ("superseded", 1), ("errors", 1)]);
}

#[test]
fn every_error_that_the_module_replies_is_counted() {
    let server = Server::start();
    let mut a = server.client();
    a.call("SET text value");
    for command in [
        "LOCK.RELEASE lock A",
        "LOCK.RENEW lock A",
        "LOCK.ACQUIRE lock A PX 0",
        "LOCK.ACQUIRE lock A HOLDS 5",
        "LOCK.ACQUIRE text A",
        "LOCK.INFO text",
        "LOCK.TOP COUNT none",
        "LOCK._APPLY lock x",
    ] {
        a.call(command).error();
    }
    assert_counted(&mut a, [("errors", 8)]);
    a.call("LOCK.ACQUIRE lock").error();
    a.call("LOCK.NONE lock").error();
    assert_counted(&mut a, [("errors", 8)]);
}

#[test]
fn the_end_of_a_lease_is_counted_whatever_finds_it() {
    let server = Server::start();
    let mut a = server.client();
    a.call("DEBUG SET-ACTIVE-EXPIRE 0");
    a.acquire("waited-for A PX 1");
    a.call("LOCK.ACQUIRE waited-for B PX 600000 BLOCK 0").grant();
    assert_eq!(read(&mut a, "leases_ended"), 1);
    a.acquire("asked-for A PX 1");
    eventually("B acquires the lock", || !a.call("LOCK.ACQUIRE asked-for B PX 600000").is_null());
    assert_eq!(read(&mut a, "leases_ended"), 2);
    a.acquire("read A PX 1");
    eventually("the key is gone", || a.call("EXISTS read") == Reply::Int(0));
    assert_eq!(read(&mut a, "leases_ended"), 3);
    let longest = durations(&mut a, "hold_usec")[3];
    assert_eq!(longest, 1_000, "a tenure is longer than its lease");
}

#[test]
fn the_rest_of_a_quarantine_is_shown_on_a_primary() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    assert!((1..=600_000).contains(&read(&mut a, "quarantine_left_ms")));
    let primary = Server::start();
    server.follow(&primary);
    assert_eq!(read(&mut a, "quarantine_left_ms"), 0, "a replica is not in quarantine");
    a.call("REPLICAOF NO ONE");
    assert!((1..=600_000).contains(&read(&mut a, "quarantine_left_ms")), "the promotion begins a quarantine");
    a.call("CONFIG SET lock.quarantine 0");
    assert_eq!(read(&mut a, "quarantine_left_ms"), 0);
}

#[test]
fn a_tenure_restored_in_quarantine_is_counted() {
    let server = Server::start_with("quarantine 600000");
    let mut a = server.client();
    assert_eq!(a.call("LOCK.RENEW lock A PX 60000 TOKEN 5"), Reply::Int(5));
    assert_counted(&mut a, [("restored_in_quarantine", 1)]);
    assert_eq!(read(&mut a, "held"), 1);
}

#[test]
fn a_broken_tenure_is_measured_and_a_renamed_one_goes_on() {
    for (command, over) in [
        ("DEL lock", true),
        ("UNLINK lock", true),
        ("SET lock value", true),
        ("RENAME lock moved", false),
        ("MOVE lock 1", false),
    ] {
        let server = Server::start();
        let mut a = server.client();
        a.acquire("lock A PX 600000");
        a.call(command);
        // The module counts the end of the tenure in the next lock command.
        a.acquire("other A PX 600000");
        assert_eq!(durations(&mut a, "hold_usec")[3] > 0, over, "{command}");
        assert_counted(&mut a, [("acquired", 2)]);
    }
}

#[test]
fn a_grant_that_could_not_be_delivered_counts_as_acquired_and_released() {
    let (_server, mut a, b) = Server::start_contended();
    let kill = format!("CLIENT KILL ID {}", b_id(&mut a));
    a.transact(["LOCK.RELEASE lock A", &kill]);
    drop(b);
    eventually("the grant is taken back", || read(&mut a, "held") == 0);
    let counted = counted(&mut a);
    assert_eq!(counted["acquired"], counted["released"], "{counted:?}");
}

fn b_id(client: &mut Client) -> i64 {
    client.first_waiter("lock").client_id
}

// CONFIG RESETSTAT.

#[test]
fn a_reset_clears_counters_and_durations_but_not_gauges() {
    let (_server, mut a, _b) = Server::start_contended();
    a.call("LOCK.ACQUIRE lock C");
    a.call("LOCK.RELEASE lock C").error();
    a.acquire("other A");
    a.call("LOCK.RELEASE other A");
    assert!(counted(&mut a).len() >= 4 && durations(&mut a, "hold_usec")[3] > 0);
    assert_eq!(a.call("CONFIG RESETSTAT"), Reply::ok());
    assert_counted(&mut a, []);
    assert_eq!([durations(&mut a, "wait_usec"), durations(&mut a, "hold_usec")], [[0; 4]; 2]);
    assert_eq!([read(&mut a, "held"), read(&mut a, "waiting")], [1, 1]);
    a.acquire("other A");
    assert_counted(&mut a, [("acquired", 1)]);
}

#[test]
fn a_reset_is_noticed_although_info_is_read_much_later() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    assert_counted(&mut a, [("acquired", 1)]);
    assert_eq!(a.call("CONFIG RESETSTAT"), Reply::ok());
    // The module checks in the server's cron whether CONFIG RESETSTAT has run. INFO is read only after this check.
    let time = |a: &mut Client| a.stat("server", "server_time_usec");
    let begin = time(&mut a);
    eventually("the cron has run", || time(&mut a) > begin + 1_000_000);
    for _ in 0..5 {
        let mut client = server.client();
        client.call_all(std::iter::repeat_n("PING", 500));
    }
    a.acquire("other A");
    assert_counted(&mut a, [("acquired", 1)]);
}

#[test]
fn only_a_reset_clears_the_counters() {
    let server = Server::start();
    let mut a = server.client();
    a.acquire("lock A");
    for command in
        ["CONFIG SET maxmemory 0", "FLUSHALL SYNC", "SLOWLOG RESET", "LATENCY RESET", "DEBUG RELOAD"]
    {
        a.call(command);
        assert_eq!(read(&mut a, "acquired"), 1, "{command}");
    }
}
