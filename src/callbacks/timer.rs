//! The callback of the wake-up timer.

use crate::background;
use crate::panics::{Callback, catch_panic};
use crate::server::Context;
use redis_module::raw;
use std::ffi::c_void;

pub unsafe extern "C" fn on_timer(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server's context is valid for this call.
    let context = unsafe { Context::new(context) };
    // The module marks the timer as fired before the work. Otherwise a panic of the work would leave the timer marked
    // as set, and the module would never set it again. If the marking panics, the work does not run, because the work
    // could stop the timer. Then the timer would be freed twice: by the stop, and by the server after this callback.
    let fired = || {
        background::timer_fired();
        true
    };
    if catch_panic(Callback::Timer, false, fired) {
        catch_panic(Callback::Timer, (), || background::work(context));
        catch_panic(Callback::Timer, (), background::rearm);
    }
}
