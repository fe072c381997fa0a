//! The callback of INFO.

use crate::info_section::{self, Field};
use crate::panics::catch_panic;
use crate::server::{Context, api};
use redis_module::raw;
use std::ffi::{CStr, c_int};

/// Registers the section. Returns false if the server refuses.
pub fn register(context: Context) -> bool {
    // SAFETY: the context is valid while the server loads the module.
    let status = unsafe { api!(RedisModule_RegisterInfoFunc(context.as_ptr(), Some(on_info))) };
    status == raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_info(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report != 0 {
        return; // the crash may have interrupted any operation of the server or of the module
    }
    catch_panic("Statistics", (), || {
        // SAFETY: `info` is valid for this call, and the text is constant.
        let asked_for = unsafe { api!(RedisModule_InfoAddSection(info, c"".as_ptr())) };
        if asked_for != raw::REDISMODULE_OK as c_int {
            return;
        }
        let add = |name: &CStr, number| {
            // SAFETY: `info` is valid for this call, and the texts are constant.
            unsafe { api!(RedisModule_InfoAddFieldULongLong(info, name.as_ptr(), number)) };
        };
        for field in info_section::fields() {
            match field {
                Field::Number(name, number) => add(name, number),
                Field::Durations(name, percentiles) => {
                    // SAFETY: `info` is valid for this call, and the texts are constant.
                    unsafe { api!(RedisModule_InfoBeginDictField(info, name.as_ptr())) };
                    percentiles.into_iter().for_each(|(name, micros)| add(name, micros));
                    // SAFETY: `info` is valid for this call, and the texts are constant.
                    unsafe { api!(RedisModule_InfoEndDictField(info)) };
                }
            }
        }
    });
}
