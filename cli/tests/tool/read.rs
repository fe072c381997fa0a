//! Tests of `lockward ls`, `info`, `break`, `completions` and `man`.

use crate::{closed_pipe, lockward, output, run, url};
use lockward_tests::{Client, Reply, Server, free_port};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The words of each line.
fn words(shown: &str) -> Vec<Vec<&str>> {
    shown.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn ls_shows_each_lock_and_no_other_key() {
    let (server, _a, _b) = Server::start_contended();
    let mut client = server.client();
    assert_eq!(client.call("SET other value"), Reply::ok());
    client.acquire("free C PX 600000");
    let (code, shown, _) = run(&url(&server), &["ls"]);
    let rows = words(&shown);
    assert_eq!((code, rows.len()), (0, 3), "{shown}");
    assert_eq!(rows[0], ["LOCK", "HOLDER", "MODE", "HOLDS", "LEASE", "LEFT", "WAITERS"]);
    assert_eq!((&rows[1][..3], rows[1].last()), (["free", "C", "exclusive"].as_slice(), Some(&"0")));
    assert_eq!((&rows[2][..3], rows[2].last()), (["lock", "A", "exclusive"].as_slice(), Some(&"1")));
}

/// A server with two locks: three readers hold `page`, and 3 of 5 slots of `pool` are taken. D waits for 4 slots of
/// `pool`.
fn start_with_many_holders() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    for owner in ["A", "B", "C"] {
        client.acquire(&format!("page {owner} SHARED PX 600000"));
    }
    client.acquire("pool A SLOTS 5 PX 600000");
    client.acquire("pool B SLOTS 5 WEIGHT 2 PX 600000");
    let mut d = server.client();
    d.ask("pool D SLOTS 6 WEIGHT 4 BLOCK 0");
    client.see_waiters("pool", 1);
    (server, d)
}

#[test]
fn ls_shows_the_mode_and_the_number_of_holders() {
    let (server, _d) = start_with_many_holders();
    let shown = run(&url(&server), &["ls"]).1;
    let rows: Vec<&str> = shown.lines().collect();
    assert!(rows[1].starts_with("page  A and 2 more  shared  "), "{shown}");
    assert!(rows[2].starts_with("pool  A and 1 more  3 of 5  "), "{shown}");
    let json = run(&url(&server), &["ls", "--json", "pool"]).1;
    let lock: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!([&lock["slots"], &lock["weight"], &lock["holding"]], [5, 3, 2]);
    assert_eq!([&lock["holders"][1]["slots"], &lock["holders"][1]["weight"]], [5, 2]);
}

