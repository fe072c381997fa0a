//! Runs a driver: a program that sends commands with one client library, and reports their outcomes. See
//! drivers/README.md.

use lockward_tests::{locked, repository};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// The outcome of a command, as the library reports it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The server's reply.
    Reply(Value),
    /// The server's error.
    Refused(String),
    /// An error that does not come from the server. The server may have executed the command or not.
    Failed(String),
}

#[derive(Debug, Deserialize)]
struct Greeting {
    client: String,
    version: String,
}

#[derive(Debug, Deserialize)]
struct Line {
    id: u64,
    #[serde(flatten)]
    outcome: Outcome,
}

type Pending = Arc<Mutex<HashMap<u64, Sender<Outcome>>>>;

/// A running driver. The process ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The library's version.
    pub(crate) version: String,
    child: Child,
    orders: Mutex<ChildStdin>,
    pending: Pending,
    issued: AtomicU64,
}

impl Driver {
    /// Starts a driver that connects to `port`.
    pub(crate) fn start(name: &str, program: &str, port: u16) -> Self {
        // Some libraries log every lost connection. So the log goes to a file, to keep the output of the run short.
        let log = File::create(repository().join(format!("target/retries/{name}.log"))).expect("a log");
        let mut words = program.split(' ');
        let mut child = Command::new(words.next().unwrap_or_default())
            .args(words)
            .arg(port.to_string())
            .current_dir(repository())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{program} does not run ({error}): run `make test-retries`"));
        let orders = Mutex::new(child.stdin.take().expect("a pipe"));
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let greeting: Greeting = read(&mut lines)
            .unwrap_or_else(|| panic!("the driver of {name} ends at once: see target/retries/{name}.log"));
        assert_eq!(greeting.client, name, "this is the driver of another client");
        let pending = Pending::default();
        thread::spawn({
            let pending = Arc::clone(&pending);
            move || pass_on(lines, &pending)
        });
        Self { version: greeting.version, child, orders, pending, issued: AtomicU64::new(0) }
    }

    /// Issues a command. A library without a pool sends the command over this `connection`.
    pub(crate) fn issue(&self, connection: usize, command: &str) -> Receiver<Outcome> {
        let id = self.issued.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = channel();
        locked(&self.pending).insert(id, sender);
        let command: Vec<_> = command.split(' ').collect();
        let order = json!({ "id": id, "connection": connection, "command": command });
        let mut orders = locked(&self.orders);
        orders.write_all(format!("{order}\n").as_bytes()).expect("a driver that listens");
        receiver
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes the outcomes on to the waiting actors. When the driver ends, their channels are closed.
fn pass_on(mut lines: Lines<BufReader<ChildStdout>>, pending: &Pending) {
    while let Some(line) = read::<Line>(&mut lines) {
        let sender = locked(pending).remove(&line.id);
        // The send fails if the actor has ended.
        let _ = sender.expect("an order that was given").send(line.outcome);
    }
    locked(pending).clear();
}

fn read<T: for<'de> Deserialize<'de>>(lines: &mut Lines<BufReader<ChildStdout>>) -> Option<T> {
    let line = lines.next()?.ok()?;
    Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("the driver says {line:?}: {error}")))
}
