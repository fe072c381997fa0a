//! The functions of the module that the server calls.
//!
//! `callbacks/` passes these functions to this file when the module is loaded. So lower layers can start
//! timers, block clients and subscribe without importing `callbacks/`.

use redis_module::raw;
use std::sync::OnceLock;

/// The functions that are passed to the server after the module has been loaded.
#[derive(Clone, Copy)]
pub struct EntryPoints {
    /// The wake-up timer has fired.
    pub timer: raw::RedisModuleTimerProc,
    /// A client is unblocked and gets its reply.
    pub reply: raw::RedisModuleCmdFunc,
    /// CLIENT UNBLOCK ends a wait.
    pub unblock: raw::RedisModuleCmdFunc,
    /// A blocked client has disconnected.
    pub disconnect: raw::RedisModuleDisconnectFunc,
    /// A key has expired or was evicted.
    pub expired_evicted: raw::RedisModuleNotificationFunc,
    /// A key was created.
    pub new_key: raw::RedisModuleNotificationFunc,
    /// A key was renamed or moved, or its TTL was set.
    pub generic: raw::RedisModuleNotificationFunc,
    /// A replica loads a new data set beside its old data set.
    pub async_loading: raw::RedisModuleEventCallback,
    /// A command begins.
    pub command: raw::RedisModuleCommandFilterFunc,
    /// A command, transaction, script or function is over.
    pub over: raw::RedisModulePostNotificationJobFunc,
}

const NONE: EntryPoints = EntryPoints {
    timer: None,
    reply: None,
    unblock: None,
    disconnect: None,
    expired_evicted: None,
    new_key: None,
    generic: None,
    async_loading: None,
    command: None,
    over: None,
};

static ENTRY_POINTS: OnceLock<EntryPoints> = OnceLock::new();

/// Stores the functions. Called once while the module is loaded, before any timer, block or subscription.
pub fn set_entry_points(entry_points: EntryPoints) {
    ENTRY_POINTS.get_or_init(|| entry_points);
}

/// The functions of the module that the server calls.
pub(super) fn entry_points() -> &'static EntryPoints {
    ENTRY_POINTS.get().unwrap_or(&NONE)
}
