//! Processes that end when their value is dropped.

use crate::peers::interrupts::{self, Stopped};
use lockward_tests::ProcessGroup;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process may take to end after it was told to.
const GRACE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A process and those that it starts, in a process group of their own, so that a ^C reaches only the driver. When this
/// goes out of scope, the group is told to end. If it does not, it is killed.
#[derive(Debug)]
pub struct Group {
    process: ProcessGroup,
}

impl Group {
    /// Starts the command.
    ///
    /// # Errors
    /// When the program does not run.
    pub fn start(command: &mut Command) -> Result<Self, Stopped> {
        let process = ProcessGroup::start(command).map_err(|error| {
            Stopped::failed(format!("{} does not run: {error}", command.get_program().display()))
        })?;
        Ok(Self { process })
    }

    /// The id of the process, which is the group's too.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it does not end within `limit`, or the driver is told to end.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, Stopped> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            interrupts::check()?;
            if Instant::now() >= deadline {
                return Err(Stopped::failed(format!("it had not ended after {} s", limit.as_secs())));
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.ended().is_none() && self.process.signal_all(libc::SIGTERM).is_ok() {
            let deadline = Instant::now() + GRACE;
            while self.ended().is_none() && Instant::now() < deadline {
                thread::sleep(LOOK_EVERY);
            }
        }
    }
}

/// The last lines of a file, joined to one line.
pub fn last_lines(file: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(5)..].join(" / ");
    if last.is_empty() { "it says nothing".to_owned() } else { last }
}
