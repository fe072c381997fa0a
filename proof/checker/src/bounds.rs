//! The bounds of a run: promised times, and the required activity.

use crate::history::{Call, Nanos};
use std::collections::BTreeMap;

const MS: Nanos = 1_000_000;

/// The kinds of activity, each with the number of events.
pub type Activity = BTreeMap<&'static str, usize>;

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
    /// The activity that a run needs to prove something.
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
            minimum: Activity::new(),
        }
    }
}
