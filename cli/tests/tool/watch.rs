//! Tests of `lockward watch`.

use crate::failures::Primaries;
use crate::{Process, lockward, output, soon_in, url};
use lockward_tests::{Cluster, Reply, Sentinels, Server, Setup, eventually, free_port, slot_of, soon};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

/// A running `lockward watch`. Dropping this value kills the process.
struct Watcher {
    process: Process,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watcher {
    /// Starts a watcher, and waits until it has subscribed to the events of the server.
    fn start(server: &Server, arguments: &[&str]) -> Self {
        let watcher = Self::start_at(&url(server), arguments);
        see_subscriber(server);
        watcher
    }

    fn start_at(url: &str, arguments: &[&str]) -> Self {
        Self::spawn(lockward(url, &[&["watch", "--configure"], arguments].concat()))
    }

    /// Starts a watcher without options.
    fn start_plain(url: &str) -> Self {
        Self::spawn(lockward(url, &["watch"]))
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (out, sink) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&lines));
        thread::spawn(move || {
            for line in out.lines() {
                sink.lock().unwrap().push(line.unwrap());
            }
        });
        Self { process: Process(child), lines }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for a line with this text after its time. Returns the line without the time.
    #[track_caller]
    fn see(&self, wanted: &str) -> String {
        let find = |text: &str| text.lines().map(after_time).find(|line| line.contains(wanted));
        soon_in(wanted, || self.lines().join("\n"), find)
    }

    /// Waits for a JSON object that satisfies `fits`.
    #[track_caller]
    fn see_json(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        soon(what, || self.objects().into_iter().find(&fits))
    }

    fn objects(&self) -> Vec<Value> {
        self.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The lines about a key so far, without their times.
    fn about(&self, key: &str) -> Vec<String> {
        let start = format!("{key}  ");
        let lines = self.lines();
        lines.iter().map(|line| after_time(line)).filter(|line| line.starts_with(&start)).collect()
    }
}

/// Runs a `lockward watch` that must fail. Returns the exit code, standard output and standard error.
fn refused(url: &str) -> (i32, String, String) {
    let mut command = Command::new("timeout");
    output(command.args(["20", env!("CARGO_BIN_EXE_lockward"), "watch"]).env("LOCKWARD_URL", url))
}

/// The line without its time, which has the form `2026-11-23 03:12:07.123`.
fn after_time(line: &str) -> String {
    let (time, rest) = line.split_at(25);
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00 00:00:00.000  ", "{line}");
    rest.to_owned()
}

/// Waits until a watcher has subscribed at the server.
#[track_caller]
fn see_subscriber(server: &Server) {
    let mut client = server.client();
    eventually("the watcher has subscribed", || client.call("PUBSUB NUMPAT") == Reply::Int(1));
}

#[test]
fn an_acquisition_and_a_release_show_owner_and_token() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    let token = client.acquire("k A").token;
    assert_eq!(watcher.see("k  acquired"), format!("k  acquired  A  token {token}"));
    client.call("LOCK.RELEASE k A");
    assert_eq!(watcher.see("k  released"), format!("k  released  A  token {token}"));
}

#[test]
fn the_first_lines_are_the_locks_that_are_held() {
    let (server, _a, _b) = Server::start_contended();
    let token = server.client().holder("lock").token;
    let watcher = Watcher::start(&server, &[]);
    let line = watcher.see("lock  ");
    assert!(line.starts_with(&format!("lock  held  A  token {token}  held for ")), "{line}");
}

#[test]
fn a_hand_off_shows_the_release_and_the_next_holder() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut a = server.client();
    a.acquire("k A");
    watcher.see("k  acquired  A");
    let mut b = server.waiter("k B BLOCK 0");
    a.call("LOCK.RELEASE k A");
    let token = b.reply().grant().token;
    assert_eq!(watcher.see("k  acquired  B"), format!("k  acquired  B  token {token}"));
    watcher.see("k  released  A");
}

#[test]
fn a_lock_whose_lease_is_over_is_lost() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let token = server.client().acquire("k A PX 500").token;
    assert_eq!(watcher.see("k  lost"), format!("k  lost  A  token {token}  lease over"));
}

