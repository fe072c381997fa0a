//! The reply of a command that the module has called.

use redis_module::raw;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

/// A reply of `RM_Call`. The reply is freed when this value is dropped.
pub struct CallReply(NonNull<raw::RedisModuleCallReply>);

impl CallReply {
    /// Takes ownership of a reply; `None` if the server has returned no reply.
    ///
    /// # Safety
    /// `reply` comes from `RM_Call`, and no other code frees it.
    pub unsafe fn new(reply: *mut raw::RedisModuleCallReply) -> Option<Self> {
        NonNull::new(reply).map(Self)
    }

    /// The text of an error; `None` for anything else.
    pub fn error(&self) -> Option<&[u8]> {
        (self.kind() == raw::REDISMODULE_REPLY_ERROR as c_int).then(|| self.root().text())
    }

    pub fn root(&self) -> ReplyPart<'_> {
        ReplyPart(self.0, PhantomData)
    }

    /// Whether the command waits, and replies later. Such a reply has no text and no parts.
    pub fn is_promise(&self) -> bool {
        self.kind() == raw::REDISMODULE_REPLY_PROMISE as c_int
    }

    /// Whether the command has sent no reply.
    pub fn is_empty(&self) -> bool {
        self.kind() == raw::REDISMODULE_REPLY_UNKNOWN as c_int
    }

    fn kind(&self) -> c_int {
        // SAFETY: the reply is valid.
        unsafe { api!(RedisModule_CallReplyType(self.0.as_ptr())) }
    }

    /// Whether the server can return promises: Redis from 7.2 on, and Valkey.
    pub fn may_be_promise() -> bool {
        // SAFETY: the server set this function pointer when the module was loaded.
        unsafe { raw::RedisModule_CallReplyPromiseAbort }.is_some()
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleCallReply {
        self.0.as_ptr()
    }
}

/// A part of a reply.
#[derive(Clone, Copy)]
pub struct ReplyPart<'a>(NonNull<raw::RedisModuleCallReply>, PhantomData<&'a ()>);

impl<'a> ReplyPart<'a> {
    /// The parts of a list; none for anything else.
    pub fn parts(self) -> impl Iterator<Item = Self> {
        (0..).map_while(move |position| self.at(position))
    }

    /// The part of a list at this position.
    pub fn at(self, position: usize) -> Option<Self> {
        // SAFETY: the reply is valid for 'a. The server returns null if the reply is not a list, or is a
        // shorter list.
        let part = unsafe { api!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), position)) };
        NonNull::new(part).map(|part| Self(part, PhantomData))
    }

    /// The value of this name in a map. RESP2 sends a map as a list of names and values.
    pub fn field(self, name: &[u8]) -> Option<Self> {
        let position = self.parts().step_by(2).position(|part| part.text() == name)?;
        self.at(position.checked_mul(2)?.checked_add(1)?)
    }

    /// The text of a string or an error; empty for anything else.
    pub fn text(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: the reply and its text are valid for 'a.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0.as_ptr(), &raw mut len));
            if start.is_null() { &[] } else { slice::from_raw_parts(start.cast(), len) }
        }
    }

    /// The number; `i64::MIN` if the part is not a number.
    pub fn number(self) -> i64 {
        // SAFETY: the reply is valid for 'a.
        unsafe { api!(RedisModule_CallReplyInteger(self.0.as_ptr())) }
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: this value owns the reply, and frees it once.
        unsafe { api!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}
