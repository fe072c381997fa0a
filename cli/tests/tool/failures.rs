//! Tests with servers that do not answer, and with servers that cannot answer.

use crate::{run, url};
use lockward_tests::{
    Certificates, Client, Cluster, Fate, Listener, Proxy, Sentinels, Server, Setup, free_port, slot_of,
};
use std::time::{Duration, Instant};

/// Longer than the default of `--patience`, and shorter than two times this default.
const LIMIT: Duration = Duration::from_millis(5_900);
const SILENCE: &str = "no answer within 3s";

/// A cluster of three primaries. Each primary has one lock.
pub(crate) struct Primaries {
    pub(crate) cluster: Cluster,
    /// The lock of each node, in the order of the nodes.
    pub(crate) keys: Vec<String>,
}

impl Primaries {
    pub(crate) fn start() -> Self {
        let cluster = Cluster::start_without_replicas(Setup::new());
        let key_of = |node: &Server| {
            let mut names = (0..).map(|number| format!("k{number}"));
            names.find(|key| cluster.owner(slot_of(key)).port() == node.port()).unwrap()
        };
        let keys: Vec<String> = cluster.nodes().iter().map(key_of).collect();
        for (node, key) in cluster.nodes().iter().zip(&keys) {
            node.client().acquire(&format!("{key} A PX 600000"));
        }
        Self { cluster, keys }
    }

    /// The URL, with the addresses of all nodes.
    pub(crate) fn url(&self) -> String {
        let seeds = self.cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port()));
        format!("redis+cluster://{}", seeds.collect::<Vec<_>>().join(","))
    }

    /// A waiter for each lock.
    pub(crate) fn waiters(&self) -> Vec<Client> {
        let nodes = self.cluster.nodes().iter().zip(&self.keys);
        nodes.map(|(node, key)| node.waiter(&format!("{key} B BLOCK 0"))).collect()
    }

    pub(crate) fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.cluster.nodes()[node].port())
    }
}

/// Runs the tool, and checks that it ends within [`LIMIT`].
#[track_caller]
fn run_in_time(url: &str, arguments: &[&str]) -> (i32, String, String) {
    let begun = Instant::now();
    let result = run(url, arguments);
    assert!(begun.elapsed() < LIMIT, "{arguments:?} took {:?}: {result:?}", begun.elapsed());
    result
}

