//! The beginning of commands, as far as the module asks for it.
//!
//! The server has no event for it, but calls a command filter as each command begins. One is registered only for as long as
//! somebody wants to know, so that other commands cost nothing more.

use super::{Callback, catch_panic, timer};
use crate::server::api;
use crate::server_events::{self, Caller};
use redis_module::raw;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The filter that is registered; null while there is none. Used under the server's lock alone.
static FILTER: AtomicPtr<raw::RedisModuleCommandFilter> = AtomicPtr::new(ptr::null_mut());

/// Has [`server_events::command_begins`] called as each command begins, until [`see_no_more`]. What the module itself calls does not count.
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

/// Ends that. Not to be called as a command begins: the server may be on its way through its list of filters then.
pub fn see_no_more() {
    let filter = FILTER.swap(ptr::null_mut(), Ordering::Relaxed);
    if !filter.is_null() {
        // SAFETY: the filter is registered, and is unregistered once.
        unsafe { api!(RedisModule_UnregisterCommandFilter(timer::lasting_context(), filter)) };
    }
}

unsafe extern "C" fn on_command(command: *mut raw::RedisModuleCommandFilterCtx) {
    catch_panic(Callback::NextCommand, (), || {
        // SAFETY: the server's filter context of this very call.
        server_events::command_begins(unsafe { caller(command) });
    });
}

/// Who gives the command. Only the clients of connections are known by their ids: scripts and modules call as clients that no
/// list has.
///
/// # Safety
/// `command` is the server's of the running call.
unsafe fn caller(command: *mut raw::RedisModuleCommandFilterCtx) -> Caller {
    // SAFETY: as the caller promises. Without a place for what is known of it, the server only looks for the client.
    unsafe {
        let (Some(id_of), Some(info_of)) =
            (raw::RedisModule_CommandFilterGetClientId, raw::RedisModule_GetClientInfoById)
        else {
            return Caller::Unknown;
        };
        let known = info_of(ptr::null_mut(), id_of(command)) == raw::REDISMODULE_OK as c_int;
        if known { Caller::TopLevel } else { Caller::Inner }
    }
}
