//! Tests that run the tool as a process, against real servers.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test panics"
)]

mod demo;
mod read;
mod run;
mod terminal;
mod top;
mod watch;

use lockward_tests::Server;
use std::process::{Command, Output};

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

/// The tool without a terminal, as cron and service managers start it.
fn lockward(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    // If a shell has started the tests in the background, they ignore some signals. The tool must not inherit this.
    command
        .args(["env", "--default-signal", env!("CARGO_BIN_EXE_lockward")])
        .args(arguments)
        .env("LOCKWARD_URL", url);
    command
}

/// Runs the tool. Returns the exit code, standard output and standard error.
fn run(url: &str, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = lockward(url, arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().expect("an exit code"), text(stdout), text(stderr))
}
