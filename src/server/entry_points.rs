//! The functions of the module that the server calls.
//!
//! `callbacks/` passes these functions to this file when the module is loaded. So lower layers can start
//! timers, block clients and subscribe without importing `callbacks/`.

use redis_module::raw;
use std::sync::OnceLock;

/// The functions that are passed to the server after the module has been loaded.
#[derive(Clone, Copy, Default)]
pub struct EntryPoints {
    /// The wake-up timer has fired.
    pub timer: raw::RedisModuleTimerProc,
    /// A client is unblocked and gets its reply.
    pub reply: raw::RedisModuleCmdFunc,
    /// CLIENT UNBLOCK ends a wait.
    pub unblock: raw::RedisModuleCmdFunc,
    /// A blocked client has disconnected.
    pub disconnect: raw::RedisModuleDisconnectFunc,
    /// An event of the server, to which the module is subscribed.
    pub server_event: raw::RedisModuleEventCallback,
    /// A keyspace event of a class to which the module is subscribed.
    pub keyspace_event: raw::RedisModuleNotificationFunc,
    /// A command begins.
    pub command: raw::RedisModuleCommandFilterFunc,
    /// A command, transaction, script or function is over.
    pub over: raw::RedisModulePostNotificationJobFunc,
}

static ENTRY_POINTS: OnceLock<EntryPoints> = OnceLock::new();

/// Stores the functions. Called once while the module is loaded, before any timer, block or subscription.
pub fn set_entry_points(entry_points: EntryPoints) {
    ENTRY_POINTS.get_or_init(|| entry_points);
}

/// The functions of the module that the server calls.
pub(super) fn entry_points() -> EntryPoints {
    ENTRY_POINTS.get().copied().unwrap_or_default()
}