#[test]
fn info_shows_the_mode_of_each_holder_and_waiter() {
    let (server, _d) = start_with_many_holders();
    let (code, shown, _) = run(&url(&server), &["info", "pool"]);
    let rows = words(&shown);
    assert_eq!((code, rows[0].join(" ").as_str()), (0, "pool (3 of 5, 2 holders)"));
    assert_eq!(rows[3][..5], ["A", "1", "of", "5", "1"], "{shown}");
    assert_eq!(rows[4][..5], ["B", "2", "of", "5", "1"], "{shown}");
    assert_eq!(rows[7][..5], ["1", "D", "4", "of", "6"], "{shown}");
    let shown = run(&url(&server), &["info", "--holders", "1", "page"]).1;
    assert!(shown.starts_with("page (shared, 3 holders)\n"), "{shown}");
    assert!(shown.contains("\nand 2 more\n"), "{shown}");
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
fn ls_omits_locks_that_the_user_may_not_read() {
    let (server, mut client, _b) = Server::start_contended();
    client.acquire("other A PX 600000");
    assert_eq!(client.call("ACL SETUSER u on >p ~other +scan +lock.info +lock.top"), Reply::ok());
    let url = format!("redis://u:p@127.0.0.1:{}", server.port());
    let (code, shown, said) = run(&url, &["ls"]);
    let rows = words(&shown);
    assert_eq!((code, rows.len(), rows[1][0], said.as_str()), (0, 2, "other", ""), "{shown}");
    assert_eq!(words(&run(&url, &["ls", "--top", "5"]).1)[1], ["lock", "-", "-", "-", "-", "1"]);
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
    let rows = words(&shown);
    assert_eq!(rows[3][..4], ["A", "exclusive", "1", &token.to_string()], "{shown}");
    assert_eq!(rows[6][..3], ["1", "B", "exclusive"], "{shown}");
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
    // Some terminals take this character for an escape sequence.
    server.client().acquire("\u{9b}2J me PX 600000");
    let json = run(&url(&server), &["ls", "--json", "\u{9b}*"]).1;
    assert!(json.starts_with(r#"{"key":"\u009b2J","#), "{json:?}");
}

#[test]
fn characters_that_reorder_or_hide_text_are_escaped() {
    let server = Server::start();
    // A terminal that reorders text shows this key and this owner as `order:42  alice`.
    server.client().acquire("order:\u{202e}24\u{e0041} al\u{200b}ice PX 600000");
    let shown = run(&url(&server), &["ls"]).1;
    assert!(shown.contains(r"order:\xe2\x80\xae24\xf3\xa0\x81\x81  al\xe2\x80\x8bice "), "{shown:?}");
    let json = run(&url(&server), &["ls", "--json"]).1;
    assert!(json.starts_with(r#"{"key":"order:\u202e24\udb40\udc41","#), "{json:?}");
    let lock: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(lock["key"], "order:\u{202e}24\u{e0041}");
}

#[test]
fn a_huge_name_does_not_widen_all_lines() {
    let server = Server::start();
    let huge = "k".repeat(1_000_000);
    for key in [huge.as_str(), "a", "b"] {
        server.client().acquire(&format!("{key} me PX 600000"));
    }
    let shown = run(&url(&server), &["ls"]).1;
    assert!(shown.contains(&huge));
    assert!(shown.len() < huge.len() + 2_000, "{} bytes", shown.len());
}

#[test]
fn a_pattern_may_have_any_bytes() {
    let server = Server::start();
    server.client().call([b"LOCK.ACQUIRE".as_slice(), b"\xff1", b"me", b"PX", b"600000"]);
    let shown = output(lockward(&url(&server), &["ls"]).arg(OsStr::from_bytes(b"\xff*"))).1;
    assert!(shown.contains(r"\xff1  me "), "{shown:?}");
}

#[test]
fn an_output_that_nobody_reads_is_no_error() {
    let (server, _a, _b) = Server::start_contended();
    for arguments in [["ls"].as_slice(), &["info", "lock"], &["demo"], &["completions", "bash"], &["man"]] {
        let (code, _, said) = output(lockward(&url(&server), arguments).stdout(closed_pipe()));
        assert_eq!((code, said.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn break_ends_all_tenures_even_if_nobody_reads_its_output() {
    let (server, _d) = start_with_many_holders();
    let (code, _, said) = output(lockward(&url(&server), &["break", "-y", "page"]).stdout(closed_pipe()));
    assert_eq!((code, said.as_str()), (0, ""));
    assert_eq!(server.client().info("page"), None);
}

#[test]
fn break_hands_the_lock_to_the_first_waiter() {
    let (server, mut a, mut b) = Server::start_contended();
    let token = server.client().holder("lock").token;
    let (code, shown, _) = run(&url(&server), &["break", "--yes", "lock"]);
    b.reply().grant();
    let said = format!("broken: A held lock with token {token}\nnow held by B\n");
    assert_eq!((code, shown), (0, said));
    assert!(matches!(a.call("LOCK.RENEW lock A"), Reply::Error(said) if said.starts_with("NOTHELD")));
}

#[test]
fn break_ends_the_tenures_of_all_holders() {
    let (server, mut d) = start_with_many_holders();
    let (code, shown, _) = run(&url(&server), &["break", "--yes", "pool"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!((code, lines.len()), (0, 3), "{shown}");
    assert!(lines[0].starts_with("broken: A held pool with token "), "{shown}");
    assert!(lines[1].starts_with("broken: B held pool with token "), "{shown}");
    assert_eq!(lines[2], "now held by D");
    d.reply().grant();
}

#[test]
fn break_ends_only_the_tenure_of_a_named_owner() {
    let (server, _d) = start_with_many_holders();
    let (code, shown, _) = run(&url(&server), &["break", "--yes", "--owner", "B", "page"]);
    assert_eq!(code, 0);
    assert!(shown.starts_with("broken: B held page with token "), "{shown}");
    assert!(shown.ends_with("\nnow held by A and 1 more\n"), "{shown}");
    let absent = (1, "B does not hold page\n".to_owned(), String::new());
    assert_eq!(run(&url(&server), &["break", "--yes", "--owner", "B", "page"]), absent);
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
    for arguments in [["break", "k"].as_slice(), &["break", "-y", "k"]] {
        assert_eq!(run(&url(&server), arguments), (1, "nobody holds k\n".into(), String::new()));
    }
}

#[test]
fn a_key_of_another_type_is_an_error() {
    let server = Server::start();
    assert_eq!(server.client().call("SET k value"), Reply::ok());
    for arguments in [["info", "k"].as_slice(), &["break", "--yes", "k"]] {
        let (code, shown, said) = run(&url(&server), arguments);
        assert!(code == 2 && shown.is_empty() && said.contains("refused a command: WRONGTYPE "), "{said}");
    }
    assert_eq!(server.client().call("GET k"), Reply::bulk("value"));
}

#[test]
fn the_url_may_stand_before_the_subcommand() {
    let (server, _a, _b) = Server::start_contended();
    let other = format!("redis://127.0.0.1:{}", free_port());
    for arguments in [["--url", &url(&server), "info", "lock"], ["info", "--url", &url(&server), "lock"]] {
        let (code, shown, _) = run(&other, &arguments);
        assert!(code == 0 && shown.starts_with("lock (exclusive)"), "{arguments:?}: {shown}");
    }
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
fn completions_and_man_print_their_texts() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run("", &["completions", shell]);
        assert!(code == 0 && script.contains("no-wait"), "{shell}: {script}");
    }
    let (code, page, _) = run("", &["man"]);
    assert!(code == 0 && page.contains(".SH RUN") && page.contains("busy"), "{page}");
}
