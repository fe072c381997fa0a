//! The reply of a command that the module has called.

use redis_module::raw;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::slice;

/// A reply of `RM_Call`, freed when this is dropped.
pub struct CallReply(NonNull<raw::RedisModuleCallReply>);

impl CallReply {
    /// Takes over a reply; `None` when the server has given none.
    ///
    /// # Safety
    /// `reply` comes from `RM_Call` and is freed by nobody else.
    pub unsafe fn new(reply: *mut raw::RedisModuleCallReply) -> Option<Self> {
        NonNull::new(reply).map(Self)
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        // SAFETY: the reply is valid.
        let kind = unsafe { api!(RedisModule_CallReplyType(self.0.as_ptr())) };
        kind == raw::REDISMODULE_REPLY_ERROR as c_int
    }

    /// The text of a string or an error; empty for anything else.
    pub fn text(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the reply is valid, and its text lives as long.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0.as_ptr(), &raw mut len));
            if start.is_null() { &[] } else { slice::from_raw_parts(start.cast(), len) }
        }
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { api!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}
