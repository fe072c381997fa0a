//! What steps have come to: counted where it is decided.

use crate::histogram::Histogram;
use crate::units::Instant;

/// How often steps have come to what, and how long it took. Counts wrap around.
///
/// A tenure that has begun (`acquired`, `restored`) has ended in one of two ways that are counted (`released`,
/// `leases_ended`), or has been broken, or goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// New tenures, those of waiters too.
    pub acquired: u64,
    /// Holds that were added to a tenure.
    pub re_entered: u64,
    /// Of the new tenures, those that were handed to a waiter.
    pub handed_off: u64,
    /// Tenures whose last hold was given back.
    pub released: u64,
    /// New leases that were asked for.
    pub renewed: u64,
    /// Tenures that the end of their lease has ended.
    pub leases_ended: u64,
    /// Tenures that were restored in quarantine.
    pub restored: u64,
    /// How long those waited who were granted a hold.
    pub wait_durations: Histogram,
    /// How long tenures lasted that have ended, in whatever way.
    pub tenure_durations: Histogram,
}

impl Counters {
    /// The last hold of a tenure has been given back.
    #[inline]
    pub(crate) fn release(&mut self, since: Instant, now: Instant) {
        self.released = self.released.wrapping_add(1);
        self.end(since, now);
    }

    /// A lease was over at `deadline`, and with it the tenure.
    pub fn lease_ended(&mut self, since: Instant, deadline: Instant) {
        self.leases_ended = self.leases_ended.wrapping_add(1);
        self.end(since, deadline);
    }

    /// A tenure has ended in another way.
    #[inline]
    pub fn end(&mut self, since: Instant, now: Instant) {
        self.tenure_durations.record(now.micros_since(since));
    }
}
