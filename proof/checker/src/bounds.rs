//! The bounds of a run: promised times, and the required activity.

use crate::history::{Call, Nanos};

const MS: Nanos = 1_000_000;

/// The bounds for the checks of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How early a lease may seem to end, because times are rounded to milliseconds and two processes read the clock.
    pub tolerance: Nanos,
    /// The longest time from the end of a tenure until the next waiter has read its grant.
    pub handoff: Nanos,
    /// The longest time from the moment when a reply is due until the client has read it.
    pub answer: Nanos,
    /// How long a request may still take effect after its client gave up, and how long a fault may still delay replies
    /// after its end. The check of hand-off times uses this bound. The checks of overlap, tokens and counts do not use
    /// this bound.
    pub settle: Nanos,
    pub minimum: Activity,
}

impl Bounds {
    /// The latest end of a lease of this length that the call may have set; `Nanos::MAX` if the client still waits.
    pub(crate) fn latest_lease_end(&self, call: &Call, lease: Nanos) -> Nanos {
        call.end.map_or(Nanos::MAX, |end| end.saturating_add(self.settle).saturating_add(lease))
    }
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
                shared: 1,
                kept: 1,
                stale_writes: 1,
            },
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub grants: usize,
    /// The number of tenures that began by a hand-off after a release.
    pub handoffs: usize,
    /// The number of tenures that ended without a release.
    pub lease_ends: usize,
    pub faults: usize,
    /// The number of tenures that were held at the same time as another tenure of their lock.
    pub shared: usize,
    /// The number of waits that got the lock at a kept place of their owner.
    pub kept: usize,
    /// The number of stale writes without LOCK.GUARD to the data beside a lock.
    pub stale_writes: usize,
}
