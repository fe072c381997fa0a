//! The reply of a command that the module has called.

use redis_module::raw;
use std::ffi::c_int;
use std::ptr::{self, NonNull};
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
        text_of(self.0)
    }

    /// The texts in a list in this reply, found by the position in each list on the way to it; `None` when there is no such list.
    pub fn texts_at(&self, path: &[usize]) -> Option<Vec<Vec<u8>>> {
        let mut list = self.0;
        for position in path {
            list = element(list, *position)?;
        }
        // SAFETY: the reply is valid, and what is in it lives as long.
        let len = unsafe { api!(RedisModule_CallReplyLength(list.as_ptr())) };
        Some(
            (0..len)
                .filter_map(|position| element(list, position))
                .map(|found| text_of(found).to_vec())
                .collect(),
        )
    }

    /// Whether the command waits: then it is stopped, and there is no reply.
    pub fn stop_waiting(&self) -> bool {
        // SAFETY: the reply is valid; nobody waits for the command's later reply.
        unsafe {
            let waits =
                api!(RedisModule_CallReplyType(self.0.as_ptr())) == raw::REDISMODULE_REPLY_PROMISE as c_int;
            if let (true, Some(abort)) = (waits, raw::RedisModule_CallReplyPromiseAbort) {
                abort(self.0.as_ptr(), ptr::null_mut());
            }
            waits
        }
    }

    /// The server's reply.
    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleCallReply {
        self.0.as_ptr()
    }
}

/// A reply in a list of replies.
fn element(
    list: NonNull<raw::RedisModuleCallReply>,
    position: usize,
) -> Option<NonNull<raw::RedisModuleCallReply>> {
    // SAFETY: the reply is valid; the server returns null if it is no list, or not so long.
    NonNull::new(unsafe { api!(RedisModule_CallReplyArrayElement(list.as_ptr(), position)) })
}

fn text_of<'a>(reply: NonNull<raw::RedisModuleCallReply>) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the reply is valid, and its text lives as long.
    unsafe {
        let start = api!(RedisModule_CallReplyStringPtr(reply.as_ptr(), &raw mut len));
        if start.is_null() { &[] } else { slice::from_raw_parts(start.cast(), len) }
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { api!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}
