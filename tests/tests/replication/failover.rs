//! The safe failover of docs/operating.md, with the configuration on that page.

use lockward_tests::{Client, Reply, Sentinels, Server, Setup, eventually, repository};
use std::fs;
use std::time::{Duration, Instant};

/// The value that replaces `PASSWORD` on the page.
const PASSWORD: &str = "secret";

/// The lines of the two blocks on the page: redis.conf and sentinel.conf.
fn shown() -> [Vec<String>; 2] {
    let page = repository().join("docs/operating.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once("### A safe failover\n").expect("the section");
    let (section, _) = section.split_once("\n### ").expect("the next section");
    let blocks: Vec<Vec<String>> = section
        .split("```text\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .map(|block| block.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
        .collect();
    blocks.try_into().expect("two blocks")
}

/// A server with the lines of redis.conf. If `primary` is given, the server is a replica of `primary`.
fn start(lines: &[String], primary: Option<&Server>) -> Server {
    // The default user may neither replicate nor promote. So replication and failover work only if the servers and
    // Sentinels log in as the page says.
    let mut setup = Setup::new().config("user default on nopass ~* &* +@all -psync -slaveof");
    for line in lines {
        let line = line.replace("PASSWORD", PASSWORD);
        match primary {
            Some(primary) => {
                setup = setup.config(&line.replace("PRIMARY 6379", &format!("127.0.0.1 {}", primary.port())));
            }
            None if line.starts_with("replicaof ") => {}
            None => setup = setup.config(&line),
        }
    }
    setup.start()
}

fn milliseconds(lines: &[String], name: &str) -> Duration {
    let value = lines.iter().find_map(|line| line.strip_prefix(name)).expect("a line of this name");
    Duration::from_millis(value.trim().parse().expect("milliseconds"))
}

#[test]
fn a_lease_outlives_the_documented_safe_failover() {
    const ELECTION: Duration = Duration::from_secs(3);
    let [servers, sentinels] = shown();
    let lease = milliseconds(&servers, "lock.default-lease ");
    let down_after = milliseconds(&sentinels, "sentinel down-after-milliseconds locks ");
    assert!(lease * 2 / 3 > down_after + ELECTION);
    assert!(milliseconds(&servers, "lock.quarantine ") >= lease);
}

#[test]
fn after_the_documented_safe_failover_the_holder_goes_on_and_others_wait() {
    let [for_servers, for_sentinels] = shown();
    let lease = milliseconds(&for_servers, "lock.default-lease ");
    let mut primary = start(&for_servers, None);
    let replicas = [start(&for_servers, Some(&primary)), start(&for_servers, Some(&primary))];
    for replica in &replicas {
        replica.see_in_sync_with(&primary);
    }
    let sentinels = Sentinels::watch_with(&primary, replicas.len(), |port| {
        let here = format!("127.0.0.1 {port}");
        let real = |line: &String| line.replace("PRIMARY 6379", &here).replace("PASSWORD", PASSWORD);
        for_sentinels.iter().map(real).collect()
    });

    let mut alice = primary.client();
    // The primary has just started, and would not grant the lock during its quarantine.
    assert_eq!(alice.call("CONFIG SET lock.quarantine 0"), Reply::ok());
    let token = alice.acquire("order:42 alice HOLDS 1").token;
    let renewal = format!("LOCK.RENEW order:42 alice TOKEN {token} HOLDS 1");
    // The time is read before the call, so that the measured time is not shorter than the age of the lease.
    let granted = Instant::now();
    assert_eq!(alice.call(renewal.as_str()), Reply::Int(token));
    primary.kill();

    let promoted = sentinels.see_failover_from(primary.port());
    let mut alice = Client::connect(promoted).expect("the new primary");
    eventually("the holder renews at the new primary", || alice.call(renewal.as_str()) == Reply::Int(token));
    assert!(
        granted.elapsed() < lease,
        "the renewal came after the end of the lease: {:?}",
        granted.elapsed()
    );

    let mut bob = Client::connect(promoted).expect("the new primary");
    assert!(bob.call("LOCK.ACQUIRE order:43 bob HOLDS 1").is_null());
    bob.ask("order:43 bob HOLDS 1 BLOCK 0");
    alice.see_blocked(1);
    assert_eq!(alice.call("LOCK.RELEASE order:42 alice HOLDS 0"), Reply::Int(0));
}