#[test]
fn a_reader_whose_lease_is_over_is_lost() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    client.acquire("k A SHARED PX 600000");
    let token = client.acquire("k B SHARED PX 500").token;
    assert_eq!(watcher.see("k  lost"), format!("k  lost  B  token {token}  shared  lease over"));
}

#[test]
fn a_deleted_lock_is_broken() {
    let (server, _a, mut b) = Server::start_contended();
    let watcher = Watcher::start(&server, &[]);
    watcher.see("lock  held  A");
    assert_eq!(server.client().call("DEL lock"), Reply::Int(1));
    let token = b.reply().grant().token;
    let line = watcher.see("lock  broken  A");
    assert!(line.ends_with("  deleted"), "{line}");
    watcher.see(&format!("lock  acquired  B  token {token}"));
}

#[test]
fn a_renamed_lock_is_broken_and_held_under_its_new_name() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    let token = client.acquire("k A").token;
    watcher.see("k  acquired");
    client.call("RENAME k other");
    assert_eq!(watcher.see("k  broken"), format!("k  broken  A  token {token}  renamed"));
    watcher.see(&format!("other  held  A  token {token}"));
}

#[test]
fn a_flush_ends_the_tenures() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    client.acquire("k A");
    watcher.see("k  acquired");
    client.call("FLUSHALL");
    watcher.see("k  ended  A");
}

#[test]
fn an_overwritten_lock_is_broken() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    client.acquire("k A");
    watcher.see("k  acquired");
    assert_eq!(client.call("SET k value"), Reply::ok());
    let line = watcher.see("k  broken");
    assert!(line.ends_with("  overwritten"), "{line}");
}

#[test]
fn an_evicted_lock_is_not_lost() {
    // `A` includes the class `e`, so the server publishes the eviction, and the watcher then reads the lock.
    let server = Setup::new().config("notify-keyspace-events AK").start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    client.acquire("k A PX 600000");
    watcher.see("k  acquired");
    client.evict("k");
    client.acquire("later B");
    watcher.see("later  acquired");
    client.call("LOCK.RELEASE k A");
    watcher.see("k  released  A");
    assert_eq!(watcher.about("k").len(), 2, "{:?}", watcher.about("k"));
}

#[test]
fn each_of_several_holders_has_its_own_lines() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    let a = client.acquire("page A SHARED").token;
    let b = client.acquire("page B SHARED").token;
    let c = client.acquire("pool C SLOTS 5 WEIGHT 2").token;
    watcher.see("page  acquired  B");
    client.call("LOCK.RELEASE page A");
    watcher.see(&format!("page  released  A  token {a}  shared"));
    client.call("LOCK.RELEASE page B");
    watcher.see(&format!("page  released  B  token {b}  shared"));
    watcher.see(&format!("pool  acquired  C  token {c}  2 of 5"));
}

#[test]
fn repeated_acquisitions_and_renewals_have_no_lines() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    client.acquire("k A");
    watcher.see("k  acquired");
    client.acquire("k A");
    client.acquire("between B");
    watcher.see("between  acquired");
    client.call("LOCK.RENEW k A PX 60000");
    client.call("LOCK.RELEASE k A ALL");
    watcher.see("k  released");
    assert_eq!(watcher.about("k").len(), 2, "{:?}", watcher.about("k"));
}

#[test]
fn a_tenure_that_ends_before_it_is_read_has_no_owner() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    server.client().transact(["LOCK.ACQUIRE k A", "LOCK.RELEASE k A"]);
    assert_eq!(watcher.see("k  "), "k  acquired and ended, owner not seen");
}

#[test]
fn the_pattern_selects_keys() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("other:held A");
    let watcher = Watcher::start(&server, &["order:*"]);
    client.acquire("other:1 A");
    client.acquire("order:1 A");
    watcher.see("order:1  acquired");
    assert_eq!(watcher.lines().len(), 1, "{:?}", watcher.lines());
}

#[test]
fn watch_watches_the_database_of_the_url() {
    let server = Server::start();
    let watcher = Watcher::start_at(&format!("{}/3", url(&server)), &[]);
    see_subscriber(&server);
    let mut client = server.client();
    client.acquire("zero A");
    client.call("SELECT 3");
    client.acquire("three A");
    watcher.see("three  acquired");
    assert!(watcher.about("zero").is_empty());
}

