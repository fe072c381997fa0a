//! Calls the module at the beginning of every command.
//!
//! The server sends no event when a command begins. But before each command, the server calls the command filters of
//! modules. A filter makes every command slower. So the module has a filter only while it must notice the next command.

use super::context::module_context;
use super::entry_points::entry_points;
use redis_module::raw;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The registered filter, or null. Used only under the server's lock.
static FILTER: AtomicPtr<raw::RedisModuleCommandFilter> = AtomicPtr::new(ptr::null_mut());

/// The caller of a command that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A client.
    TopLevel,
    /// A script or another module: the command runs within another command.
    Inner,
    /// A client, a script or another module. Redis 7.0 does not name the caller.
    Unknown,
}

/// Calls the module's entry point at the beginning of each command, until [`stop_watching_commands`]. The filter is not
/// called for commands that this module itself calls.
pub fn watch_commands() {
    if FILTER.load(Ordering::Relaxed).is_null() {
        let flags = raw::REDISMODULE_CMDFILTER_NOSELF as c_int;
        let (context, callback) = (module_context().as_ptr(), entry_points().command);
        // SAFETY: the module's context is valid, and the callback takes no data.
        let filter = unsafe { api!(RedisModule_RegisterCommandFilter(context, callback, flags)) };
        FILTER.store(filter, Ordering::Relaxed);
    }
}

/// Ends [`watch_commands`]. Must not be called while a command begins, because the server may then be walking
/// through its list of filters.
pub fn stop_watching_commands() {
    let filter = FILTER.swap(ptr::null_mut(), Ordering::Relaxed);
    if !filter.is_null() {
        // SAFETY: the filter is registered, and is unregistered once.
        unsafe { api!(RedisModule_UnregisterCommandFilter(module_context().as_ptr(), filter)) };
    }
}

/// The caller of the command. The server can look up a connected client by its id. The server cannot look up
/// the clients with which scripts and modules call commands, because these clients have no connection.
///
/// # Safety
/// The server has passed `command` to the running callback.
pub unsafe fn caller(command: *mut raw::RedisModuleCommandFilterCtx) -> Caller {
    // SAFETY: the caller promises a valid `command`. The pointer for the client's info is null, so the server
    // writes nothing there.
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
