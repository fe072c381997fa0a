//! Callbacks of blocked clients: reply, disconnect, CLIENT UNBLOCK. See [`BlockedClient`].

use crate::errors::Error;
use crate::panics::catch_panic;
use crate::server::{BlockedClient, Context};
use crate::waiters;
use lockward_core::Absence;
use redis_module::raw;
use std::ffi::c_int;
use std::ptr::NonNull;

pub unsafe extern "C" fn on_reply(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server's context is valid for this call.
    let context = unsafe { Context::new(context) };
    let client = BlockedClient::of_callback(context);
    let replied =
        catch_panic("Reply", false, || client.is_some_and(|client| waiters::reply(context, client)));
    if !replied {
        Error::Internal.reply(context);
        catch_panic("ReplyFailed", (), || _ = client.map(waiters::drop_reply));
    }
    raw::REDISMODULE_OK as c_int
}

pub unsafe extern "C" fn on_disconnect(
    _context: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    catch_panic("Disconnect", (), || {
        if let Some(handle) = NonNull::new(handle) {
            waiters::leave(BlockedClient::with_handle(handle), Absence::Disconnected);
        }
    });
}

pub unsafe extern "C" fn on_unblock(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server's context is valid for this call.
    let context = unsafe { Context::new(context) };
    catch_panic("Unblock", (), || {
        if let Some(client) = BlockedClient::of_callback(context) {
            waiters::leave(client, Absence::LimitReached);
        }
    });
    context.reply_null_array();
    raw::REDISMODULE_OK as c_int
}
