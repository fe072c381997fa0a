//! Distinguishes commands of clients from commands of scripts. INFO commandstats counts both without a distinction.
//!
//! MONITOR shows whether a script sent a command, but MONITOR is costly. So MONITOR runs only while the peer program
//! warms up, or longer if there are few commands. The output shows how large a share of the commands came from scripts.
//! This share does not change during a job.

use crate::peers::server::{BESIDE, connect};
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

/// Runs MONITOR on a thread until the thread has seen enough commands.
#[derive(Debug)]
pub struct Monitor {
    enough: Arc<AtomicBool>,
    thread: JoinHandle<f64>,
}

impl Monitor {
    /// Starts MONITOR on the server at this port.
    pub fn start(port: u16) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        Self { enough, thread: thread::spawn(move || watch(port, &told).unwrap_or(0.0)) }
    }

    /// Ends MONITOR. Returns the part of the commands that scripts sent, from 0 to 1.
    pub fn end(self) -> f64 {
        self.enough.store(true, Ordering::Relaxed);
        self.thread.join().expect("a monitor that comes to its end")
    }
}

fn watch(port: u16, enough: &AtomicBool) -> Option<f64> {
    let mut stream = connect(port).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
    stream.write_all(b"MONITOR\r\n").ok()?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    let mut first: Option<Instant> = None;
    let (mut count, mut in_scripts) = (0, 0);
    while !enough.load(Ordering::Relaxed)
        && count < LINES_AT_MOST
        && (count < LINES_AT_LEAST || first.is_none_or(|first| first.elapsed() < LONG_ENOUGH))
    {
        // After a timeout the next read continues the line.
        if lines.read_until(b'\n', &mut line).is_err() || !line.ends_with(b"\n") {
            continue;
        }
        if let Some(is_scripted) = is_scripted(&String::from_utf8_lossy(&line)) {
            first.get_or_insert_with(Instant::now);
            count += 1;
            in_scripts += usize::from(is_scripted);
        }
        line.clear();
    }
    Some(in_scripts as f64 / count.max(1) as f64)
}

/// Whether a script sent the command in a line like `+1700000000.1 [0 lua] "GET" "key"`. `None` if the command does not
/// count.
fn is_scripted(line: &str) -> Option<bool> {
    let (source, command) = line.split_once("] \"")?;
    let name = command.split('"').next()?.to_lowercase();
    (!BESIDE.contains(&&*name)).then(|| source.ends_with(" lua"))
}
