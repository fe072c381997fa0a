//! Leases: how long they are, and when they end by this process's clock. All lengths are milliseconds.

use crate::error::Error;
use crate::time::{FAR_FUTURE, millis};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the client tries to withdraw a grant whose lease it does not know.
pub(crate) const UNKNOWN_LEASE: Duration = Duration::from_secs(3_600);

/// How long a tenure lasts.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The lease that each renewal asks for.
    millis: AtomicU64,
    pub(crate) is_renewed: bool,
    /// No lease ends after this.
    pub(crate) hold_deadline: Option<Instant>,
}

impl Lease {
    pub(crate) const fn new(millis: u64, is_renewed: bool, hold_deadline: Option<Instant>) -> Self {
        Self { millis: AtomicU64::new(millis), is_renewed, hold_deadline }
    }

    pub(crate) fn millis(&self) -> u64 {
        self.millis.load(Ordering::Relaxed)
    }

    /// Whether the server has refused `refused` milliseconds as too long: its limit was lowered, or another server is the
    /// primary. Later requests ask for the longest lease that it accepts.
    pub(crate) fn shorten_if_too_long(&self, refused: u64, error: &Error) -> bool {
        let longest = error.longest_lease().filter(|longest| *longest < refused);
        if let Some(longest) = longest {
            self.millis.fetch_min(longest, Ordering::Relaxed);
        }
        longest.is_some()
    }

    /// The lease to ask for at `now`. `None` when the hold limit is reached.
    pub(crate) fn to_request_at(&self, now: Instant) -> Option<u64> {
        let left = self.hold_deadline.map_or(u64::MAX, |end| millis(end.saturating_duration_since(now)));
        Some(self.millis().min(left)).filter(|millis| *millis > 0)
    }
}

/// When a lease ends by this process's clock. It counts from before the request was sent, as the server begins to count
/// later. It is shorter by a thousandth and a millisecond, as the server's clock may be faster.
pub(crate) fn lease_end(millis: u64, requested: Instant) -> Instant {
    let certain = Duration::from_millis(millis.saturating_sub(millis / 1_000 + 1));
    requested + certain.min(FAR_FUTURE)
}
