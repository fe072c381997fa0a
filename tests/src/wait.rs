//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for a condition. Only a failing test waits this long.
pub const DEADLINE: Duration = Duration::from_secs(20 * SLOWNESS as u64);

/// The factor for all time limits: `LOCKWARD_SLOWNESS` at compile time, or 1.
const SLOWNESS: u32 = match option_env!("LOCKWARD_SLOWNESS") {
    Some(number) => match u32::from_str_radix(number, 10) {
        Ok(number) => number,
        Err(_) => panic!("LOCKWARD_SLOWNESS is a whole number"),
    },
    None => 1,
};

/// Waits until `condition` holds.
///
/// # Panics
/// When the condition does not hold within [`DEADLINE`]. `what` names the condition.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    soon(what, || condition().then_some(()));
}

/// Waits until `look` returns a value, and returns it.
///
/// # Panics
/// When `look` returns no value within [`DEADLINE`]. `what` names the value.
#[track_caller]
pub fn soon<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE / SLOWNESS, what, look)
}

/// Waits until `look` returns a value, and returns it. The time limit is `limit`,
/// multiplied by [`SLOWNESS`].
#[track_caller]
pub(crate) fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = limit * SLOWNESS;
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        thread::park_timeout(Duration::from_millis(2));
    }
}