#[test]
fn missing_event_classes_are_an_error_that_names_the_command() {
    let server = Server::start();
    server.client().call("CONFIG SET notify-keyspace-events Kx");
    let (code, shown, said) = refused(&url(&server));
    assert_eq!((code, shown.as_str()), (2, ""));
    assert!(said.contains("CONFIG SET notify-keyspace-events xKdg"), "{said}");
    assert_eq!(server.client().call("CONFIG GET notify-keyspace-events").items()[1].text(), "xK");
}

/// The rights that the documentation names for `watch`.
fn documented_rights() -> Vec<&'static str> {
    let docs = include_str!("../../../docs/cli.md");
    let (_, said) = docs.split_once("`watch` needs `").unwrap();
    said.split('`').next().unwrap().split(' ').collect()
}

#[test]
fn the_documented_rights_are_sufficient() {
    let server = Setup::new().config("notify-keyspace-events Kxdg").start();
    let rule = format!("ACL SETUSER u reset on >secret ~k* {}", documented_rights().join(" "));
    assert_eq!(server.client().call(rule), Reply::ok());
    let mut client = server.client();
    client.acquire("hidden B");
    let watcher = Watcher::start_plain(&format!("redis://u:secret@127.0.0.1:{}", server.port()));
    see_subscriber(&server);
    client.acquire("k A");
    watcher.see("k  acquired  A");
    assert!(watcher.about("hidden").is_empty());
}

#[test]
fn each_documented_right_is_necessary() {
    let server = Setup::new().config("notify-keyspace-events Kxdg").start();
    let rights = documented_rights();
    assert!(rights.len() >= 4, "{rights:?}");
    for without in &rights {
        let others: Vec<&str> = rights.iter().filter(|right| *right != without).copied().collect();
        let rule = format!("ACL SETUSER u reset on >secret ~* {}", others.join(" "));
        assert_eq!(server.client().call(rule), Reply::ok());
        let (code, _, said) = refused(&format!("redis://u:secret@127.0.0.1:{}", server.port()));
        assert!(code == 2 && said.contains("NOPERM"), "without {without}: {code:?} {said}");
    }
}

#[test]
fn watch_reports_a_server_that_restarts_without_the_event_classes() {
    let mut server = Server::start();
    server.client().call("CONFIG SET notify-keyspace-events Kxdg");
    server.client().acquire("k A");
    let watcher = Watcher::start_plain(&url(&server));
    watcher.see("k  held  A");
    server.kill();
    watcher.see("disconnected");
    server.start_again();
    let line = watcher.see("does not publish the events");
    assert!(
        line.starts_with("disconnected  ") && line.contains("CONFIG SET notify-keyspace-events "),
        "{line}"
    );
}

#[test]
fn configure_adds_the_missing_event_classes_and_keeps_the_others() {
    let server = Server::start();
    server.client().call("CONFIG SET notify-keyspace-events El");
    let _watcher = Watcher::start(&server, &[]);
    eventually("the setting has all classes", || {
        let value = server.client().call("CONFIG GET notify-keyspace-events").items()[1].text().to_string();
        "KEldxg".chars().all(|class| value.contains(class))
    });
}

#[test]
fn json_has_one_object_for_each_change() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &["--json"]);
    let mut client = server.client();
    let token = client.acquire("k A SLOTS 5 WEIGHT 2").token;
    let fact = watcher.see_json("k is acquired", |fact| fact["event"] == "acquired");
    assert_eq!((&fact["key"], &fact["owner"], &fact["token"]), (&"k".into(), &"A".into(), &token.into()));
    assert_eq!((&fact["slots"], &fact["weight"]), (&5.into(), &2.into()));
    let time = fact["time"].as_str().unwrap();
    assert!(time.len() == 24 && time.as_bytes()[10] == b'T' && time.ends_with('Z'), "{time}");
    client.call("DEL k");
    let fact = watcher.see_json("k is broken", |fact| fact["event"] == "broken");
    assert_eq!((&fact["token"], &fact["reason"]), (&token.into(), &"deleted".into()));
}

