//! The callback of the wake-up timer.

use crate::background;
use crate::panics::{Callback, catch_panic};
use crate::server::Context;
use redis_module::raw;
use std::ffi::c_void;

pub unsafe extern "C" fn on_timer(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server's context is valid for this call.
    let context = unsafe { Context::new(context) };
    // The timer is marked as fired before the work. If the timer were marked after the work, a panic of the work would
    // leave the timer marked as set, and the timer would never be set again. If the marking itself panics, the work
    // does not run, because the work could stop the timer that is still marked as set. Stopping the timer frees it, and
    // the server would free it again after the callback.
    let fired = || {
        background::timer_fired();
        true
    };
    if catch_panic(Callback::Timer, false, fired) {
        catch_panic(Callback::Timer, (), || background::work(context));
        catch_panic(Callback::Timer, (), background::rearm);
    }
}
