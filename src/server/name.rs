//! The name of a key, as the server's string.

use super::context;
use lockward_core::Db;
use redis_module::raw;
use std::cell::OnceCell;
use std::ptr;

/// The name of a key in a database: an argument of the running command, or an [`OwnedName`].
#[derive(Clone)]
pub struct KeyName<'a> {
    db: Db,
    string: *mut raw::RedisModuleString,
    /// Asked for only where something is looked up by them: mostly the server alone looks for the key.
    bytes: OnceCell<&'a [u8]>,
}

impl<'a> KeyName<'a> {
    /// The name in `string`.
    ///
    /// # Safety
    /// `string` is valid for `'a`.
    pub const unsafe fn new(db: Db, string: *mut raw::RedisModuleString) -> Self {
        Self { db, string, bytes: OnceCell::new() }
    }

    /// The database.
    pub const fn db(&self) -> Db {
        self.db
    }

    /// The key.
    pub fn bytes(&self) -> &'a [u8] {
        // SAFETY: the string is valid for 'a, as who made this has promised.
        self.bytes.get_or_init(|| unsafe { context::string_bytes(self.string) })
    }

    /// Whether this is the same name as `other`.
    pub fn is(&self, other: &KeyName<'_>) -> bool {
        self.db == other.db && self.bytes() == other.bytes()
    }

    /// The server's string.
    pub const fn as_ptr(&self) -> *mut raw::RedisModuleString {
        self.string
    }
}

/// A name made for work that no command asked for.
pub struct OwnedName {
    db: Db,
    string: *mut raw::RedisModuleString,
}

impl OwnedName {
    /// The name of `key` in `db`.
    pub fn new(db: Db, key: &[u8]) -> Self {
        // SAFETY: the bytes are copied; without a context the string is ours to free.
        let string =
            unsafe { api!(RedisModule_CreateString(ptr::null_mut(), key.as_ptr().cast(), key.len())) };
        Self { db, string }
    }

    /// The name, for as long as this lives.
    pub fn name(&self) -> KeyName<'_> {
        // SAFETY: the string lives until drop.
        unsafe { KeyName::new(self.db, self.string) }
    }
}

impl Drop for OwnedName {
    fn drop(&mut self) {
        // SAFETY: created without a context in `new`, and freed once.
        unsafe { api!(RedisModule_FreeString(ptr::null_mut(), self.string)) };
    }
}
