//! The server's strings.

use super::key_name::KeyName;
use lockward_core::Db;
use redis_module::raw;
use std::slice;

/// The bytes of a string of the server.
///
/// # Safety
/// `string` is valid and unchanged for `'a`.
pub unsafe fn string_bytes<'a>(string: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the string is valid for `'a`. The returned pointer is not null, and `len` bytes can be read from it while
    // the string is valid and unchanged.
    unsafe {
        let start = api!(RedisModule_StringPtrLen(string, &raw mut len));
        slice::from_raw_parts(start.cast(), len)
    }
}

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
