//! Signals that tell the driver to end. It then ends the processes that it has started.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Why a step was not done.
#[derive(Clone, Debug)]
pub enum Stopped {
    /// It failed, for this reason.
    Failed(String),
    /// The driver was told to end.
    Interrupted,
}

impl Stopped {
    /// A failure.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP only set a flag.
pub fn note_signals() {
    extern "C" fn note(_: libc::c_int) {
        ASKED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores into an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

/// Whether to continue.
///
/// # Errors
/// When one of these signals has arrived.
pub fn check() -> Result<(), Stopped> {
    if ASKED.load(Ordering::Relaxed) { Err(Stopped::Interrupted) } else { Ok(()) }
}