#[test]
fn arbitrary_bytes_are_escaped() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let json = Watcher::start_at(&url(&server), &["--json"]);
    let mut client = server.client();
    eventually("both have subscribed", || client.call("CLIENT LIST TYPE pubsub").text().lines().count() == 2);
    client.call([b"LOCK.ACQUIRE".as_slice(), b"k\x1b[2J*?\0", b"me\n\xff", b"PX", b"600000"]);
    watcher.see(r"k\x1b[2J*?\x00  acquired  me\x0a\xff  token ");
    let fact = json.see_json("the lock", |fact| fact["owner"] == r"me\x0a\xff");
    assert_eq!(fact["key"], "k\x1b[2J*?\0");
}

#[test]
fn watch_continues_after_a_restart_of_the_server_and_reports_it() {
    let mut server = Setup::new().start();
    let watcher = Watcher::start(&server, &[]);
    server.client().acquire("before A");
    watcher.see("before  acquired");
    server.kill();
    watcher.see("events may be missed from now on");
    server.start_again();
    watcher.see("events may have been missed");
    see_subscriber(&server);
    let token = server.client().acquire("after B").token;
    watcher.see(&format!("after  acquired  B  token {token}"));
}

#[test]
fn a_lock_that_was_acquired_while_the_connection_was_lost_is_held() {
    let server = Server::start();
    let watcher = Watcher::start(&server, &[]);
    let mut client = server.client();
    client.transact(["CLIENT KILL TYPE pubsub", "LOCK.ACQUIRE meanwhile B"]);
    watcher.see("events may have been missed");
    let line = watcher.see("meanwhile  held  B");
    assert!(line.contains("held for"), "{line}");
}

#[test]
fn watch_watches_all_primaries_of_a_cluster_and_a_promoted_replica() {
    let mut cluster = Cluster::start();
    let seed = cluster.nodes()[1].port();
    let watcher = Watcher::start_at(&format!("redis+cluster://127.0.0.1:{seed}"), &[]);
    let ports: Vec<u16> = cluster.primaries().iter().map(|node| node.port()).collect();
    cluster.primaries().into_iter().for_each(see_subscriber);
    let keys: Vec<String> = ports
        .iter()
        .map(|port| {
            let mut names = (0..).map(|number| format!("k{number}"));
            names.find(|key| cluster.owner(slot_of(key)).port() == *port).unwrap()
        })
        .collect();
    let mut client = cluster.client();
    for key in &keys {
        client.call(key, &format!("LOCK.ACQUIRE {key} A PX 600000"));
        watcher.see(&format!("{key}  acquired  A"));
    }
    let replica = cluster.replica_of(cluster.owner(slot_of(&keys[0]))).port();
    let at = cluster.nodes().iter().position(|node| node.port() == ports[0]).unwrap();
    let promoted = cluster.nodes().iter().position(|node| node.port() == replica).unwrap();
    cluster.hand_over_to(&cluster.nodes()[promoted]);
    cluster.nodes_mut()[at].kill();
    see_subscriber(&cluster.nodes()[promoted]);
    watcher.see("events may have been missed");
    watcher.see(&format!("{}  held  A", keys[0]));
    client.call(&keys[0], &format!("LOCK.RELEASE {} A", keys[0]));
    watcher.see(&format!("{}  released  A", keys[0]));
    assert_eq!(watcher.about(&keys[1]).len(), 1, "{:?}", watcher.about(&keys[1]));
}

#[test]
fn a_burst_is_coalesced_and_all_acquisitions_are_counted() {
    const ROUNDS: u64 = 5_000;
    let server = Server::start();
    let watcher = Watcher::start(&server, &["--json"]);
    let mut client = server.client();
    let commands = ["LOCK.ACQUIRE k A", "LOCK.RELEASE k A"].into_iter().cycle().take(2 * ROUNDS as usize);
    client.call_all(commands);
    let token = client.acquire("k last").token;
    watcher.see_json("the last acquisition", |fact| fact["token"] == token);
    let objects = watcher.objects();
    let count = |fact: &Value| match fact["event"].as_str().unwrap() {
        "acquired" => 1,
        "unseen" => fact["acquisitions"].as_u64().unwrap(),
        _ => 0,
    };
    assert_eq!(objects.iter().map(count).sum::<u64>(), ROUNDS + 1);
    assert!(!objects.iter().any(|fact| fact["event"] == "disconnected"));
}

