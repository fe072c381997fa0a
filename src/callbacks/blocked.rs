//! Clients that the server holds blocked for us.
//!
//! A handle is unblocked exactly once, by whoever takes the waiter out of its line; the server frees it some time after that.
//! Before it does, exactly one callback takes the reply that is pending: the one that replies, or the one that says that the
//! client is not there any more.
//!
//! Neither the server's time limit nor, before Redis 7.4 and Valkey 8, its timeout callback is used: where a time limit and
//! an unblock meet in one turn of the event loop, those versions lose the reply or stop.

use super::{Callback, catch_panic};
use crate::blocked_client::BlockedClient;
use crate::server::{Context, api, version};
use crate::waiters::{self, Leaving};
use redis_module::raw;
use std::ffi::c_int;
use std::ptr::{self, NonNull};

/// The first version, as the server numbers itself, where CLIENT UNBLOCK and an unblock may meet. Valkey begins at 8.
const TIMEOUT_SAFE_SINCE: c_int = 0x0007_0400;

fn timeout_callback() -> raw::RedisModuleCmdFunc {
    if version() >= TIMEOUT_SAFE_SINCE { Some(on_unblock) } else { None }
}

/// Blocks the client of a command, which must be one that may be blocked.
pub fn block(context: Context) -> Option<NonNull<raw::RedisModuleBlockedClient>> {
    // SAFETY: the context is valid. The server never looks into the private data, and has nothing to free.
    let handle = unsafe {
        api!(RedisModule_BlockClient(context.as_ptr(), Some(on_reply), timeout_callback(), None, 0))
    };
    let handle = NonNull::new(handle)?;
    // SAFETY: the handle has just been made.
    unsafe { api!(RedisModule_SetDisconnectCallback(handle.as_ptr(), Some(on_disconnect))) };
    Some(handle)
}

/// Unblocks a client that has left its line.
pub fn unblock(client: BlockedClient) {
    // SAFETY: the handle is unblocked once, as its waiter has left the line and can be found there no more.
    unsafe { api!(RedisModule_UnblockClient(client.handle().as_ptr(), ptr::null_mut())) };
}

/// The client that a callback is about.
fn client(context: Context) -> Option<BlockedClient> {
    // SAFETY: this is a callback of a blocked client, and its context has the handle.
    let handle = unsafe { api!(RedisModule_GetBlockedClientHandle(context.as_ptr())) };
    NonNull::new(handle).map(BlockedClient::behind)
}

/// The client has left, or has been told by the server itself that it waits no more.
fn forget(client: BlockedClient, leaving: Leaving) {
    // Whoever takes a waiter out of its line unblocks it: with a reply that is pending, somebody has or is about to.
    if !waiters::drop_reply(client) && waiters::leave(client, leaving) {
        unblock(client);
    }
}

unsafe extern "C" fn on_reply(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server's context of this very call.
    let context = unsafe { Context::new(context) };
    let client = client(context);
    let told =
        catch_panic(Callback::Reply, false, || client.is_some_and(|client| waiters::tell(context, client)));
    if !told {
        context.reply_error("ERR internal error, see the server's log");
        catch_panic(Callback::Untold, (), || _ = client.map(waiters::drop_reply));
    }
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_disconnect(
    _context: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    catch_panic(Callback::Disconnect, (), || {
        if let Some(handle) = NonNull::new(handle) {
            forget(BlockedClient::behind(handle), Leaving::Disconnected);
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
    catch_panic(Callback::Unblock, (), || {
        if let Some(client) = client(context) {
            forget(client, Leaving::Unblocked);
        }
    });
    context.reply_null_array();
    raw::REDISMODULE_OK as c_int
}
