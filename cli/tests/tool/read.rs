//! Tests of `lockward ls`, `info`, `break`, `completions` and `man`.

use crate::{run, url};
use lockward_tests::{Reply, Server, free_port};

#[test]
fn ls_shows_each_lock_and_nothing_else() {
    let (server, _a, _b) = Server::start_contended();
    let mut client = server.client();
    assert_eq!(client.call("SET other value"), Reply::ok());
    client.acquire("free C PX 600000");
    let (code, shown, _) = run(&url(&server), &["ls"]);
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((code, rows.len()), (0, 3), "{shown}");
    assert_eq!(rows[0], ["LOCK", "HOLDER", "HOLDS", "LEASE", "LEFT", "WAITERS"]);
    assert_eq!((rows[1][0], rows[1][1], rows[1].last()), ("free", "C", Some(&"0")));
    assert_eq!((rows[2][0], rows[2][1], rows[2].last()), ("lock", "A", Some(&"1")));
}

#[test]
fn ls_finds_a_lock_among_many_keys() {
    let server = Server::start();
    let mut client = server.client();
    client.call("DEBUG POPULATE 20000");
    for number in 0..2_500 {
        client.acquire(&format!("order:{number} A PX 600000"));
    }
    client.acquire("invoice A PX 600000");
    let shown = |arguments: &[&str]| run(&url(&server), arguments).1.lines().count() - 1;
    assert_eq!(shown(&["ls"]), 2_501);
    assert_eq!(shown(&["ls", "order:*"]), 2_500);
    assert_eq!(shown(&["ls", "inv*"]), 1);
}

#[test]
fn ls_without_locks_prints_no_locks() {
    let server = Server::start();
    assert_eq!(run(&url(&server), &["ls"]), (0, "no locks\n".into(), String::new()));
    assert_eq!(run(&url(&server), &["ls", "--json"]), (0, String::new(), String::new()));
}

#[test]
fn ls_top_shows_only_locks_with_waiters() {
    let (server, _a, _b) = Server::start_contended();
    server.client().acquire("free C PX 600000");
    let shown = run(&url(&server), &["ls", "--top", "5"]).1;
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(shown.contains("lock  A "), "{shown}");
}

#[test]
fn json_is_one_line_for_each_lock() {
    let (server, _a, _b) = Server::start_contended();
    let token = server.client().holder("lock").token;
    let shown = run(&url(&server), &["ls", "--json"]).1;
    let lock: serde_json::Value = serde_json::from_str(shown.trim_end()).unwrap();
    assert_eq!((&lock["key"], &lock["waiters"]), (&"lock".into(), &1.into()));
    assert_eq!((&lock["holders"][0]["owner"], &lock["holders"][0]["token"]), (&"A".into(), &token.into()));
    assert!(lock["holders"][0]["lease_left"].as_u64().unwrap() > 500_000);
}

#[test]
fn info_shows_holder_and_queue() {
    let (server, _a, _b) = Server::start_contended();
    let token = server.client().holder("lock").token;
    let (code, shown, _) = run(&url(&server), &["info", "lock"]);
    assert_eq!(code, 0);
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[3][..3], ["A", "1", &token.to_string()], "{shown}");
    assert_eq!(rows[6][..2], ["1", "B"], "{shown}");
    let json = run(&url(&server), &["info", "--json", "lock"]).1;
    let lock: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&lock["queue"][0]["owner"], &lock["queue"][0]["wait_left"]),
        (&"B".into(), &serde_json::Value::Null)
    );
}

#[test]
fn info_counts_the_waiters_that_it_does_not_show() {
    let (server, _a, _b) = Server::start_contended();
    let _more = server.waiters("lock", ["C", "D"]);
    let shown = run(&url(&server), &["info", "--waiters", "1", "lock"]).1;
    assert!(shown.ends_with("and 2 more\n"), "{shown}");
}

