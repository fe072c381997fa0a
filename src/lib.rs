//! Lockward: native distributed locks for Redis and Valkey, as a module that the server loads.
//!
//! This file only registers the parts of the module. The lock itself is in the crate `lockward-core`. This crate has
//! the parts that depend on the server. docs/design.md describes the whole.

#![deny(unsafe_code)]

mod arguments;
mod background;
#[allow(unsafe_code, reason = "the server calls these functions")]
mod callbacks;
mod command_time;
mod commands;
mod errors;
mod panics;
mod pending_replies;
mod replicated;
mod replication_audience;
#[allow(unsafe_code, reason = "these files call the server")]
mod server;
mod server_events;
mod settings;
mod snapshot;
mod state;
mod statistics;
mod stored;
mod sweeps;
mod transaction;
mod waiters;
mod wakeup_timer;

use callbacks::{config, data_type, events, snapshot_key};
use lockward_core::Quarantine;
use panics::catch_panic;
use redis_module::alloc::RedisAlloc;
use redis_module::raw;
use server::{Context, clock, global_flags, notice, warn};
use std::ffi::{CStr, c_int};

/// The server's allocator, so that the server's statistics count the module's memory. The allocator cannot be used
/// before the server has loaded the module.
#[global_allocator]
static ALLOCATOR: RedisAlloc = RedisAlloc;

const NAME: &CStr = c"lock";
/// 0.1.0, as MODULE LIST shows it.
const VERSION: c_int = 100;

/// The server calls this function to load the module.
///
/// # Safety
/// Only the server may call this function, as the module API says.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "the server calls this function")]
#[allow(non_snake_case, reason = "the server looks it up by this name")]
pub unsafe extern "C" fn RedisModule_OnLoad(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let api_version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: the server's context is valid for this call. Nothing may be allocated before this call.
    let known = unsafe { raw::Export_RedisModule_Init(context, NAME.as_ptr(), VERSION, api_version) };
    if known != raw::REDISMODULE_OK as c_int {
        return raw::REDISMODULE_ERR as c_int;
    }
    catch_panic("Load", raw::REDISMODULE_ERR as c_int, || {
        // SAFETY: the server's context is valid for this call.
        let context = unsafe { Context::new(context) };
        if !server::is_recent_enough() {
            warn("Lockward needs Redis 7.0 or later, or Valkey");
            return raw::REDISMODULE_ERR as c_int;
        }
        server::set_main_thread();
        context.set_options();
        server::set_entry_points(callbacks::ENTRY_POINTS);
        let registered = data_type::register(context)
            && snapshot_key::register(context)
            && callbacks::statistics::register(context)
            && callbacks::commands::register_all(context)
            // SAFETY: the server's arguments are valid for this call.
            && unsafe { config::register(context, argv, argc) };
        if !registered {
            return raw::REDISMODULE_ERR as c_int;
        }
        // Subscribe last: Redis 7.0 keeps the subscriptions of a module whose load fails.
        server::create_module_context(context);
        if !events::subscribe(context) {
            return raw::REDISMODULE_ERR as c_int;
        }
        let quarantine = Quarantine::new(clock::read().mono, settings::quarantine().unwrap_or_default());
        let audience_can_be_known = replication_audience::can_be_known();
        state::with(|state| {
            state.audience_can_be_known = audience_can_be_known;
            state.store.start(global_flags().replica(), quarantine);
        });
        if global_flags().replica() {
            server::subscriptions::subscribe_async_loading();
        }
        config::warn_of_eviction();
        notice(concat!("Lockward ", env!("CARGO_PKG_VERSION")));
        raw::REDISMODULE_OK as c_int
    })
}
