//! The limits that a run must meet: promised times, and the required activity.

use crate::history::Nanos;

const MS: Nanos = 1_000_000;

/// The limits for the checks of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How early a lease may end. Times are rounded to milliseconds, and two processes read the clock.
    pub tolerance: Nanos,
    /// How long it may take until the next waiter has read that it has a freed lock.
    pub handoff: Nanos,
    /// How long it may take until a client has read a reply that is due.
    pub answer: Nanos,
    /// How long a request may still act after its client gave up, and how long a fault may still delay replies. The check of
    /// hand-off times depends on it. The checks of overlap, tokens and counts do not.
    pub settle: Nanos,
    /// The required activity.
    pub minimum: Activity,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            tolerance: 2 * MS,
            handoff: 50 * MS,
            answer: 100 * MS,
            settle: 1_000 * MS,
            minimum: Activity {
                grants: 1,
                handoffs: 1,
                lease_ends: 1,
                faults: 1,
                refused_writes: 1,
                shared: 1,
                kept: 1,
                stale_writes: 1,
            },
        }
    }
}

/// The activity in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Granted acquisitions.
    pub grants: usize,
    /// Tenures that began by hand-off after a release.
    pub handoffs: usize,
    /// Tenures that ended without a release.
    pub lease_ends: usize,
    /// Faults.
    pub faults: usize,
    /// Stale writes that the store refused.
    pub refused_writes: usize,
    /// Tenures that were held together with another one.
    pub shared: usize,
    /// Waits that were granted after an earlier wait of their owner had left its place.
    pub kept: usize,
    /// Stale writes to plain data beside a lock.
    pub stale_writes: usize,
}
