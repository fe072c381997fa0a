//! Processes that end with the value that stands for them.

use crate::peers::interrupts::{self, Stopped};
use crate::server::die_with;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A process and what it starts: a process group of its own, so that a ^C reaches only the driver. It ends when this goes
/// out of scope, and is killed with the thread that started it.
#[derive(Debug)]
pub struct Group {
    child: Child,
}

impl Group {
    /// Starts it.
    ///
    /// # Errors
    /// When it does not run.
    pub fn start(command: &mut Command) -> Result<Self, Stopped> {
        let parent = process::id();
        // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
        unsafe { command.process_group(0).pre_exec(move || die_with(parent)) };
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn();
        child
            .map(|child| Self { child })
            .map_err(|error| Stopped::failed(format!("{name} does not run: {error}")))
    }

    /// The id of the process, which is the group's too.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it has not within `limit`, or the driver is asked to end.
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

    fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        // SAFETY: reads nothing. The child leads its group, and has not been waited for, or its group still has members.
        let status = unsafe { libc::kill(-self.child.id().cast_signed(), signal) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.ended().is_none() && self.signal(libc::SIGTERM).is_ok() {
            let deadline = Instant::now() + GRACE;
            while self.ended().is_none() && Instant::now() < deadline {
                thread::sleep(LOOK_EVERY);
            }
        }
        // Whoever is left of the group; there may be nobody.
        let _ = self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }
}

/// The last lines of a file, in one.
pub fn last_lines(file: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(5)..].join(" / ");
    if last.is_empty() { "it says nothing".to_owned() } else { last }
}
