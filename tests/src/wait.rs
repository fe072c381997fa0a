//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for anything that must come. Generous, since a test that passes never waits for it.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within [`DEADLINE`]: `what` did not happen.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    soon(what, || condition().then_some(()));
}

/// Waits until `look` finds something, and returns that.
///
/// # Panics
/// When it does not within [`DEADLINE`]: `what` did not happen.
#[track_caller]
pub fn soon<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, what, look)
}

/// As [`soon`], for what may take another time.
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
