//! Callbacks of the server's events and of keyspace events, of the timer, and at the beginning and the end of commands.

use super::config;
use crate::panics::catch_panic;
use crate::server::subscriptions::subscribe_server_event;
use crate::server::{self, Context, KeyName, OpenKey, version};
use crate::{background, command_time, server_events, snapshot, state};
use lockward_core::{Db, Loading, NameRef};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;

/// Subscribes to the events that the module always needs. Returns false if the server refuses.
///
/// The module subscribes to rare events when it first needs them, see [`crate::server::subscriptions`].
pub fn subscribe(context: Context) -> bool {
    let events = [
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_CRON_LOOP,
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_PERSISTENCE,
        raw::REDISMODULE_EVENT_CONFIG,
    ];
    events.into_iter().all(|id| subscribe_server_event(context, id))
}

pub unsafe extern "C" fn on_server_event(
    context: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    stage: u64,
    data: *mut c_void,
) {
    // SAFETY: the server's context is valid for this call.
    let context = unsafe { Context::new(context) };
    match event.id {
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED => catch_panic("Role", (), || match stage {
            raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER => server_events::became_primary(),
            _ => server_events::became_replica(),
        }),
        raw::REDISMODULE_EVENT_LOADING => catch_panic("Loading", (), || loading(context, stage)),
        raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD => catch_panic("Loading", (), || {
            state::with(|state| match stage {
                raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED => state.store.begin_async_loading(),
                raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => state.store.end_async_loading(true),
                _ => state.store.end_async_loading(false),
            });
        }),
        // SAFETY: this event comes with this structure, which is valid through the call.
        raw::REDISMODULE_EVENT_FLUSHDB => catch_panic("Flush", (), || unsafe {
            if stage == raw::REDISMODULE_SUBEVENT_FLUSHDB_END
                && let Some(flushed) = data.cast::<raw::RedisModuleFlushInfo>().as_ref()
            {
                server_events::flushed((flushed.dbnum >= 0).then_some(Db(flushed.dbnum)), flushed.sync != 0);
            }
        }),
        // SAFETY: this event comes with this structure, which is valid through the call.
        raw::REDISMODULE_EVENT_SWAPDB => catch_panic("SwapDb", (), || unsafe {
            if let Some(swapped) = data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() {
                server_events::swapped(Db(swapped.dbnum_first), Db(swapped.dbnum_second));
            }
        }),
        raw::REDISMODULE_EVENT_CRON_LOOP => catch_panic("Cron", (), background::tick),
        raw::REDISMODULE_EVENT_FORK_CHILD => catch_panic("Fork", (), server_events::audience_may_come),
        raw::REDISMODULE_EVENT_PERSISTENCE => catch_panic("Snapshot", (), || match stage {
            raw::REDISMODULE_SUBEVENT_PERSISTENCE_ENDED | raw::REDISMODULE_SUBEVENT_PERSISTENCE_FAILED => {
                snapshot::ends(context);
            }
            _ => {
                server_events::audience_may_come();
                snapshot::begins(context);
            }
        }),
        raw::REDISMODULE_EVENT_CONFIG => catch_panic("Config", (), || {
            server_events::audience_may_come();
            // SAFETY: this event comes with this structure, which is valid through the call.
            if unsafe { names_policy(data.cast()) } {
                config::warn_of_eviction();
            }
        }),
        _ => {}
    }
}

fn loading(context: Context, stage: u64) {
    match stage {
        raw::REDISMODULE_SUBEVENT_LOADING_RDB_START | raw::REDISMODULE_SUBEVENT_LOADING_AOF_START => {
            server_events::loading_begins(Loading::File);
        }
        raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => server_events::loading_begins(Loading::Primary),
        _ => {
            snapshot::ends(context);
            server_events::loading_ends();
        }
    }
}

/// Whether the setting that decides about evictions is among the changed settings.
///
/// # Safety
/// `changed` is null, or valid with `num_changes` names that end in NUL.
unsafe fn names_policy(changed: *const raw::RedisModuleConfigChange) -> bool {
    // SAFETY: the caller promises valid names.
    unsafe {
        let Some(changed) = changed.as_ref() else { return false };
        let count = usize::try_from(changed.num_changes).unwrap_or_default();
        let names = slice::from_raw_parts(changed.config_names, count);
        names.iter().any(|name| CStr::from_ptr(*name).to_bytes() == config::EVICTION_POLICY)
    }
}

pub unsafe extern "C" fn on_keyspace_event(
    context: *mut raw::RedisModuleCtx,
    class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    catch_panic("Notify", (), || {
        // SAFETY: the server's context, event and key are valid through the call.
        let (context, event, name) = unsafe { event_args(context, event, key) };
        match (class, event.to_bytes()) {
            (raw::REDISMODULE_NOTIFY_NEW, _) => server_events::new_key(&name),
            (raw::REDISMODULE_NOTIFY_EXPIRED, b"expired") => server_events::expired(&name),
            (raw::REDISMODULE_NOTIFY_EVICTED, b"evicted") => server_events::evicted(context, &name),
            (raw::REDISMODULE_NOTIFY_GENERIC, b"expire") => server_events::ttl_set(&name),
            (raw::REDISMODULE_NOTIFY_GENERIC, b"rename_to" | b"move_to") => {
                server_events::arrived(context, &name);
            }
            _ => {}
        }
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

pub unsafe extern "C" fn on_timer(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server's context is valid for this call.
    let context = unsafe { Context::new(context) };
    // The module marks the timer as fired before the work. Otherwise a panic of the work would leave the timer marked
    // as set, and the module would never set it again. If the marking panics, the work does not run, because the work
    // could stop the timer. Then the timer would be freed twice: by the stop, and by the server after this callback.
    let is_marked = catch_panic("Timer", false, || {
        state::with(|state| state.wakeup_timer.fired());
        true
    });
    if is_marked {
        catch_panic("Timer", (), || background::work(context));
        catch_panic("Timer", (), background::rearm);
    }
}

/// The server calls this function at the beginning of each command, while the module watches commands.
pub unsafe extern "C" fn on_command(command: *mut raw::RedisModuleCommandFilterCtx) {
    catch_panic("NextCommand", (), || {
        command_time::command_begins();
        // SAFETY: the server's filter context is valid for this call.
        server_events::command_begins(unsafe { server::caller(command) });
    });
}

pub unsafe extern "C" fn on_over(_context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    catch_panic("Over", (), command_time::forget);
}
