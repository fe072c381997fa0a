//! Tests of the errors and exit codes of `lockward demo`.

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::{env, fs, process};

/// A redis-server without the module, on a Unix socket.
struct Server {
    child: Child,
    folder: PathBuf,
    // The server writes its log to this pipe until it ends.
    _log: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("lockward-cli-{}-{name}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", "socket", "--dir"])
            .arg(&folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready =
            log.by_ref().map_while(Result::ok).any(|line| line.contains("ready to accept connections"));
        assert!(ready, "redis-server ended before it was ready");
        Self { child, folder, _log: log }
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.join("socket").display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockward")).arg("demo").args(arguments).output().unwrap()
}

/// Checks that the demo failed with one line on stderr and no other output; returns the line.
fn error_line(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn an_unreachable_server_is_one_error_line() {
    let line = error_line(&demo(&["--url", "redis+unix:///nonexistent/socket"]));
    assert!(line.starts_with("lockward: cannot reach a Redis server at /nonexistent/socket"), "{line}");
    assert!(line.contains("make run"), "{line}");
}

#[test]
fn a_password_is_not_shown() {
    let line = error_line(&demo(&["--url", "redis+unix:///nonexistent/socket?pass=hidden"]));
    assert!(!line.contains("hidden"), "{line}");
}

#[test]
fn a_server_without_the_module_is_one_error_line() {
    let server = Server::start("without-module");
    let line = error_line(&demo(&["--url", &server.url()]));
    assert!(line.contains("does not have the Lockward module"), "{line}");
    assert!(line.contains("make run"), "{line}");
}

#[test]
fn usage_errors_exit_with_2() {
    assert_eq!(demo(&["--clients", "1"]).status.code(), Some(2));
}
