//! `lockward watch`: reports changes of locks as they happen.
//!
//! A listener at each primary receives keyspace events and reads the locks that the events name. The history compares
//! each reading of a lock with the previous reading. The main thread prints the changes.
//!
//! The channel to the main thread is bounded. If the output is blocked, the listeners stop reading, and the servers
//! close the connections when their output buffers reach `client-output-buffer-limit pubsub`. The supervisor then
//! reports the loss of each connection and connects again.

mod fact;
mod history;
mod listener;
mod published;
mod supervisor;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;

use crate::failure::Failure;
use crate::json;
use crate::primaries::Servers;
use fact::Fact;
use listener::Shared;

/// How many lines may wait for the output.
const LINES: usize = 1_000;

/// While there is nothing to print, how often to check whether the reader has closed the output.
const IDLE: Duration = Duration::from_millis(500);

/// Show changes of locks as they happen
///
/// watch prints one line for each change, with the owner and the token: acquired, released, lost (the lease is over) or
/// broken (deleted, renamed, overwritten). The first lines show the locks that are held at the start. watch
/// continues after a failover or a restart of a server, and says that events may have been missed. Ctrl-C ends watch.
#[derive(Args)]
pub(crate) struct Watch {
    /// Only locks whose key matches this pattern, as in KEYS: order:*
    #[arg(value_name = "PATTERN", default_value = "*", hide_default_value = true)]
    pattern: OsString,

    /// Add the missing classes to the setting notify-keyspace-events of each primary
    #[arg(long)]
    configure: bool,

    /// Print one line of JSON for each change
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    servers: Servers,
}

impl Watch {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        // Ctrl-C and a service manager end the program at once. No output is lost, because each line is written at once.
        for signal in [SIGINT, SIGTERM] {
            register_conditional_shutdown(signal, 0, Arc::new(AtomicBool::new(true)))?;
        }
        let (sender, facts) = sync_channel(LINES);
        let shared = Shared {
            pattern: self.pattern.into_vec(),
            configures: self.configure,
            history: Mutex::default(),
            facts: sender,
        };
        supervisor::start(self.servers, Arc::new(shared))?;
        match print(&facts, self.json) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Prints facts until the output is closed.
fn print(facts: &Receiver<Fact>, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    loop {
        match facts.recv_timeout(IDLE) {
            Ok(fact) => {
                let line = if as_json { json::line(&fact).unwrap_or_default() } else { fact.line() };
                out.write_all(format!("{line}\n").as_bytes())?;
            }
            Err(RecvTimeoutError::Timeout) if is_closed(&out)? => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Whether the reader has closed the output.
fn is_closed(out: &impl AsFd) -> io::Result<bool> {
    let mut watched = [PollFd::new(out.as_fd(), PollFlags::empty())];
    poll(&mut watched, PollTimeout::ZERO)?;
    let events = watched.first().and_then(PollFd::revents).unwrap_or(PollFlags::empty());
    Ok(events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL))
}
