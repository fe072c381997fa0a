//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for a condition. Generous, since a test that passes does not wait that long.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
///
/// # Panics
/// When that takes longer than [`DEADLINE`]. `what` names the condition.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    soon(what, || condition().then_some(()));
}

/// Waits until `look` returns a value, and returns it.
///
/// # Panics
/// When that takes longer than [`DEADLINE`]. `what` names the condition.
#[track_caller]
pub fn soon<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, what, look)
}

/// As [`soon`], with another limit.
#[track_caller]
pub(crate) fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        thread::park_timeout(Duration::from_millis(2));
    }
}
