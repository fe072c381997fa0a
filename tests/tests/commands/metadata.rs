//! Command metadata: keys, flags, access control, documentation.

use lockward_tests::{Client, Reply, Server, repository};
use std::fs;
use std::process::Command;

const NAMES: [&str; 6] =
    ["lock.acquire", "lock.release", "lock.renew", "lock.guard", "lock.info", "lock.top"];

#[test]
fn command_info_shows_the_arity_flags_and_keys_of_each_command() {
    let server = Server::start();
    let mut client = server.client();
    let facts = [
        ("lock.acquire", -3, "write", true, 1),
        ("lock.release", -3, "write", false, 1),
        ("lock.renew", -3, "write", false, 1),
        ("lock.guard", -3, "write", false, 1),
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
fn command_getkeys_finds_the_key_of_each_command() {
    let server = Server::start();
    let mut client = server.client();
    for command in [
        "LOCK.ACQUIRE lock A PX 1000 BLOCK 0",
        "LOCK.RELEASE lock A TOKEN 1",
        "LOCK.RENEW lock A",
        "LOCK.GUARD lock 1 PING",
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

/// The syntax and the table on the page of a command.
struct Page {
    syntax: String,
    since: String,
    complexity: String,
    categories: Vec<String>,
}

#[track_caller]
fn page(name: &str) -> Page {
    let text = fs::read_to_string(repository().join(format!("docs/commands/{name}.md"))).unwrap();
    let begin = format!("{} ", name.to_uppercase());
    let (_, syntax) = text.split_once(&format!("```text\n{begin}")).expect(name);
    let syntax = syntax.split("```").next().unwrap_or_default();
    let syntax = syntax.split_whitespace().collect::<Vec<_>>().join(" ");
    let row = |title: &str| {
        let begin = format!("| {title} | ");
        let row = text.lines().find_map(|line| line.strip_prefix(&begin)?.strip_suffix(" |"));
        row.unwrap_or_else(|| panic!("no row {title} on the page of {name}")).to_owned()
    };
    let categories =
        row("ACL categories").split('`').filter(|word| word.starts_with('@')).map(str::to_owned).collect();
    Page { syntax, since: row("Available since"), complexity: row("Time complexity"), categories }
}

/// The syntax of a command as COMMAND DOCS describes it.
fn syntax_of(arguments: &[Reply]) -> String {
    let one = |argument: &Reply| {
        let has = |flag: &str| {
            argument.find("flags").is_some_and(|flags| flags.items().iter().any(|other| other.text() == flag))
        };
        let option = argument.find("token").map(Reply::text);
        let text = match &*argument.field("type").text() {
            "oneof" => {
                let choices = argument.field("arguments").items();
                choices
                    .iter()
                    .map(|choice| syntax_of(std::slice::from_ref(choice)))
                    .collect::<Vec<_>>()
                    .join(" | ")
            }
            "block" => syntax_of(argument.field("arguments").items()),
            "pure-token" => option.unwrap(),
            _ => option.into_iter().chain([argument.field("name").text()]).collect::<Vec<_>>().join(" "),
        };
        let text = if has("multiple") { format!("{text} [{text} ...]") } else { text };
        if has("optional") { format!("[{text}]") } else { text }
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The reply of COMMAND INFO for a command.
#[track_caller]
fn info(client: &mut Client, name: &str) -> Vec<Reply> {
    client.call(["COMMAND", "INFO", name]).items()[0].items().to_vec()
}

fn texts(reply: &Reply) -> Vec<String> {
    reply.items().iter().map(Reply::text).collect()
}

#[test]
fn each_command_page_agrees_with_the_command_metadata() {
    let server = Server::start();
    let mut client = server.client();
    for name in NAMES {
        let page = page(name);
        let docs = client.call(["COMMAND", "DOCS", name]).field(name).clone();
        assert_eq!(page.syntax, syntax_of(docs.field("arguments").items()), "{name}");
        assert_eq!(page.since, docs.field("since").text(), "{name}");
        assert_eq!(page.complexity, docs.field("complexity").text(), "{name}");
        assert_eq!(docs.field("group").text(), "module", "{name}");
        assert_eq!(docs.field("module").text(), "lock", "{name}");
        // Key and owner are the only required arguments.
        let info = info(&mut client, name);
        let required = page.syntax.split(' ').take_while(|word| !word.starts_with('[')).count();
        assert_eq!(info[1], Reply::Int(-1 - i64::try_from(required).unwrap()), "{name}");
        let mut expected = page.categories;
        if !server.has_redis(7, 4) {
            expected.retain(|category| category != "@lock");
        }
        if !server.has_redis(7, 2) {
            expected.clear();
        }
        let mut categories = texts(&info[6]);
        expected.sort();
        categories.sort();
        assert_eq!(categories, expected, "{name}");
    }
}

#[test]
fn redis_cli_shows_the_syntax_of_the_command_page() {
    let server = Server::start();
    let port = server.port().to_string();
    for name in NAMES {
        let help = Command::new("redis-cli").args(["-p", &port, "help", name]).output().unwrap();
        let help = String::from_utf8_lossy(&help.stdout);
        assert!(help.contains(&page(name).syntax.replace(" | ", "|")), "{name}: {help}");
    }
}

#[test]
fn the_key_specification_says_what_each_command_does_to_its_key() {
    let server = Server::start();
    let mut client = server.client();
    let facts = [
        ("LOCK.ACQUIRE lock A", &["RW", "access", "update"][..]),
        ("LOCK.RELEASE lock A", &["RW", "access", "update"]),
        ("LOCK.RENEW lock A", &["RW", "access", "update"]),
        ("LOCK.GUARD lock 1", &["RO", "access"]),
        ("LOCK.INFO lock", &["RO", "access"]),
        ("LOCK._APPLY lock changes", &["RW", "update"]),
        ("LOCK._GATE lock", &["RW", "update"]),
    ];
    for (command, flags) in facts {
        let keys = client.call(format!("COMMAND GETKEYSANDFLAGS {command}"));
        let [key] = keys.items() else { panic!("{command}: {keys:?}") };
        assert_eq!(key.items()[0], Reply::bulk("lock"), "{command}");
        assert_eq!(texts(&key.items()[1]), flags, "{command}");
    }
}

#[test]
fn command_tips_are_set_for_clients_and_proxies() {
    let server = Server::start();
    let mut client = server.client();
    let facts = [
        ("lock.acquire", &["nondeterministic_output"][..]),
        ("lock.release", &[]),
        ("lock.renew", &[]),
        ("lock.guard", &[]),
        ("lock.info", &["nondeterministic_output"]),
        ("lock.top", &["nondeterministic_output", "request_policy:all_shards"]),
        ("lock._apply", &[]),
        ("lock._gate", &[]),
    ];
    for (name, tips) in facts {
        assert_eq!(texts(&info(&mut client, name)[7]), tips, "{name}");
    }
    let listed = client.call("COMMAND LIST FILTERBY MODULE lock");
    let (mut listed, mut all) = (texts(&listed), facts.map(|(name, _)| name));
    listed.sort();
    all.sort();
    assert_eq!(listed, all);
}

#[test]
fn a_user_can_access_only_the_locks_that_its_rules_allow() {
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
fn lock_top_is_admin_and_dangerous_if_modules_can_set_categories() {
    let server = Server::start();
    if !server.has_redis(7, 2) {
        return; // before Redis 7.2 a module cannot set ACL categories
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
