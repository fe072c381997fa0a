//! Subscriptions to events of the server.
//!
//! Subscriptions take time: the server walks through the list of all modules' subscriptions twice in each iteration of
//! its event loop, and calls keyspace subscribers within the commands of all clients. So the module subscribes to rare
//! events only when it first needs them. Afterwards the module stays subscribed, because not every server lets a module
//! unsubscribe.

use super::context::Context;
use super::entry_points::entry_points;
use super::info;
use super::module_context::module_context;
use redis_module::raw;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Subscribes to an event of the server. Returns false if the server refuses.
pub fn subscribe_server_event(context: Context, id: u64, callback: raw::RedisModuleEventCallback) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the context is the module's own, or is valid while the server loads the module.
    let status = unsafe { api!(RedisModule_SubscribeToServerEvent(context.as_ptr(), event, callback)) };
    status == raw::REDISMODULE_OK as c_int
}

/// Subscribes to the events of a replica that loads a new data set beside its old data set. A second call changes
/// nothing.
pub fn subscribe_async_loading() {
    let event = raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD;
    subscribe_server_event(module_context(), event, entry_points().async_loading);
}

/// Subscribes to expirations and evictions. Called when a held lock leaves the keyspace for the first time
/// and the module must know why.
pub fn subscribe_expired_evicted() {
    static SUBSCRIBED: AtomicBool = AtomicBool::new(false);
    let classes = raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED;
    subscribe_once(&SUBSCRIBED, classes, entry_points().expired_evicted);
}

/// Subscribes to new keys. Dropped locks need this subscription, because a new key of the same name ends a
/// dropped lock.
pub fn subscribe_new_keys() {
    static SUBSCRIBED: AtomicBool = AtomicBool::new(false);
    subscribe_once(&SUBSCRIBED, raw::REDISMODULE_NOTIFY_NEW, entry_points().new_key);
}

/// Subscribes to the events of EXPIRE, RENAME and MOVE. Called when a lock leaves the keyspace while a grant may not
/// have reached its client yet. Does nothing on servers with the fault of [`info::events_move_clients`].
pub fn subscribe_generic() {
    static SUBSCRIBED: AtomicBool = AtomicBool::new(false);
    if !SUBSCRIBED.swap(true, Ordering::Relaxed) && !info::events_move_clients() {
        subscribe(raw::REDISMODULE_NOTIFY_GENERIC, entry_points().generic);
    }
}

/// Subscribes to changes of long keys, which the sweep does not open. Called when the first client waits for
/// a long key. Does nothing on servers with the fault of [`info::events_move_clients`].
pub fn subscribe_long_keys() {
    static SUBSCRIBED: AtomicBool = AtomicBool::new(false);
    if !SUBSCRIBED.swap(true, Ordering::Relaxed) && !info::events_move_clients() {
        subscribe_generic();
        subscribe_new_keys();
    }
}

fn subscribe_once(subscribed: &AtomicBool, classes: c_int, callback: raw::RedisModuleNotificationFunc) {
    if !subscribed.swap(true, Ordering::Relaxed) {
        subscribe(classes, callback);
    }
}

fn subscribe(classes: c_int, callback: raw::RedisModuleNotificationFunc) {
    let context = module_context().as_ptr();
    // SAFETY: the module's context is valid.
    unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(context, classes, callback)) };
}
