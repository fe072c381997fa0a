//! Instants and durations without overflow, leases, and the pauses between attempts.

use std::time::{Duration, Instant};

/// This is longer than any process lives, and short enough to be added to any instant.
pub(crate) const FAR_FUTURE: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Whole milliseconds, rounded down.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The instant `duration` from now, and never later than [`FAR_FUTURE`].
pub(crate) fn from_now(duration: Duration) -> Instant {
    Instant::now() + duration.min(FAR_FUTURE)
}

/// How long it is until `instant`. Zero when it has passed.
pub(crate) fn until(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}

/// When a lease ends by this process's clock. It counts from before the request was sent. The server begins to count
/// later. It is shorter by a thousandth and a millisecond, because the server's clock may be faster.
pub(crate) fn lease_end(millis: u64, requested: Instant) -> Instant {
    let certain = Duration::from_millis(millis.saturating_sub(millis / 1_000 + 1));
    requested + certain.min(FAR_FUTURE)
}

/// The pause after so many failed attempts: each is twice the one before, up to the longest. In milliseconds.
pub(crate) fn pause_after(failures: u32, first: u64, longest: u64) -> Duration {
    Duration::from_millis(longest.min(first << failures.saturating_sub(1).min(16)))
}
