//! The server's timer.

use super::{Callback, catch_panic};
use crate::background;
use crate::server::{Context, api};
use lockward_core::Span;
use redis_module::raw;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A timer that has been started and has not gone off.
#[derive(Clone, Copy, Debug)]
pub struct TimerId(raw::RedisModuleTimerID);

/// A context that lives as long as the module: timers are also started where the server gives none.
static LASTING: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Makes the lasting context, once, when the module is loaded.
pub fn prepare(context: Context) {
    // SAFETY: the context is valid; the new one is never freed, as the module can never be unloaded.
    let lasting = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(context.as_ptr())) };
    LASTING.store(lasting, Ordering::Relaxed);
}

/// The context that lives as long as the module.
pub fn lasting_context() -> *mut raw::RedisModuleCtx {
    LASTING.load(Ordering::Relaxed)
}

/// The same, for work in a callback that gets no context.
pub fn lasting() -> Context {
    // SAFETY: the lasting context is valid for as long as the module is.
    unsafe { Context::new(lasting_context()) }
}

/// Starts a timer that goes off once, after `delay`.
pub fn start(delay: Span) -> TimerId {
    let delay = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX).min(MAX_DELAY_MS);
    let context = LASTING.load(Ordering::Relaxed);
    // SAFETY: the lasting context is valid; the callback takes no data.
    TimerId(unsafe { api!(RedisModule_CreateTimer(context, delay, Some(on_timer), ptr::null_mut())) })
}

/// The server reckons in microseconds from the epoch; an hour is far from any overflow, and waking up for nothing once
/// an hour costs nothing.
const MAX_DELAY_MS: i64 = 3_600_000;

/// Stops a timer that has not gone off.
pub fn stop(timer: TimerId) {
    let context = LASTING.load(Ordering::Relaxed);
    // SAFETY: the lasting context is valid; a timer that is unknown is refused.
    unsafe { api!(RedisModule_StopTimer(context, timer.0, ptr::null_mut())) };
}

unsafe extern "C" fn on_timer(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server's context of this very call.
    let context = unsafe { Context::new(context) };
    // The alarm knows that it has gone off even where the work panics, or it would never be set again.
    catch_panic(Callback::Timer, (), background::gone_off);
    catch_panic(Callback::Timer, (), || background::work(context));
    catch_panic(Callback::Timer, (), background::rearm);
}
