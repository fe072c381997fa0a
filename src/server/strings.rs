//! The server's strings.

use super::key_name::{KeyName, string_bytes};
use lockward_core::Db;
use redis_module::raw;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::slice;

/// One argument of a command, valid for `'a`.
#[repr(transparent)]
pub struct ArgumentString<'a>(*mut raw::RedisModuleString, PhantomData<&'a ()>);

/// The arguments of a command.
pub type ArgumentStrings<'a> = slice::Iter<'a, ArgumentString<'a>>;

/// The arguments after the command's name.
///
/// # Safety
/// The server has passed `argv` and `argc` to the running callback, which lasts for `'a`.
pub unsafe fn argument_strings<'a>(
    argv: *const *mut raw::RedisModuleString,
    argc: c_int,
) -> ArgumentStrings<'a> {
    let count = usize::try_from(argc).unwrap_or_default();
    // SAFETY: the caller promises `argc` strings, which are valid for 'a.
    let words = unsafe { slice::from_raw_parts(argv.cast(), count) };
    words.get(1..).unwrap_or_default().iter()
}

impl<'a> ArgumentString<'a> {
    /// The argument as the name of a key in `db`.
    pub fn key_name(&self, db: Db) -> KeyName<'a> {
        // SAFETY: the caller of `argument_strings` promises strings that are valid for 'a.
        unsafe { KeyName::new(db, self.0) }
    }

    pub(super) const fn as_ptr(&self) -> *mut raw::RedisModuleString {
        self.0
    }
}

impl<'a> From<&'a ArgumentString<'a>> for &'a [u8] {
    fn from(argument: &'a ArgumentString<'a>) -> Self {
        // SAFETY: the caller of `argument_strings` promises strings that are valid for 'a, and the server
        // does not change the arguments of a command.
        unsafe { string_bytes(argument.0) }
    }
}