#[test]
fn info_of_a_free_lock_exits_with_1() {
    let server = Server::start();
    assert_eq!(run(&url(&server), &["info", "k"]), (1, "nobody holds k\n".into(), String::new()));
    assert_eq!(run(&url(&server), &["info", "--json", "k"]), (1, "null\n".into(), String::new()));
}

#[test]
fn control_characters_in_names_are_escaped() {
    let server = Server::start();
    server.client().call([b"LOCK.ACQUIRE".as_slice(), b"k\x1b[2J", b"me\n\xff", b"PX", b"600000"]);
    let shown = run(&url(&server), &["ls"]).1;
    assert!(shown.contains(r"k\x1b[2J  me\x0a\xff "), "{shown:?}");
}

#[test]
fn break_hands_the_lock_to_the_first_waiter() {
    let (server, mut a, mut b) = Server::start_contended();
    let token = server.client().holder("lock").token;
    let (code, shown, _) = run(&url(&server), &["break", "--yes", "lock"]);
    let next = b.reply().grant().token;
    let said = format!("broken: A held lock with token {token}\nnow B holds it with token {next}\n");
    assert_eq!((code, shown), (0, said));
    assert!(matches!(a.call("LOCK.RENEW lock A"), Reply::Error(said) if said.starts_with("NOTHELD")));
}

#[test]
fn break_needs_yes_without_a_terminal() {
    let (server, _a, _b) = Server::start_contended();
    let (code, _, said) = run(&url(&server), &["break", "lock"]);
    assert_eq!(code, 2);
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(server.client().owner("lock"), Some("A".to_owned()));
}

#[test]
fn break_of_a_free_lock_exits_with_1() {
    let server = Server::start();
    assert_eq!(run(&url(&server), &["break", "-y", "k"]), (1, "nobody holds k\n".into(), String::new()));
}

#[test]
fn a_key_of_another_type_is_an_error() {
    let server = Server::start();
    assert_eq!(server.client().call("SET k value"), Reply::ok());
    for arguments in [["info", "k"].as_slice(), &["break", "--yes", "k"]] {
        let said = "lockward: k is not a lock: the key has another type\n";
        assert_eq!(run(&url(&server), arguments), (2, String::new(), said.to_owned()));
    }
    assert_eq!(server.client().call("GET k"), Reply::bulk("value"));
}

#[test]
fn an_unreachable_server_exits_with_2() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let (code, _, said) = run(&url, &["ls"]);
    assert_eq!(code, 2);
    assert!(said.starts_with("lockward: cannot reach a Redis server at 127.0.0.1:"), "{said}");
}

#[test]
fn the_documented_rights_are_sufficient_and_necessary() {
    let docs = include_str!("../../../docs/cli.md");
    let (server, _a, _b) = Server::start_contended();
    let mut client = server.client();
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| `lockward ")?.split_once("` | `+"));
    let mut tried = 0;
    for (arguments, rights) in rows {
        let rights: Vec<&str> = rights.trim_end_matches("` |").split(" +").collect();
        let arguments: Vec<&str> = arguments.split(' ').collect();
        for without in std::iter::once(None).chain(rights.iter().map(Some)) {
            let mut rule = vec!["ACL".to_owned(), "SETUSER".into(), "u".into(), "reset".into()];
            rule.extend(["on".into(), ">secret".into(), "~*".into()]);
            rule.extend(
                rights.iter().filter(|right| Some(*right) != without).map(|right| format!("+{right}")),
            );
            assert_eq!(client.call(&rule[..]), Reply::ok());
            let url = format!("redis://u:secret@127.0.0.1:{}", server.port());
            let (code, _, said) = run(&url, &arguments);
            let succeeds = code == 0 && said.is_empty();
            assert_eq!(succeeds, without.is_none(), "{arguments:?} without {without:?}: {said}");
            tried += 1;
        }
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn it_prints_completions_and_a_manual_page() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run("", &["completions", shell]);
        assert!(code == 0 && script.contains("no-wait"), "{shell}: {script}");
    }
    let (code, page, _) = run("", &["man"]);
    assert!(code == 0 && page.contains(".SH RUN") && page.contains("busy"), "{page}");
}
