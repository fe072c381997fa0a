//! The results of decisions, as counts and durations.

use crate::histogram::Histogram;
use crate::units::Instant;

/// Counts of the results of decisions, and the durations of waits and tenures. Counts wrap around.
///
/// A tenure begins with a grant (`acquired`) or is restored (`restored`). A tenure ends by a release
/// (`released`), by the end of its lease (`leases_ended`), or in another way that has no counter, for example
/// when the lock's key is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// New tenures, including the tenures that were granted to waiters.
    pub acquired: u64,
    /// Holds that were added to a tenure.
    pub re_entered: u64,
    /// New tenures that were handed to a waiter; `acquired` counts these too.
    pub handed_off: u64,
    /// Tenures whose last hold was released.
    pub released: u64,
    /// Renewals.
    pub renewed: u64,
    /// Tenures that ended because their lease was over.
    pub leases_ended: u64,
    /// Tenures that were restored in quarantine.
    pub restored: u64,
    /// The durations of the waits that ended with a grant.
    pub wait_durations: Histogram,
    /// The durations of all tenures that have ended.
    pub tenure_durations: Histogram,
}

impl Counters {
    /// Counts a tenure whose last hold was released.
    #[inline]
    pub(crate) fn release(&mut self, since: Instant, now: Instant) {
        self.released = self.released.wrapping_add(1);
        self.end(since, now);
    }

    /// Counts a tenure whose lease was over at `deadline`.
    pub fn lease_ended(&mut self, since: Instant, deadline: Instant) {
        self.leases_ended = self.leases_ended.wrapping_add(1);
        self.end(since, deadline);
    }

    /// Records the duration of a tenure that has ended, and increments no other counter.
    #[inline]
    pub fn end(&mut self, since: Instant, now: Instant) {
        self.tenure_durations.record(now.micros_since(since));
    }
}
