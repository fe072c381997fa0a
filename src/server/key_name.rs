//! The name of a key, and its bytes, as a `RedisModuleString`.

use lockward_core::{Db, NameRef};
use redis_module::raw;
use std::cell::OnceCell;
use std::{ptr, slice};

/// The bytes of a `RedisModuleString`.
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

/// The name of a key in a database. The string is an argument of the running command, or belongs to this name.
pub struct KeyName<'a> {
    db: Db,
    string: *mut raw::RedisModuleString,
    /// Whether the string is freed together with this name.
    owned: bool,
    /// The bytes of the key, read on first use. Usually only the server needs the bytes.
    bytes: OnceCell<&'a [u8]>,
}

impl<'a> KeyName<'a> {
    /// The name in `string`.
    ///
    /// # Safety
    /// `string` is valid for `'a`.
    pub const unsafe fn new(db: Db, string: *mut raw::RedisModuleString) -> Self {
        Self { db, string, owned: false, bytes: OnceCell::new() }
    }

    /// The name of `key` in `db`, for work outside of commands.
    pub fn copied(db: Db, key: &[u8]) -> Self {
        // SAFETY: the server copies the bytes. Because the context is null, the module must free the string.
        let string =
            unsafe { api!(RedisModule_CreateString(ptr::null_mut(), key.as_ptr().cast(), key.len())) };
        Self { db, string, owned: true, bytes: OnceCell::new() }
    }

    pub const fn as_ptr(&self) -> *mut raw::RedisModuleString {
        self.string
    }
}

impl NameRef for KeyName<'_> {
    #[inline]
    fn db(&self) -> Db {
        self.db
    }

    #[inline]
    fn key(&self) -> &[u8] {
        // SAFETY: the string is valid as long as `self`, and the returned bytes are borrowed from `self`.
        self.bytes.get_or_init(|| unsafe { string_bytes(self.string) })
    }
}

impl Drop for KeyName<'_> {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: `copied` created the string without a context, and it is freed once.
            unsafe { api!(RedisModule_FreeString(ptr::null_mut(), self.string)) };
        }
    }
}
