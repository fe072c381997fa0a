//! The clocks, read once a step.

use lockward_core::{Instant, Now, WallTime};
use redis_module::raw;

/// The wall clock as the server may have judged a TTL by just now: at the latest. It keeps the time at which a command
/// began until it is done, and Valkey 9 reads the clock only once a millisecond.
pub fn latest_wall() -> WallTime {
    // SAFETY: they take nothing and touch nothing of ours.
    let (millis, micros) = unsafe {
        (api!(RedisModule_Milliseconds()), raw::RedisModule_CachedMicroseconds.map_or(0, |cached| cached()))
    };
    let cached = WallTime::from_micros(micros);
    wall().max(WallTime::from_millis(millis)).max(cached)
}

/// Both clocks as they stand.
pub fn now() -> Now {
    Now { mono: mono(), wall: wall() }
}

/// The monotonic clock as it stands.
pub fn mono() -> Instant {
    // SAFETY: takes nothing and touches nothing of ours.
    let micros = unsafe { api!(RedisModule_MonotonicMicroseconds()) };
    Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

fn wall() -> WallTime {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a structure that outlives the call. Fails only where there is no such clock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    WallTime::from_seconds(time.tv_sec, time.tv_nsec)
}
