//! Instants and durations without overflow, and the pauses between attempts.

use crate::error::Error;
use redis::RedisError;
use std::io;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longer than any process lives, and short enough to be added to any instant.
pub(crate) const FAR_FUTURE: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Whole milliseconds, rounded down.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The instant `duration` from now, and never later than [`FAR_FUTURE`].
pub(crate) fn from_now(duration: Duration) -> Instant {
    Instant::now() + duration.min(FAR_FUTURE)
}

/// Waits for `future` no longer than `limit`. After that the error is [`Error::Unreachable`].
pub(crate) async fn within<T>(
    limit: Duration,
    future: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, future).await.unwrap_or_else(|_| Err(timed_out()))
}

pub(crate) fn timed_out() -> Error {
    Error::Unreachable(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)))
}

/// The pauses between attempts: each is twice the one before, up to the longest.
pub(crate) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    pub(crate) const fn new(first_ms: u64, longest_ms: u64) -> Self {
        Self { next: Duration::from_millis(first_ms), longest: Duration::from_millis(longest_ms) }
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}
