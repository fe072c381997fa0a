//! Tests that run the tool as a process, against real servers.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test panics"
)]

mod demo;
mod failures;
mod read;
mod run;
mod terminal;
mod top;
mod watch;

use lockward_tests::{Server, soon};
use std::io::PipeWriter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Output};

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

/// The tool without a terminal, as cron and service managers start it.
fn lockward(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    // A shell that starts the tests in the background makes them ignore SIGINT and SIGQUIT. The tool must not ignore these
    // signals.
    command
        .args(["env", "--default-signal", env!("CARGO_BIN_EXE_lockward")])
        .args(arguments)
        .env("LOCKWARD_URL", url);
    command
}

/// Runs the tool. Returns the exit code, standard output and standard error.
fn run(url: &str, arguments: &[&str]) -> (i32, String, String) {
    output(&mut lockward(url, arguments))
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().expect("an exit code"), text(stdout), text(stderr))
}

/// A pipe whose reader is gone.
fn closed_pipe() -> PipeWriter {
    std::io::pipe().unwrap().1
}

/// A process that is killed when this value is dropped.
struct Process(Child);

impl Process {
    fn send(&self, signal: &str) {
        send_signal(signal, &self.0.id().to_string());
    }

    /// Waits until the process ends. Returns its exit code.
    #[track_caller]
    fn code(&mut self) -> Option<i32> {
        soon("the process ends", || self.0.try_wait().unwrap()).code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn send_signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").arg(format!("-{signal}")).arg(pid).status().unwrap().success());
}

/// Waits until `find` finds something in the text, and returns it. The message of a failure shows the text.
#[track_caller]
fn soon_in<T>(wanted: &str, text: impl Fn() -> String, find: impl Fn(&str) -> Option<T>) -> T {
    let found = catch_unwind(AssertUnwindSafe(|| soon(wanted, || find(&text()))));
    found.unwrap_or_else(|_| panic!("{wanted:?} is not in\n{}", text()))
}
