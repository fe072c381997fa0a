//! The callback of the wake-up timer.

use crate::background;
use crate::panics::{Callback, catch_panic};
use crate::server::Context;
use redis_module::raw;
use std::ffi::c_void;

pub unsafe extern "C" fn on_timer(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server's context of this very call.
    let context = unsafe { Context::new(context) };
    // Three calls: the timer is marked as fired even if the work panics, or it would never be set again.
    catch_panic(Callback::Timer, (), background::timer_fired);
    catch_panic(Callback::Timer, (), || background::work(context));
    catch_panic(Callback::Timer, (), background::rearm);
}
