//! The server's strings.

use super::key_name::{KeyName, string_bytes};
use lockward_core::Db;
use redis_module::raw;
use std::slice;

/// The arguments of a command, valid for `'a`.
pub struct ArgumentStrings<'a>(slice::Iter<'a, *mut raw::RedisModuleString>);

/// One argument of a command.
pub struct ArgumentString<'a>(&'a *mut raw::RedisModuleString);

impl<'a> ArgumentStrings<'a> {
    /// The arguments after the command's name.
    ///
    /// # Safety
    /// Every string in `argv` is valid for `'a`.
    pub unsafe fn new(argv: &'a [*mut raw::RedisModuleString]) -> Self {
        let mut words = argv.iter();
        words.next();
        Self(words)
    }

    /// The remaining strings.
    pub(super) fn as_slice(&self) -> &'a [*mut raw::RedisModuleString] {
        self.0.as_slice()
    }
}

impl<'a> Iterator for ArgumentStrings<'a> {
    type Item = ArgumentString<'a>;

    fn next(&mut self) -> Option<ArgumentString<'a>> {
        self.0.next().map(ArgumentString)
    }
}

impl<'a> ArgumentString<'a> {
    /// The argument as the name of a key in `db`.
    pub fn key_name(self, db: Db) -> KeyName<'a> {
        // SAFETY: the caller of `ArgumentStrings::new` promises strings that are valid for 'a.
        unsafe { KeyName::new(db, *self.0) }
    }
}

impl<'a> From<ArgumentString<'a>> for &'a [u8] {
    fn from(argument: ArgumentString<'a>) -> Self {
        // SAFETY: the caller of `ArgumentStrings::new` promises strings that are valid for 'a, and the server
        // does not change the arguments of a command.
        unsafe { string_bytes(*argument.0) }
    }
}
