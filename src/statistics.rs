//! What INFO lock counts: what this server has decided since it was started, or since CONFIG RESETSTAT.
//!
//! A replica counts nothing of what its primary decides. What steps come to is counted where that is decided, in
//! [`Counters`]; here is what never gets so far, or is no step.
//!
//! The server tells no module of CONFIG RESETSTAT. It sets counts of its own back, and that is looked for when INFO
//! is asked for, and ten times a second: what is counted until it is seen goes with the rest.

use crate::server::info::MonotonicStats;
use lockward_core::{Counters, Instant, Lock, Span};
use std::sync::atomic::{AtomicU64, Ordering};

/// All counts but the errors.
#[derive(Default)]
pub struct Statistics {
    /// What steps have come to.
    pub counters: Counters,
    /// Acquisitions that were answered with null at once.
    pub busy: u64,
    /// Waits that ended with null: at their limit, or by CLIENT UNBLOCK.
    pub wait_limits_reached: u64,
    /// Waits of clients that left, or that the server sent away.
    pub disconnected: u64,
    /// Waits whose place a later request of the same owner took over.
    pub superseded: u64,
    /// Held locks that were evicted, and kept.
    pub kept_from_eviction: u64,
    /// Held locks that the server dropped because its wall clock had jumped, and that were kept.
    pub kept_from_clock_steps: u64,
    server: MonotonicStats,
    next_look: Option<Instant>,
}

/// How many errors were replied: counted apart, as that is done whatever else goes on.
static ERRORS: AtomicU64 = AtomicU64::new(0);

/// An error is replied.
pub fn count_error() {
    ERRORS.store(errors().wrapping_add(1), Ordering::Relaxed);
}

/// How many errors were replied.
pub fn errors() -> u64 {
    ERRORS.load(Ordering::Relaxed)
}

/// One more.
pub const fn count(count: &mut u64) {
    *count = count.wrapping_add(1);
}

/// How long the cron waits between two looks: to read the server's counts takes some 20 µs. A little less than a tenth of a
/// second, which is how often the cron runs by default.
const BETWEEN_LOOKS: Span = match Span::from_millis(90) {
    Some(span) => span,
    None => Span::MAX,
};

impl Statistics {
    /// Whether the cron should look again for a CONFIG RESETSTAT. If so, the next look is due later.
    pub fn look_is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next_look <= Some(now);
        if is_due {
            self.next_look = Some(now.after(BETWEEN_LOOKS));
        }
        is_due
    }

    /// Begins anew if the server's own counts have been set back.
    pub fn compare(&mut self, server: MonotonicStats) {
        if server.is_set_back_from(&self.server) {
            *self = Self::default();
            ERRORS.store(0, Ordering::Relaxed);
        }
        self.server = server;
    }

    /// A lock has been broken: its tenures have ended.
    pub fn broken(&mut self, lock: &Lock, now: Instant) {
        lock.holders().for_each(|holder| self.counters.end(holder.since, now));
    }

    /// The server has dropped a lock whose leases were over.
    pub fn leases_ended(&mut self, lock: &Lock) {
        lock.holders().for_each(|holder| self.counters.lease_ended(holder.since, holder.deadline));
    }
}
