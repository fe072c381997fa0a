//! Callbacks of the server's events and of keyspace events.

use crate::panics::{Callback, catch_panic};
use crate::server::subscriptions::subscribe_server_event;
use crate::server::{Context, KeyName, OpenKey, version};
use crate::{background, eviction, server_events, snapshot};
use lockward_core::{Db, Loading};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;

/// Subscribes to the events that the module always needs. Returns false if the server refuses.
///
/// The module subscribes to rare events when it first needs them, see [`crate::server::subscriptions`].
pub fn subscribe(context: Context) -> bool {
    let server_events: [(u64, raw::RedisModuleEventCallback); 8] = [
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(on_role)),
        (raw::REDISMODULE_EVENT_LOADING, Some(on_loading)),
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(on_flush)),
        (raw::REDISMODULE_EVENT_SWAPDB, Some(on_swap_db)),
        (raw::REDISMODULE_EVENT_CRON_LOOP, Some(on_cron)),
        (raw::REDISMODULE_EVENT_FORK_CHILD, Some(on_fork)),
        (raw::REDISMODULE_EVENT_PERSISTENCE, Some(on_snapshot)),
        (raw::REDISMODULE_EVENT_CONFIG, Some(on_config)),
    ];
    server_events.into_iter().all(|(id, callback)| subscribe_server_event(context, id, callback))
}

pub unsafe extern "C" fn on_new_key(
    context: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    catch_panic(Callback::Notify, (), || {
        // SAFETY: the server's context, event and key are valid through the call.
        let (_, _, name) = unsafe { event_args(context, event, key) };
        server_events::new_key(&name);
    });
    raw::REDISMODULE_OK as c_int
}

/// The arguments of a keyspace event.
///
/// # Safety
/// The three pointers come from the server and are valid for `'a`.
unsafe fn event_args<'a>(
    context: *mut raw::RedisModuleCtx,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> (Context, &'a CStr, KeyName<'a>) {
    // SAFETY: the caller promises valid pointers.
    let (context, event, name) = unsafe {
        let context = Context::new(context);
        (context, CStr::from_ptr(event), KeyName::new(context.db(), key))
    };
    if version() < DB_OF_CLIENT_SINCE {
        return (context, event, name);
    }
    // The context names the client's database. But MOVE and COPY report a key of another database, so this function
    // reads the database from the open key.
    let db = OpenKey::to_look(context, &name).db().unwrap_or(name.db());
    // SAFETY: the caller promises valid pointers.
    (context, event, unsafe { KeyName::new(db, key) })
}

/// The version number of Valkey 9. From this version on, the callback of a keyspace event gets the context of the
/// client.
const DB_OF_CLIENT_SINCE: c_int = 0x0009_0000;

pub unsafe extern "C" fn on_generic(
    context: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    catch_panic(Callback::Notify, (), || {
        // SAFETY: the server's context, event and key are valid through the call.
        let (context, event, name) = unsafe { event_args(context, event, key) };
        if event == c"expire" {
            server_events::ttl_set(&name);
        } else if event == c"rename_to" || event == c"move_to" {
            server_events::arrived(context, &name);
        }
    });
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_role(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    now_replica: u64,
    _data: *mut c_void,
) {
    catch_panic(
        Callback::Role,
        (),
        if now_replica == 0 { server_events::became_primary } else { server_events::became_replica },
    );
}

unsafe extern "C" fn on_loading(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    stage: u64,
    _data: *mut c_void,
) {
    catch_panic(Callback::Loading, (), || match stage {
        raw::REDISMODULE_SUBEVENT_LOADING_RDB_START | raw::REDISMODULE_SUBEVENT_LOADING_AOF_START => {
            server_events::loading_begins(Loading::File);
        }
        raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => server_events::loading_begins(Loading::Primary),
        _ => {
            // SAFETY: the server's context is valid for this call.
            snapshot::ends(unsafe { Context::new(context) });
            server_events::loading_ends();
        }
    });
}

pub unsafe extern "C" fn on_async_loading(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    stage: u64,
    _data: *mut c_void,
) {
    catch_panic(Callback::Loading, (), || match stage {
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED => server_events::async_loading_begins(),
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => server_events::async_loading_ends(true),
        _ => server_events::async_loading_ends(false),
    });
}

unsafe extern "C" fn on_snapshot(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    stage: u64,
    _data: *mut c_void,
) {
    catch_panic(Callback::Snapshot, (), || {
        // SAFETY: the server's context is valid for this call.
        let context = unsafe { Context::new(context) };
        match stage {
            raw::REDISMODULE_SUBEVENT_PERSISTENCE_ENDED | raw::REDISMODULE_SUBEVENT_PERSISTENCE_FAILED => {
                snapshot::ends(context);
            }
            _ => {
                server_events::audience_may_come();
                snapshot::begins(context);
            }
        }
    });
}

unsafe extern "C" fn on_config(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _stage: u64,
    data: *mut c_void,
) {
    catch_panic(Callback::Config, (), || {
        server_events::audience_may_come();
        // SAFETY: the server passes this structure with this event. The structure is valid through the call
        // and has `num_changes` names.
        let names = unsafe {
            let Some(changed) = data.cast::<raw::RedisModuleConfigChange>().as_ref() else { return };
            let count = usize::try_from(changed.num_changes).unwrap_or_default();
            slice::from_raw_parts(changed.config_names, count)
        };
        // SAFETY: each name ends in NUL.
        if names.iter().any(|name| unsafe { CStr::from_ptr(*name) }.to_bytes() == eviction::POLICY) {
            eviction::warn();
        }
    });
}

unsafe extern "C" fn on_flush(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    stage: u64,
    data: *mut c_void,
) {
    catch_panic(Callback::Flush, (), || {
        // SAFETY: this event comes with this structure, which is valid through the call.
        let flushed = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() };
        if let Some(flushed) = flushed.filter(|_| stage == raw::REDISMODULE_SUBEVENT_FLUSHDB_END) {
            server_events::flushed((flushed.dbnum >= 0).then_some(Db(flushed.dbnum)), flushed.sync != 0);
        }
    });
}

unsafe extern "C" fn on_swap_db(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _stage: u64,
    data: *mut c_void,
) {
    catch_panic(Callback::SwapDb, (), || {
        // SAFETY: this event comes with this structure, which is valid through the call.
        if let Some(swapped) = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() } {
            server_events::swapped(Db(swapped.dbnum_first), Db(swapped.dbnum_second));
        }
    });
}

unsafe extern "C" fn on_cron(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _stage: u64,
    _data: *mut c_void,
) {
    catch_panic(Callback::Cron, (), background::tick);
}

unsafe extern "C" fn on_fork(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _stage: u64,
    _data: *mut c_void,
) {
    catch_panic(Callback::Fork, (), server_events::audience_may_come);
}

pub unsafe extern "C" fn on_expired_evicted(
    context: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    catch_panic(Callback::Notify, (), || {
        // SAFETY: the server's context, event and key are valid through the call.
        let (context, event, name) = unsafe { event_args(context, event, key) };
        if event == c"evicted" {
            server_events::evicted(context, &name);
        } else if event == c"expired" {
            server_events::expired(&name);
        }
    });
    raw::REDISMODULE_OK as c_int
}
