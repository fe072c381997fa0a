//! The callback of the wake-up timer.

use crate::background;
use crate::panics::{Callback, catch_panic};
use crate::server::Context;
use redis_module::raw;
use std::ffi::c_void;

pub unsafe extern "C" fn on_timer(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server's context, valid for this call.
    let context = unsafe { Context::new(context) };
    // The timer is marked as fired before the work. Otherwise a panic of the work would leave the mark unset, and the
    // timer would never be set again. If setting the mark panics, the work does not run: the timer would still be
    // marked as set, so the work could stop and thereby free it. After the callback, the server would free the timer
    // again.
    let fired = || {
        background::timer_fired();
        true
    };
    if catch_panic(Callback::Timer, false, fired) {
        catch_panic(Callback::Timer, (), || background::work(context));
        catch_panic(Callback::Timer, (), background::rearm);
    }
}