#[test]
fn watch_reports_a_blocked_output_later() {
    let (server, _a, _b) = Server::start_contended();
    let mut client = server.client();
    // The limit is larger than the events of one batch, so the server closes the connection only when nobody reads.
    client.call(["CONFIG", "SET", "client-output-buffer-limit", "pubsub 4mb 0 0"]);
    let mut command = lockward(&url(&server), &["watch", "--configure"]);
    let mut child = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    // After its first line, the watcher does not end when it loses the connection.
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let long = "k".repeat(1_000);
    eventually("the server closes the connection", || {
        client.call_all((0..1_000).map(|_| format!("LOCK.ACQUIRE {long} A")));
        client.call_all((0..1_000).map(|number| format!("LOCK.ACQUIRE {long}:{number} A")));
        client.call_all((0..1_000).map(|number| format!("LOCK.RELEASE {long}:{number} A")));
        client.call("PUBSUB NUMPAT") == Reply::Int(0)
    });
    let said = out.lines().map_while(Result::ok).find(|line| line.contains("events may be missed"));
    assert!(said.is_some());
}

#[test]
fn watch_ends_when_its_output_is_closed() {
    let (server, _a, _b) = Server::start_contended();
    let mut command = lockward(&url(&server), &["watch", "--configure"]);
    let mut child = Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    drop(out);
    let code = child.code();
    let mut said = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[test]
fn ctrl_c_ends_watch_with_0() {
    let server = Server::start();
    let mut watcher = Watcher::start(&server, &[]);
    watcher.process.send("INT");
    assert_eq!(watcher.process.code(), Some(0));
}

#[test]
fn watch_starts_while_a_primary_of_a_cluster_does_not_answer() {
    let primaries = Primaries::start();
    let [first, hung, _] = primaries.cluster.nodes() else { panic!("three nodes") };
    hung.freeze();
    let watcher = Watcher::start_at(&primaries.url(), &["--patience", "500ms"]);
    let address = primaries.address(1);
    let reason = format!("cannot reach a Redis server at {address}: no answer within 500ms");
    assert_eq!(
        watcher.see("disconnected"),
        format!("disconnected  {reason}; events may be missed from now on")
    );
    watcher.see(&format!("{}  held  A", primaries.keys[0]));
    first.client().call(format!("LOCK.RELEASE {} A", primaries.keys[0]));
    watcher.see(&format!("{}  released  A", primaries.keys[0]));
    hung.thaw();
    watcher.see(&format!("connected  {address}: events may have been missed"));
    watcher.see(&format!("{}  held  A", primaries.keys[1]));
    assert_eq!(watcher.lines().iter().filter(|line| line.contains("disconnected")).count(), 1);
}

#[test]
fn a_primary_that_hangs_does_not_delay_the_events_of_others() {
    let primaries = Primaries::start();
    let [first, hung, _] = primaries.cluster.nodes() else { panic!("three nodes") };
    let watcher = Watcher::start_at(&primaries.url(), &["--patience", "500ms"]);
    primaries.cluster.nodes().iter().for_each(see_subscriber);
    hung.freeze();
    watcher.see(&format!("disconnected  cannot reach a Redis server at {}", primaries.address(1)));
    first.client().call("CLIENT KILL TYPE pubsub");
    watcher.see(&format!("connected  {}: events may have been missed", primaries.address(0)));
    let token = first.client().acquire(&format!("{} A", primaries.keys[0])).token;
    assert!(token > 0);
}

#[test]
fn silent_sentinels_do_not_disconnect_watch() {
    let primary = Server::start();
    let sentinels = Sentinels::watch(&primary, 0);
    let watcher = Watcher::start_at(&sentinels.url(), &["--patience", "200ms"]);
    see_subscriber(&primary);
    sentinels.all().iter().for_each(Server::freeze);
    // watch looks for other primaries every second.
    let mut client = primary.client();
    client.acquire("k A PX 3000");
    watcher.see("k  lost  A");
    assert!(!watcher.lines().iter().any(|line| line.contains("connected")), "{:?}", watcher.lines());
    client.call("CLIENT KILL TYPE pubsub");
    watcher.see("connected  127.0.0.1:");
}

#[test]
fn watch_does_not_start_without_a_server() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let (code, _, said) = refused(&url);
    assert_eq!(code, 2);
    assert!(said.starts_with("lockward: cannot reach a Redis server at "), "{said}");
}
