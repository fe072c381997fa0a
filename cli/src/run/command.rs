//! The command, from its start to its end.
//!
//! Where there is a terminal, the command stays in this process's group, so that Ctrl-C, Ctrl-Z and pipelines work as if it had been
//! started without lockward. Where there is none, it gets a group of its own: then what it has started itself is reached too.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use std::{io, process};

use lockward_client::Loss;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::{Instant, sleep, sleep_until};

use super::signals::Signals;
use crate::failure::code_of_signal;

/// How often to look whether what the command has started itself is gone.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct Command {
    child: Child,
    pid: Pid,
    /// Whether its process id is that of its process group too.
    leads_a_group: bool,
}

/// How it has ended.
pub(super) enum Ending {
    /// By itself, with what is to be this process's exit code.
    Exited(u8),
    /// It was ended, as the lock was lost.
    Lost(Loss),
}

impl Command {
    pub(super) fn start(
        words: &[OsString],
        environment: impl Iterator<Item = (&'static str, Vec<u8>)>,
    ) -> io::Result<Self> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        let mut command = tokio::process::Command::new(program);
        command.args(arguments);
        command.envs(environment.map(|(name, value)| (name, OsStr::from_bytes(&value).to_owned())));
        let leads_a_group = File::open("/dev/tty").is_err();
        if leads_a_group {
            command.process_group(0);
        }
        #[cfg(target_os = "linux")]
        {
            let parent = process::id();
            // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
            unsafe { command.pre_exec(move || die_with(parent)) };
        }
        let child = command.spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no process id"))?;
        Ok(Self { child, pid, leads_a_group })
    }

    /// Passes signals on until it ends. When the lock is lost, it is told to end, and killed after a while.
    pub(super) async fn run(
        mut self,
        lost: impl Future<Output = Loss>,
        grace: Duration,
        signals: &mut Signals,
    ) -> Ending {
        tokio::pin!(lost);
        let loss = loop {
            tokio::select! {
                biased;
                status = self.child.wait() => return Ending::Exited(code(status)),
                loss = &mut lost => break loss,
                signal = signals.next() => self.pass_on(&signal),
            }
        };
        self.send(Signal::SIGTERM);
        // One that was stopped would not hear of it.
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
                signal = signals.next() => self.pass_on(&signal),
            }
        }
        while self.leads_a_group && killpg(self.pid, None).is_ok() {
            if Instant::now() >= end {
                self.send(Signal::SIGKILL);
                break;
            }
            sleep(LOOK).await;
        }
        Ending::Lost(loss)
    }

    fn pass_on(&self, signal: &super::signals::Signal) {
        // The terminal has sent it to the command as well, and many programs take a second one as more urgent.
        if signal.is_from_terminal && !self.leads_a_group {
            return;
        }
        if let Ok(signal) = Signal::try_from(signal.number) {
            self.send(signal);
        }
    }

    fn send(&self, signal: Signal) {
        // It fails where nobody is left to be told.
        let _ = if self.leads_a_group { killpg(self.pid, signal) } else { kill(self.pid, signal) };
    }
}

/// The exit code that says how the command has ended.
fn code(status: io::Result<ExitStatus>) -> u8 {
    let Ok(status) = status else { return super::FAILED };
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(super::FAILED),
        (None, Some(signal)) => code_of_signal(signal),
        (None, None) => super::FAILED,
    }
}

/// Lets the process that will be the command be killed when `parent` is, however that happens.
#[cfg(target_os = "linux")]
fn die_with(parent: u32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // It may have died before.
    if u32::try_from(nix::unistd::getppid().as_raw()) == Ok(parent) {
        return Ok(());
    }
    Err(io::Error::from(io::ErrorKind::BrokenPipe))
}
