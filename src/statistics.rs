//! The counts of INFO lock, since this server was started or since CONFIG RESETSTAT.
//!
//! A replica does not count the decisions of its primary. Core's `Counters` counts the results of decisions. The other
//! counts are in this file.
//!
//! The server does not report CONFIG RESETSTAT to modules, but the command also resets counts of the server. So the
//! module checks the server's counts for each INFO, and ten times a second. The counts between the reset and this check
//! are lost.

use lockward_core::{Instant, Span};
use std::sync::atomic::{AtomicU64, Ordering};

/// All counts except the errors.
#[derive(Default)]
pub struct Statistics {
    /// Acquisitions that were answered with null at once.
    pub busy: u64,
    /// Waits that ended with null, because of CLIENT UNBLOCK or of a wait limit without KEEP.
    pub wait_limits_reached: u64,
    /// Waits that ended because the client disconnected or the server ended the wait.
    pub disconnected: u64,
    /// Waits whose place a later request of the same owner took over.
    pub superseded: u64,
    /// Held locks that were evicted and kept as dropped locks.
    pub kept_from_eviction: u64,
    /// Held locks that the server dropped because its wall clock had jumped, and that the module kept.
    pub kept_from_clock_steps: u64,
    /// The counts of the server that [`crate::server::info::monotonic_stats`] returned last.
    server: [u64; 3],
    next_look: Option<Instant>,
}

/// The number of error replies. This count is not in the state, because errors are also counted while the
/// state is borrowed.
static ERRORS: AtomicU64 = AtomicU64::new(0);

pub fn count_error() {
    ERRORS.store(errors().wrapping_add(1), Ordering::Relaxed);
}

pub fn errors() -> u64 {
    ERRORS.load(Ordering::Relaxed)
}

pub const fn count(count: &mut u64) {
    *count = count.wrapping_add(1);
}

/// The shortest time between two checks in the cron, because a check takes about 20 µs. This time is a little less than
/// the default interval of the cron, a tenth of a second. So by default every run of the cron checks.
const BETWEEN_LOOKS: Span = Span::millis(90);

impl Statistics {
    /// Whether the cron should check again for a CONFIG RESETSTAT. If so, sets the time of the next check.
    pub fn look_is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next_look <= Some(now);
        if is_due {
            self.next_look = Some(now.after(BETWEEN_LOOKS));
        }
        is_due
    }

    /// Resets the statistics if the server's own counts have been set back. Returns whether the statistics were reset.
    pub fn reset_with_server(&mut self, server: [u64; 3]) -> bool {
        let is_reset = server.iter().zip(&self.server).any(|(now, before)| now < before);
        if is_reset {
            *self = Self::default();
            ERRORS.store(0, Ordering::Relaxed);
        }
        self.server = server;
        is_reset
    }
}
