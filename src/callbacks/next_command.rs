//! The beginning of commands, as far as the module asks for it.
//!
//! The server has no event for it, but calls a command filter as each command begins. One is registered only for as long as
//! somebody wants to know, so that commands cost nothing more else.

use super::{Edge, guard, timer};
use crate::news;
use crate::server::api;
use redis_module::raw;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The filter that is registered; null while there is none. Used under the server's lock alone.
static FILTER: AtomicPtr<raw::RedisModuleCommandFilter> = AtomicPtr::new(ptr::null_mut());

/// Has [`news::command_begins`] called as each command begins, until that says that it is enough. What the module itself
/// calls does not count.
pub fn see() {
    if FILTER.load(Ordering::Relaxed).is_null() {
        let flags = raw::REDISMODULE_CMDFILTER_NOSELF as c_int;
        // SAFETY: the lasting context is valid; the callback takes no data.
        let filter = unsafe {
            api!(RedisModule_RegisterCommandFilter(timer::lasting_context(), Some(on_command), flags))
        };
        FILTER.store(filter, Ordering::Relaxed);
    }
}

unsafe extern "C" fn on_command(_command: *mut raw::RedisModuleCommandFilterCtx) {
    if !guard(Edge::NextCommand, false, news::command_begins) {
        let filter = FILTER.swap(ptr::null_mut(), Ordering::Relaxed);
        if !filter.is_null() {
            // SAFETY: the filter is registered, and is unregistered once. The server allows that within its call: it has gone on to
            // the next filter of its list by then, and does not look at this one again.
            unsafe { api!(RedisModule_UnregisterCommandFilter(timer::lasting_context(), filter)) };
        }
    }
}
