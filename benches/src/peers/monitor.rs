//! Distinguishes commands of clients from commands of scripts. INFO commandstats counts both without a distinction.
//!
//! MONITOR shows whether a script sent a command, but MONITOR is costly. So MONITOR runs only while the peer program
//! warms up, or longer if there are few commands. The output shows, for each command, how large a share of its calls
//! came from scripts. This share does not change during a job.

use crate::peers::server::connect;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// MONITOR runs at least for this time after the first command. The peer programs warm up for longer.
const LONG_ENOUGH: Duration = Duration::from_millis(900);
/// If there are few commands, MONITOR costs little. So MONITOR runs longer, until it has shown this number of commands.
const LINES_AT_LEAST: usize = 2_000;
/// After this number of commands, MONITOR ends in any case.
const LINES_AT_MOST: usize = 20_000;
/// The commands that do not count: clients send them to set up connections, or this program sends them.
const BESIDE: [&str; 8] = ["client", "hello", "ping", "info", "quit", "script", "command", "config"];

/// How often the commands of one name were seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    from_clients: u64,
    in_scripts: u64,
}

/// Runs MONITOR on a thread until the thread has seen enough commands.
#[derive(Debug)]
pub struct Monitor {
    enough: Arc<AtomicBool>,
    thread: JoinHandle<Parts>,
}

/// The part of the commands that scripts sent, by the name of the command.
#[derive(Clone, Debug, Default)]
pub struct Parts(BTreeMap<String, Seen>);

impl Parts {
    /// The part of the commands of this name that scripts sent, from 0 to 1. Clients send all their commands from the
    /// beginning, but scripts send some commands rarely. So if there are scripts, a command that MONITOR has not shown
    /// counts as a command of scripts.
    pub fn in_scripts(&self, name: &str) -> f64 {
        let Some(seen) = self.0.get(name) else {
            return f64::from(u8::from(self.0.values().any(|seen| seen.in_scripts > 0)));
        };
        seen.in_scripts as f64 / (seen.in_scripts + seen.from_clients).max(1) as f64
    }
}

impl Monitor {
    /// Starts MONITOR on the server at this port.
    pub fn start(port: u16) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        Self { enough, thread: thread::spawn(move || watch(port, &told).unwrap_or_default()) }
    }

    /// Ends MONITOR and returns its result.
    pub fn end(self) -> Parts {
        self.enough.store(true, Ordering::Relaxed);
        self.thread.join().expect("a monitor that comes to its end")
    }
}

fn watch(port: u16, enough: &AtomicBool) -> Option<Parts> {
    let mut stream = connect(port).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
    stream.write_all(b"MONITOR\r\n").ok()?;
    let mut lines = BufReader::new(stream);
    let mut parts = Parts::default();
    let mut line = Vec::new();
    let mut first = None;
    let mut count = 0;
    while !enough.load(Ordering::Relaxed)
        && count < LINES_AT_MOST
        && (count < LINES_AT_LEAST || first.is_none_or(|first: Instant| first.elapsed() < LONG_ENOUGH))
    {
        // After a timeout the next read continues the line.
        if lines.read_until(b'\n', &mut line).is_err() || !line.ends_with(b"\n") {
            continue;
        }
        if let Some((name, scripted)) = command(&String::from_utf8_lossy(&line))
            && !BESIDE.contains(&name.as_str())
        {
            first.get_or_insert_with(Instant::now);
            count += 1;
            let seen = parts.0.entry(name).or_default();
            *if scripted { &mut seen.in_scripts } else { &mut seen.from_clients } += 1;
        }
        line.clear();
    }
    Some(parts)
}

/// The name of the command in a line like `+1700000000.1 [0 lua] "GET" "key"`, and whether a script sent it.
fn command(line: &str) -> Option<(String, bool)> {
    let (source, command) = line.split_once("] \"")?;
    Some((command.split('"').next()?.to_lowercase(), source.ends_with(" lua")))
}
