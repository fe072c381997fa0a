//! The clocks, read once a step.

use lockward_core::{Instant, Now, WallTime};
use std::time::{SystemTime, UNIX_EPOCH};

/// Both clocks as they stand.
pub fn now() -> Now {
    // SAFETY: takes nothing and touches nothing of ours.
    let mono = unsafe { api!(RedisModule_MonotonicMicroseconds()) };
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        mono: Instant::from_micros(i64::try_from(mono).unwrap_or(i64::MAX)),
        wall: WallTime::from_micros(i64::try_from(wall.as_micros()).unwrap_or(i64::MAX)),
    }
}
