//! Calls the module when the running command, transaction, script or function is over.

use super::context::Context;
use super::entry_points::entry_points;
use redis_module::raw;
use std::ffi::c_int;
use std::ptr;

/// Calls the module's entry point once, when the running command is over. If the command runs in a transaction, script
/// or function, the server makes this call when the whole transaction, script or function is over.
///
/// Returns false if the server will not make this call: on Redis 7.0, while the server loads data, and on a read-only
/// replica.
pub fn call_when_over(context: Context) -> bool {
    // SAFETY: the context is valid, and the callback takes no data.
    let status = unsafe {
        raw::RedisModule_AddPostNotificationJob
            .map(|add| add(context.as_ptr(), entry_points().over, ptr::null_mut(), None))
    };
    status == Some(raw::REDISMODULE_OK as c_int)
}
