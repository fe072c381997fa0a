//! The clocks, read once a step.

use lockward_core::{Instant, Now, WallTime};
use redis_module::raw;
use std::time::{SystemTime, UNIX_EPOCH};

/// The wall clock as the server may have judged a TTL by just now: at the latest. It keeps the time at which a command
/// began until it is done, and Valkey 9 reads the clock only once a millisecond.
pub fn latest_wall() -> WallTime {
    // SAFETY: they take nothing and touch nothing of ours.
    let (millis, micros) = unsafe {
        (api!(RedisModule_Milliseconds()), raw::RedisModule_CachedMicroseconds.map_or(0, |cached| cached()))
    };
    let cached = WallTime::from_micros(micros);
    now().wall.max(WallTime::from_millis(millis)).max(cached)
}

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
