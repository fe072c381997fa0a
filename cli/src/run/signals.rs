//! The signals that lockward passes on to the command.

use std::sync::Arc;
use std::{io, thread};

use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use tokio::sync::mpsc;

const FORWARDED: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM];

/// A signal that this process received.
pub(super) struct Signal {
    pub(super) number: i32,
    /// Whether the terminal has sent the signal to all foreground processes, as for Ctrl-C.
    pub(super) is_from_terminal: bool,
}

/// A queue of received signals.
pub(super) struct Signals(mpsc::UnboundedReceiver<Signal>);

impl Signals {
    /// Installs handlers, so that the signals do not end this process. A signal that was ignored when lockward started,
    /// as under nohup(1), stays ignored, in lockward and in the command.
    pub(super) fn listen() -> io::Result<Self> {
        // If the parent ignored SIGCHLD, the kernel would discard the exit status of the command.
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let (sender, received) = mpsc::unbounded_channel();
        let mut signals =
            SignalsInfo::<WithOrigin>::new(FORWARDED.into_iter().filter(|number| !is_ignored(*number)))?;
        thread::spawn(move || {
            for origin in signals.forever() {
                // The kernel also sends SIGALRM at the end of a timer, and SIGHUP to the leader of a session. The
                // command does not get these signals.
                let is_from_key = matches!(origin.signal, SIGINT | SIGQUIT);
                let is_from_terminal = is_from_key && matches!(origin.cause, Cause::Kernel);
                if sender.send(Signal { number: origin.signal, is_from_terminal }).is_err() {
                    return;
                }
            }
        });
        Ok(Self(received))
    }

    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

fn is_ignored(number: i32) -> bool {
    let mut now = std::mem::MaybeUninit::<nix::libc::sigaction>::uninit();
    // SAFETY: without a new action, the call only writes the current action to `now`. `now` is large enough, and is
    // read only if the call succeeded.
    unsafe {
        nix::libc::sigaction(number, std::ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == nix::libc::SIG_IGN
    }
}
