//! Subscriptions to events of the server.
//!
//! Subscriptions take time: the server walks through the list of all modules' subscriptions twice in each iteration of
//! its event loop, and calls keyspace subscribers within the commands of all clients. So the module subscribes to rare
//! events only when it first needs them. Afterwards the module stays subscribed, because not every server lets a module
//! unsubscribe.

use super::context::{Context, module_context};
use super::entry_points::entry_points;
use super::info;
use lazy_static::lazy_static;
use redis_module::raw;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

/// Subscribes to an event of the server. A second call changes nothing. Returns false if the server refuses.
pub fn subscribe_server_event(context: Context, id: u64) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    let callback = entry_points().server_event;
    // SAFETY: the context is the module's own, or is valid while the server loads the module.
    let status = unsafe { api!(RedisModule_SubscribeToServerEvent(context.as_ptr(), event, callback)) };
    status == raw::REDISMODULE_OK as c_int
}

/// Subscribes to the events of a replica that loads a new data set beside its old data set.
pub fn subscribe_async_loading() {
    subscribe_server_event(module_context(), raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD);
}

/// Subscribes to expirations and evictions. Called when a held lock leaves the keyspace for the first time
/// and the module must know why.
pub fn subscribe_expired_evicted() {
    subscribe(raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED);
}

/// Subscribes to new keys. Dropped locks need this subscription, because a new key of the same name ends a
/// dropped lock.
pub fn subscribe_new_keys() {
    subscribe(raw::REDISMODULE_NOTIFY_NEW);
}

/// Subscribes to the events of EXPIRE, RENAME and MOVE. Called when a lock leaves the keyspace while a grant may not
/// have reached its client yet. Does nothing and returns false on servers with the fault of
/// [`info::events_move_clients`].
pub fn subscribe_generic() -> bool {
    lazy_static! {
        static ref IS_SAFE: bool = !info::events_move_clients();
    }
    if *IS_SAFE {
        subscribe(raw::REDISMODULE_NOTIFY_GENERIC);
    }
    *IS_SAFE
}

/// Subscribes to changes of long keys, which the sweep does not open. Called when the first client waits for
/// a long key. Does nothing on servers with the fault of [`info::events_move_clients`].
pub fn subscribe_long_keys() {
    if subscribe_generic() {
        subscribe_new_keys();
    }
}

/// Subscribes to these classes of keyspace events. A second call changes nothing.
fn subscribe(classes: c_int) {
    static SUBSCRIBED: AtomicI32 = AtomicI32::new(0);
    if SUBSCRIBED.fetch_or(classes, Ordering::Relaxed) & classes == 0 {
        let (context, callback) = (module_context().as_ptr(), entry_points().keyspace_event);
        // SAFETY: the module's context is valid.
        unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(context, classes, callback)) };
    }
}
