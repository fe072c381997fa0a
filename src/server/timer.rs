//! The server's timers.

use super::context::module_context;
use super::entry_points::entry_points;
use lockward_core::Span;
use redis_module::raw;
use std::ptr;

/// A timer that has been started and has not fired.
#[derive(Clone, Copy, Debug)]
pub struct TimerId(raw::RedisModuleTimerID);

/// The longest delay. The server adds the delay to its clock, in microseconds, and this sum must not overflow. A
/// wake-up without work, once an hour, costs nothing.
const MAX_DELAY_MS: i64 = 3_600_000;

/// Starts a timer that fires once, after `delay`.
pub fn start(delay: Span) -> TimerId {
    let delay = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX).min(MAX_DELAY_MS);
    let (context, callback) = (module_context().as_ptr(), entry_points().timer);
    // SAFETY: the module's context is valid; the callback takes no data.
    TimerId(unsafe { api!(RedisModule_CreateTimer(context, delay, callback, ptr::null_mut())) })
}

/// Stops a timer that has not fired.
pub fn stop(timer: TimerId) {
    // SAFETY: the module's context is valid, and the server refuses an unknown timer.
    unsafe { api!(RedisModule_StopTimer(module_context().as_ptr(), timer.0, ptr::null_mut())) };
}
