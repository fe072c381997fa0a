//! The clocks, and slices of time.

use lockward_core::{Instant, Now, WallTime};
use redis_module::raw;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How far the wall clock was ahead of the monotonic clock when both were last read, in microseconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Both clocks for a decision. This function reads only the monotonic clock. The wall time is the monotonic time plus
/// the difference that the last [`read`] found. If the wall clock was set since that read, the module notices at the
/// next [`read`].
pub fn now() -> Now {
    let mono = mono();
    let wall = mono.as_micros().saturating_add(AHEAD.load(Ordering::Relaxed));
    Now { mono, wall: WallTime::from_micros(wall) }
}

/// Reads both clocks.
pub fn read() -> Now {
    let (mono, wall) = (mono(), wall());
    AHEAD.store(wall.as_micros().saturating_sub(mono.as_micros()), Ordering::Relaxed);
    Now { mono, wall }
}

/// The monotonic clock.
pub fn mono() -> Instant {
    // SAFETY: the function takes no arguments, and does not access the module's memory.
    let micros = unsafe { api!(RedisModule_MonotonicMicroseconds()) };
    Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

/// The latest of the wall times with which the server may compare a TTL now. Until a command is done, the server uses
/// the time at which the command began. Valkey 9 reads the clock only once a millisecond.
pub fn latest_wall() -> WallTime {
    // SAFETY: the two functions take no arguments, and do not access the module's memory.
    let (millis, micros) = unsafe {
        (api!(RedisModule_Milliseconds()), raw::RedisModule_CachedMicroseconds.map_or(0, |cached| cached()))
    };
    wall().max(WallTime::from_millis(millis)).max(WallTime::from_micros(micros))
}

fn wall() -> WallTime {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}

/// The time that one kind of work may take in an iteration of the event loop. At least one piece of work is
/// always done.
#[derive(Clone, Copy)]
pub struct Slice {
    end: Instant,
}

impl Slice {
    /// A slice that begins now.
    pub fn of_micros(micros: i64) -> Self {
        Self { end: Instant::from_micros(mono().as_micros().saturating_add(micros)) }
    }

    pub fn is_over(self) -> bool {
        mono() >= self.end
    }
}