fn first_words(shown: &str) -> Vec<&str> {
    shown.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
fn ls_shows_the_locks_of_the_primaries_that_answer_and_names_the_others() {
    let mut primaries = Primaries::start();
    let url = primaries.url();
    primaries.cluster.nodes()[1].freeze();
    let mut others = [primaries.keys[0].as_str(), &primaries.keys[2]];
    others.sort_unstable();
    let silent = format!("lockward: cannot reach a Redis server at {}: {SILENCE}\n", primaries.address(1));
    let (code, shown, said) = run_in_time(&url, &["ls"]);
    assert_eq!((code, first_words(&shown), &said), (3, others.to_vec(), &silent));
    let (code, shown, said) = run_in_time(&url, &["ls", "--json"]);
    let keys: Vec<serde_json::Value> = shown
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["key"].take())
        .collect();
    assert_eq!((code, keys, &said), (3, others.map(Into::into).to_vec(), &silent));
    let (code, shown, said) = run_in_time(&url, &["ls", "--top", "5"]);
    assert_eq!((code, shown.as_str(), &said), (3, "no locks\n", &silent));
    primaries.cluster.nodes()[1].thaw();
    primaries.cluster.nodes_mut()[1].kill();
    let (code, shown, said) = run_in_time(&url, &["ls"]);
    assert_eq!((code, first_words(&shown)), (3, others.to_vec()));
    assert!(
        said.starts_with(&format!("lockward: cannot reach a Redis server at {}: ", primaries.address(1)))
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn info_and_break_need_only_the_primary_of_the_key() {
    let primaries = Primaries::start();
    let url = primaries.url();
    primaries.cluster.nodes()[0].freeze();
    primaries.cluster.nodes()[1].freeze();
    let key = primaries.keys[2].as_str();
    let (code, shown, said) = run_in_time(&url, &["info", key]);
    assert_eq!((code, shown.lines().next(), said.as_str()), (0, Some(&*format!("{key} (exclusive)")), ""));
    let (code, shown, said) = run_in_time(&url, &["break", "--yes", key]);
    assert!(code == 0 && shown.starts_with("broken: A held") && said.is_empty(), "{shown}{said}");
    // Two primaries are silent. The tool waits for both at the same time, so it ends within `LIMIT`.
    for command in [["info", &primaries.keys[0]].as_slice(), &["break", "--yes", &primaries.keys[0]]] {
        let (code, shown, said) = run_in_time(&url, command);
        assert_eq!((code, shown.as_str()), (2, ""), "{said}");
        assert!(said.contains(&primaries.address(0)) && said.contains(SILENCE), "{said}");
    }
}

#[test]
fn without_an_answer_of_any_primary_ls_fails_and_names_all() {
    let primaries = Primaries::start();
    primaries.cluster.nodes().iter().for_each(Server::freeze);
    let (code, shown, said) = run_in_time(&primaries.url(), &["ls"]);
    assert_eq!((code, shown.as_str()), (2, ""));
    for node in 0..3 {
        assert!(said.contains(&primaries.address(node)), "{said}");
    }
}

#[test]
fn a_hung_server_is_an_error_after_the_patience() {
    let server = Server::start();
    server.freeze();
    let url = url(&server);
    let address = format!("127.0.0.1:{}", server.port());
    let said_of = |limit: &str| {
        format!("lockward: cannot reach a Redis server at {address}: no answer within {limit}\n")
    };
    for command in [["ls"].as_slice(), &["info", "k"], &["break", "--yes", "k"], &["watch"], &["demo"]] {
        let (code, shown, said) = run_in_time(&url, command);
        assert_eq!((code, shown.as_str(), said), (2, "", said_of("3s")), "{command:?}");
    }
    let begun = Instant::now();
    assert_eq!(run(&url, &["ls", "--patience", "200ms"]), (2, String::new(), said_of("200ms")));
    assert!(begun.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_server_that_hangs_during_a_long_reply_is_an_error_after_the_patience() {
    let server = Server::start();
    let mut client = server.client();
    for number in 0..500 {
        client.acquire(&format!("k{number} A PX 600000"));
    }
    // The proxy drops the replies to LOCK.INFO, which ls sends in one pipeline.
    let proxy = Proxy::start(server.port(), |request| {
        let is_info = request[0].text().eq_ignore_ascii_case("LOCK.INFO");
        if is_info { Fate::Silence(Duration::from_secs(60)) } else { Fate::Carried }
    });
    let (code, shown, said) = run_in_time(&format!("redis://127.0.0.1:{}", proxy.port()), &["ls"]);
    assert!(code == 2 && shown.is_empty() && said.contains(SILENCE), "{said}");
}

#[test]
fn a_silent_sentinel_is_skipped_and_silent_sentinels_are_an_error() {
    let primary = Server::start();
    let sentinels = Sentinels::watch(&primary, 0);
    let [first, second, third] = sentinels.all() else { panic!("three Sentinels") };
    first.freeze();
    second.freeze();
    primary.client().acquire("k A PX 600000");
    let begun = Instant::now();
    for command in [["ls"].as_slice(), &["info", "k"], &["break", "--yes", "k"]] {
        let (code, _, said) = run(&sentinels.url(), command);
        assert_eq!((code, said.as_str()), (0, ""), "{command:?}");
    }
    // The tool asks all Sentinels at the same time, so it does not wait for the silent Sentinels.
    assert!(begun.elapsed() < Duration::from_secs(3));
    third.freeze();
    let (code, _, said) = run_in_time(&sentinels.url(), &["ls"]);
    assert!(code == 2 && said.matches(SILENCE).count() == 3 && said.lines().count() == 1, "{said}");
}

#[test]
fn a_replica_is_reported_because_it_does_not_know_the_waiters() {
    let (primary, _a, _b) = Server::start_contended();
    let replica = Server::start_replica_of(&primary);
    let warning = format!(
        "lockward: the server at 127.0.0.1:{} is a replica, so it does not know the waiters. Its primary is 127.0.0.1:{}\n",
        replica.port(),
        primary.port()
    );
    for command in [["ls"].as_slice(), &["ls", "--top", "5"], &["info", "lock"]] {
        let (code, _, said) = run(&url(&replica), command);
        assert_eq!((code, said), (0, warning.clone()), "{command:?}");
    }
    let (code, _, said) = run(&url(&replica), &["break", "--yes", "lock"]);
    assert!(code == 2 && said.starts_with(&warning) && said.contains("READONLY"), "{said}");
}

#[test]
fn a_missing_password_is_reported_so() {
    let server = Server::start();
    server.client().call("CONFIG SET requirepass secret");
    let wanted = format!("lockward: the server at 127.0.0.1:{} needs a password\n", server.port());
    for command in [["ls"].as_slice(), &["info", "k"], &["break", "--yes", "k"], &["watch"], &["demo"]] {
        assert_eq!(run(&url(&server), command), (2, String::new(), wanted.clone()), "{command:?}");
    }
}

#[test]
fn a_wrong_password_is_reported_so() {
    let server = Server::start();
    let url = format!("redis://u:wrong@127.0.0.1:{}", server.port());
    for command in [["ls"].as_slice(), &["info", "k"], &["break", "--yes", "k"], &["watch"], &["demo"]] {
        let (code, _, said) = run(&url, command);
        assert!(
            code == 2 && said.contains("WRONGPASS invalid username-password pair"),
            "{command:?}: {said}"
        );
    }
}

#[test]
fn a_password_that_the_server_does_not_need_is_no_error() {
    let server = Server::start();
    let url = format!("redis://:unused@127.0.0.1:{}", server.port());
    for command in [["run", "k", "true"].as_slice(), &["ls"]] {
        let (code, _, said) = run(&url, command);
        assert_eq!((code, said.as_str()), (0, ""), "{command:?}");
    }
}

#[test]
fn a_full_server_is_reported_so() {
    let server = Server::start();
    let mut only = server.client();
    only.call("CONFIG SET maxclients 1");
    let at = format!("the server at 127.0.0.1:{}", server.port());
    let wanted = format!("lockward: {at} refused a command: ERR max number of clients reached\n");
    for command in [["ls"].as_slice(), &["info", "k"], &["break", "--yes", "k"], &["watch"], &["demo"]] {
        assert_eq!(run(&url(&server), command), (2, String::new(), wanted.clone()), "{command:?}");
    }
}

#[test]
fn the_tls_options_name_the_certificates() {
    let (certificates, port) = (Certificates::new(), free_port());
    let server = Setup::new().tls(&certificates, port).start();
    let [ca, certificate, key] = certificates.files().map(|file| file.display().to_string());
    let url = format!("rediss://127.0.0.1:{port}");
    let options = ["--cacert", &ca, "--cert", &certificate, "--key", &key];
    let lockward = |more: &[&str]| run(&url, &[&options[..], more].concat());
    assert_eq!(lockward(&["run", "k", "-c", "exit 7"]).0, 7);
    server.client().acquire("k A PX 600000");
    for (command, wanted) in
        [(["ls"].as_slice(), "\nk "), (&["info", "k"], "\nA "), (&["break", "--yes", "k"], "broken: A ")]
    {
        let (code, shown, said) = lockward(command);
        assert!(code == 0 && shown.contains(wanted), "{command:?}: {shown}{said}");
    }
    for (options, wanted) in [
        (["--cacert", &certificate].as_slice(), "invalid peer certificate"),
        (&["--cacert", &ca], "received fatal alert"),
        (&["--cacert", &ca, "--cert", &ca, "--key", &key], "keys may not be consistent"),
    ] {
        let (code, _, said) = run(&url, &[options, &["ls"]].concat());
        let begins =
            said.starts_with(&format!("lockward: cannot reach a Redis server at 127.0.0.1:{port}: "));
        assert!(code == 2 && begins && said.contains(wanted), "{options:?}: {said}");
    }
}

#[test]
fn a_server_without_the_module_is_reported_so() {
    let server = Setup::without_module().start();
    let wanted =
        format!("lockward: the server at 127.0.0.1:{} does not have the Lockward module\n", server.port());
    for command in [["ls"].as_slice(), &["info", "k"], &["break", "--yes", "k"], &["watch"], &["demo"]] {
        assert_eq!(run(&url(&server), command), (2, String::new(), wanted.clone()), "{command:?}");
    }
}

#[test]
fn control_characters_of_a_servers_error_are_escaped() {
    let server = Setup::without_module().start();
    // The server's error names the arguments.
    let (_, _, error) = run(&url(&server), &["run", "k\x1b[2J", "true"]);
    assert_eq!(error.matches(r"k\x1b[2J").count(), 2, "{error:?}");
}

#[test]
fn a_server_that_loads_its_data_is_reported_so() {
    // This port replies as a server that is loading.
    let server = Listener::start(|mut stream| {
        std::thread::spawn(move || {
            loop {
                use std::io::{Read, Write};
                let mut request = [0; 4096];
                let size = stream.read(&mut request).unwrap_or(0);
                let commands = request[..size].iter().filter(|byte| **byte == b'*').count();
                let reply = "-LOADING Redis is loading the dataset in memory\r\n".repeat(commands);
                if size == 0 || stream.write_all(reply.as_bytes()).is_err() {
                    return;
                }
            }
        });
    });
    let url = format!("redis://127.0.0.1:{}", server.port());
    for command in [["ls"].as_slice(), &["info", "k"], &["break", "--yes", "k"], &["watch"], &["demo"]] {
        let (code, shown, said) = run(&url, command);
        assert_eq!((code, shown.as_str()), (2, ""), "{command:?}");
        assert!(said.contains(": LOADING Redis is loading the dataset in memory\n"), "{said}");
    }
}
