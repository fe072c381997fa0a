//! Signals that are passed on to the command.

use std::{io, thread};

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use tokio::sync::mpsc;

const PASSED_ON: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM];

/// A signal that has arrived.
pub(super) struct Signal {
    pub(super) number: i32,
    /// It comes from the terminal, which has sent it to all processes in the foreground: Ctrl-C.
    pub(super) is_from_terminal: bool,
}

/// The signals that arrive, as they come.
pub(super) struct Signals {
    arrived: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// From here on they do not end this process. What was ignored at its start, as nohup(1) does, stays ignored, here and in
    /// the command.
    pub(super) fn listen() -> io::Result<Self> {
        let (sender, arrived) = mpsc::unbounded_channel();
        let mut signals =
            SignalsInfo::<WithOrigin>::new(PASSED_ON.into_iter().filter(|number| !is_ignored(*number)))?;
        thread::Builder::new().name("signals".into()).spawn(move || {
            for origin in signals.forever() {
                let is_from_terminal = matches!(origin.cause, Cause::Kernel);
                if sender.send(Signal { number: origin.signal, is_from_terminal }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { arrived })
    }

    pub(super) async fn next(&mut self) -> Signal {
        match self.arrived.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

fn is_ignored(number: i32) -> bool {
    let mut now = std::mem::MaybeUninit::<nix::libc::sigaction>::uninit();
    // SAFETY: with no new action the call only writes the present one to `now`, which is large enough, and which is read
    // only if the call has succeeded.
    unsafe {
        nix::libc::sigaction(number, std::ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == nix::libc::SIG_IGN
    }
}
