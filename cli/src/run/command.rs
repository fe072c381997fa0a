//! The command that runs under the lock.
//!
//! With a terminal, the command stays in the process group of lockward, so Ctrl-C, Ctrl-Z and pipelines work as without
//! lockward. Without a terminal, the command has its own process group, so signals also reach the processes that the
//! command has started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use std::{io, process};

use lockward_client::Loss;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::{Instant, sleep, sleep_until};

use super::signals::{self, Signals};
use crate::exit_code;

/// How often to check whether the command's process group has ended.
const GROUP_CHECK: Duration = Duration::from_millis(20);

pub(super) struct Command {
    child: Child,
    pid: Pid,
    /// Whether the command has its own process group.
    has_own_group: bool,
}

impl Command {
    pub(super) fn start(words: &[OsString], environment: [(&'static str, &OsStr); 3]) -> io::Result<Self> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).envs(environment);
        let has_own_group = !has_terminal();
        if has_own_group {
            command.process_group(0);
        }
        #[cfg(target_os = "linux")]
        {
            let parent = process::id();
            // SAFETY: between fork and exec the closure only makes system calls. It allocates nothing and takes no lock.
            unsafe { command.pre_exec(move || die_with(parent)) };
        }
        let child = command.spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the process has no id"))?;
        Ok(Self { child, pid, has_own_group })
    }

    /// Waits until the command ends, and passes signals on to it. When the lock is lost, sends SIGTERM, and SIGKILL
    /// after `grace`, and returns `None`. Otherwise returns the exit code.
    pub(super) async fn run(
        mut self,
        lost: impl Future<Output = Loss>,
        grace: Duration,
        signals: &mut Signals,
    ) -> Option<u8> {
        tokio::pin!(lost);
        loop {
            tokio::select! {
                biased;
                status = self.child.wait() => return Some(code(status)),
                _ = &mut lost => break,
                signal = signals.next() => self.forward(&signal),
            }
        }
        self.end(grace, signals).await;
        None
    }

    /// Sends SIGTERM, and SIGKILL after `grace`.
    async fn end(&mut self, grace: Duration, signals: &mut Signals) {
        self.send(Signal::SIGTERM);
        // A stopped process handles SIGTERM only after it continues.
        self.send(Signal::SIGCONT);
        let end = Instant::now() + grace;
        loop {
            tokio::select! {
                biased;
                _ = self.child.wait() => break,
                () = sleep_until(end) => {
                    self.send(Signal::SIGKILL);
                    let _ = self.child.wait().await;
                    break;
                }
                signal = signals.next() => self.forward(&signal),
            }
        }
        while self.has_own_group && killpg(self.pid, None).is_ok() {
            if Instant::now() >= end {
                self.send(Signal::SIGKILL);
                break;
            }
            sleep(GROUP_CHECK).await;
        }
    }

    fn forward(&self, signal: &signals::Signal) {
        // The terminal has already sent this signal to the command. Many programs treat a second signal as more urgent,
        // so lockward does not send the signal again.
        if signal.is_from_terminal && !self.has_own_group {
            return;
        }
        if let Ok(signal) = Signal::try_from(signal.number) {
            self.send(signal);
        }
    }

    fn send(&self, signal: Signal) {
        // The call fails if the process has already ended.
        let _ = if self.has_own_group { killpg(self.pid, signal) } else { kill(self.pid, signal) };
    }
}

/// Whether lockward has a controlling terminal.
pub(super) fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// The exit code for the command's exit status.
fn code(status: io::Result<ExitStatus>) -> u8 {
    let Ok(status) = status else { return exit_code::RUN_FAILED };
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit_code::RUN_FAILED),
        (None, Some(signal)) => exit_code::after_signal(signal),
        (None, None) => exit_code::RUN_FAILED,
    }
}

/// Makes the kernel kill this process when `parent` dies.
#[cfg(target_os = "linux")]
fn die_with(parent: u32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // If the parent has died before the call, the kernel does not kill this process, so the command must not start.
    if u32::try_from(nix::unistd::getppid().as_raw()) == Ok(parent) {
        return Ok(());
    }
    Err(io::Error::from(io::ErrorKind::BrokenPipe))
}
