//! Instants and durations without overflow, leases, and the pauses between attempts.

use std::time::{Duration, Instant};

/// A duration that is longer than any process lives, and short enough to be added to any instant.
pub(crate) const FAR_FUTURE: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// The duration in milliseconds, rounded down. At most `i64::MAX`, the largest number that the server accepts.
pub(crate) fn millis(duration: Duration) -> u64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).unsigned_abs()
}

/// The instant `duration` from now, at most [`FAR_FUTURE`] from now.
pub(crate) fn from_now(duration: Duration) -> Instant {
    Instant::now() + duration.min(FAR_FUTURE)
}

/// The time until `instant`. Zero when `instant` has passed.
pub(crate) fn until(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}

/// When a lease ends by this process's clock. This process counts the lease from a time before it sent the request. The
/// server begins to count later. This function also subtracts a thousandth and a millisecond from the lease, because
/// the server's clock may be faster.
pub(crate) fn lease_end(millis: u64, requested: Instant) -> Instant {
    let certain = Duration::from_millis(millis.saturating_sub(millis / 1_000 + 1));
    requested + certain.min(FAR_FUTURE)
}

/// The pause after a number of failed attempts: each pause is twice as long as the previous pause, up to the longest.
/// `first` and `longest` are in milliseconds.
pub(crate) fn pause_after(failures: u32, first: u64, longest: u64) -> Duration {
    Duration::from_millis(longest.min(first << failures.saturating_sub(1).min(16)))
}
