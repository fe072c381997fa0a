//! Tests of the errors and exit codes of `lockward demo`.

use crate::url;
use lockward_tests::{Reply, Server};
use std::process::{Command, Output};

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockward")).arg("demo").args(arguments).output().unwrap()
}

/// Checks that the demo failed with one line on stderr and without other output. Returns the line.
fn error_line(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn an_unreachable_server_is_one_error_line() {
    let line = error_line(&demo(&["--url", "redis+unix:///nonexistent/socket"]));
    assert!(line.starts_with("lockward: cannot reach a Redis server at /nonexistent/socket"), "{line}");
}

#[test]
fn a_password_is_not_shown() {
    for url in ["redis+unix:///nonexistent/socket?pass=hidden", "redis://u:hidden@["] {
        let line = error_line(&demo(&["--url", url]));
        assert!(!line.contains("hidden"), "{line}");
    }
}

#[test]
fn the_first_error_is_shown() {
    let server = Server::start();
    assert_eq!(server.client().call("ACL SETUSER u on >p ~* +@all -get -del"), Reply::ok());
    let url = format!("redis://u:p@127.0.0.1:{}", server.port());
    let output = demo(&["--url", &url]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("'get'"), "{output:?}");
}

#[test]
fn the_lock_commands_lose_no_update() {
    let server = Server::start();
    let output = demo(&["--url", &url(&server)]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with("LOCK.ACQUIRE BLOCK")).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("5000"), "{text}");
    assert_eq!(server.client().call("DBSIZE"), Reply::Int(0));
}

#[test]
fn usage_errors_exit_with_2() {
    assert_eq!(demo(&["here"]).status.code(), Some(2));
}
