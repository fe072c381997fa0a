//! Clients that the server holds blocked for us.
//!
//! A handle is unblocked exactly once, by [`unblock`] with the answer, or without one after its client has left; the
//! server frees it then. Neither the server's time limit nor, before Redis 7.4 and Valkey 8, its timeout callback is
//! used: where a time limit and an unblock meet in one turn of the event loop, those versions lose the reply or stop.

use super::{Edge, guard};
use crate::client::Client;
use crate::server::{Context, api, version};
use crate::waiters::{self, Verdict};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// The first version, as the server numbers itself, where CLIENT UNBLOCK and an unblock may meet. Valkey begins at 8.
const TIMEOUT_SAFE_SINCE: c_int = 0x0007_0400;

fn timeout_callback() -> raw::RedisModuleCmdFunc {
    if version() >= TIMEOUT_SAFE_SINCE { Some(on_unblock) } else { None }
}

/// Blocks the client of a command, which must be one that may be blocked.
pub fn block(context: Context) -> Option<NonNull<raw::RedisModuleBlockedClient>> {
    // SAFETY:
    // - the context is valid;
    // - the private data that `on_free` gets is what `unblock` gives: a verdict, or null, which is not passed.
    let handle = unsafe {
        api!(RedisModule_BlockClient(context.as_ptr(), Some(on_reply), timeout_callback(), Some(on_free), 0))
    };
    let handle = NonNull::new(handle)?;
    // SAFETY: the handle has just been made.
    unsafe { api!(RedisModule_SetDisconnectCallback(handle.as_ptr(), Some(on_disconnect))) };
    Some(handle)
}

/// Unblocks a client that has left its line, with its answer.
pub fn unblock(client: Client, verdict: Rc<Verdict>) {
    // SAFETY: the handle is unblocked once, as its waiter has just left the line and can be found there no more; the
    // verdict comes back to `on_free`.
    unsafe {
        api!(RedisModule_UnblockClient(client.handle().as_ptr(), Rc::into_raw(verdict).cast_mut().cast()))
    };
}

/// Frees the handle of a client that has left.
fn forget(handle: NonNull<raw::RedisModuleBlockedClient>) {
    if waiters::leave(Client::behind(handle)) {
        // SAFETY: as in `unblock`: whoever takes the waiter out of its line unblocks it.
        unsafe { api!(RedisModule_UnblockClient(handle.as_ptr(), ptr::null_mut())) };
    }
}

unsafe extern "C" fn on_reply(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server's context of this very call.
    let context = unsafe { Context::new(context) };
    let told = guard(Edge::Reply, false, || {
        // SAFETY: the private data is null or the verdict that `unblock` gave, which lives until `on_free`.
        let verdict = unsafe {
            api!(RedisModule_GetBlockedClientPrivateData(context.as_ptr())).cast::<Verdict>().as_ref()
        };
        verdict.map(|verdict| verdict.tell(context)).is_some()
    });
    if !told {
        context.reply_error("ERR internal error, see the server's log");
    }
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_free(_context: *mut raw::RedisModuleCtx, verdict: *mut c_void) {
    guard(Edge::FreeReply, (), || {
        // SAFETY: the verdict that `unblock` gave; the server gives it back once.
        let verdict = unsafe { Rc::from_raw(verdict.cast_const().cast::<Verdict>()) };
        verdict.end();
    });
}

unsafe extern "C" fn on_disconnect(
    _context: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    guard(Edge::Disconnect, (), || {
        if let Some(handle) = NonNull::new(handle) {
            forget(handle);
        }
    });
}

unsafe extern "C" fn on_unblock(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server's context of this very call.
    let context = unsafe { Context::new(context) };
    guard(Edge::Unblock, (), || {
        // SAFETY: within a callback of a blocked client the handle is at hand.
        let handle = unsafe { api!(RedisModule_GetBlockedClientHandle(context.as_ptr())) };
        if let Some(handle) = NonNull::new(handle) {
            forget(handle);
        }
    });
    context.reply_null_array();
    raw::REDISMODULE_OK as c_int
}
