//! What INFO tells of the module.

use super::{Edge, guard};
use crate::server::{Context, api};
use crate::state;
use redis_module::raw;
use std::ffi::{CStr, c_int};

/// Registers the section. False when the server refuses.
pub fn register(context: Context) -> bool {
    // SAFETY: the context is that of the module's load.
    let status = unsafe { api!(RedisModule_RegisterInfoFunc(context.as_ptr(), Some(tell))) };
    status == raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn tell(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report != 0 {
        return; // the server may be in the middle of anything, the module as well
    }
    guard(Edge::Statistics, (), || {
        let (kept, dropped) = state::with(|state| (state.shadows.len(), state.dropped));
        let kept = u64::try_from(kept).unwrap_or(u64::MAX);
        let fields: [(&CStr, u64); 3] = [
            (c"tenures_kept", kept),
            (c"tenures_kept_from_eviction", dropped.by_eviction),
            (c"tenures_kept_from_clock_steps", dropped.by_clock),
        ];
        // SAFETY: the server's info of this very call; the texts are constant.
        unsafe {
            if api!(RedisModule_InfoAddSection(info, c"".as_ptr())) != raw::REDISMODULE_OK as c_int {
                return; // not asked for
            }
            for (name, number) in fields {
                api!(RedisModule_InfoAddFieldULongLong(info, name.as_ptr(), number));
            }
        }
    });
}
