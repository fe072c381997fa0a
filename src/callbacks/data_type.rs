//! The data type: how the server saves, loads, measures, moves and frees a lock.

use crate::panics::{catch_panic, catch_panic_on_any_thread};
use crate::server::{APPLY, Context, KeyName, LOCK, api, clock, lock_allocation, string_bytes};
use crate::{server_events, state, stored};
use lockward_core::{Db, FencingToken, Lock, encoding};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::{mem, ptr, slice};

/// The name that TYPE returns and that `SCAN ... TYPE` takes. The name ends in a hyphen, because the server requires
/// nine characters.
const NAME: &CStr = c"lockward-";

/// The version of the type, which the server writes into RDB files. This version says only that the value is one
/// string. So this version must not change. The string begins with the version of the encoding.
const ENCODING: c_int = 1;

/// A table without any methods. Each data type adds the methods that it has.
pub const NO_METHODS: raw::RedisModuleTypeMethods = raw::RedisModuleTypeMethods {
    version: raw::REDISMODULE_TYPE_METHOD_VERSION as u64,
    rdb_load: None,
    rdb_save: None,
    aof_rewrite: None,
    mem_usage: None, // every server that can load the module has mem_usage2
    digest: None,
    free: None,
    aux_load: None, // an RDB file has no data beside the keys: tokens need no stored counter
    aux_save: None,
    aux_save_triggers: 0,
    free_effort: None, // every server that can load the module has free_effort2
    unlink: None,      // unlink2 also gets the database
    copy: None,        // COPY is refused: one tenure cannot be in two places
    defrag: None,
    mem_usage2: None,
    free_effort2: None,
    unlink2: None,
    copy2: None,
    aux_save2: None,
};

/// Makes the data type of locks. Returns false if the server refuses the type.
pub fn register(context: Context) -> bool {
    let methods = raw::RedisModuleTypeMethods {
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        digest: Some(digest),
        free: Some(free),
        defrag: Some(defrag),
        mem_usage2: Some(mem_usage),
        free_effort2: Some(free_effort),
        unlink2: Some(unlink),
        ..NO_METHODS
    };
    LOCK.create(context, NAME, ENCODING, methods)
}

/// The lock behind a value of our type.
///
/// # Safety
/// The module gave `value` to the server, and the server has not freed it.
unsafe fn lock<'a>(value: *const c_void) -> Option<&'a Lock> {
    // SAFETY: every value that the module gave to the server is a boxed lock.
    unsafe { value.cast::<Lock>().as_ref() }
}

/// Reads a string from an RDB file, and passes it to `read`. Returns `None` when there is no string.
///
/// # Safety
/// The server has passed `io` to the running callback.
pub unsafe fn with_loaded_string<R>(io: *mut raw::RedisModuleIO, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let mut len = 0;
    // SAFETY:
    // - the caller promises a valid `io`;
    // - the server has read `len` bytes into a buffer of its allocator, which is freed once.
    unsafe {
        let buffer = api!(RedisModule_LoadStringBuffer(io, &raw mut len));
        if buffer.is_null() {
            return None;
        }
        let result = read(slice::from_raw_parts(buffer.cast(), len));
        api!(RedisModule_Free(buffer.cast()));
        Some(result)
    }
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    catch_panic("RdbLoad", ptr::null_mut(), || {
        if version != ENCODING {
            stored::warn_of_version(version);
            return ptr::null_mut();
        }
        // SAFETY: `io` is valid for this call.
        let loaded = unsafe { with_loaded_string(io, stored::load) }.flatten();
        loaded.map_or(ptr::null_mut(), |lock| lock_allocation::give(Box::new(lock)).cast())
    })
}

/// The lock behind a value of our type, encoded.
///
/// # Safety
/// The conditions of [`lock`] hold.
unsafe fn encoded(value: *const c_void) -> Vec<u8> {
    let mut payload = Vec::new();
    // SAFETY: the caller promises a valid value.
    if let Some(lock) = unsafe { lock(value) } {
        encoding::append_lock(&mut payload, lock, clock::read());
    }
    payload
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: `io` and `value` are valid for this call.
    catch_panic("RdbSave", (), || unsafe { save_string(io, &encoded(value)) });
}

/// Writes a string to an RDB file.
///
/// # Safety
/// The server has passed `io` to the running callback.
pub unsafe fn save_string(io: *mut raw::RedisModuleIO, bytes: &[u8]) {
    // SAFETY: the caller promises a valid `io`, and the server copies the bytes.
    unsafe { api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast(), bytes.len())) };
}

unsafe extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: `io`, `key` and `value` are valid for this call.
    catch_panic("AofRewrite", (), || unsafe { emit_apply(io, string_bytes(key), &encoded(value)) });
}

/// Writes LOCK._APPLY with a key and a payload to the AOF.
///
/// # Safety
/// The server has passed `io` to the running callback.
pub unsafe fn emit_apply(io: *mut raw::RedisModuleIO, key: &[u8], payload: &[u8]) {
    let (key, key_len) = (key.as_ptr().cast::<c_char>(), key.len());
    let (payload, payload_len) = (payload.as_ptr().cast::<c_char>(), payload.len());
    // SAFETY: the caller promises a valid `io`. The arguments match the format: two buffers with their lengths.
    unsafe {
        api!(RedisModule_EmitAOF(io, APPLY.as_ptr(), c"bb".as_ptr(), key, key_len, payload, payload_len));
    }
}

unsafe extern "C" fn free(value: *mut c_void) {
    // The server may call this function on another thread. SAFETY: `value` is a lock that the module gave to the
    // server, and the server gives the lock back once.
    catch_panic_on_any_thread("Free", (), || unsafe { lock_allocation::free(value.cast()) });
}

/// The cost of freeing a lock. The server frees a lock with many holders on another thread. The module itself deletes
/// only locks without holders, which the server frees at once.
unsafe extern "C" fn free_effort(_context: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) -> usize {
    catch_panic_on_any_thread("Free", 1, || {
        // SAFETY: `value` is valid for this call.
        unsafe { lock(value) }.map_or(1, |lock| lock.holders().len().max(1))
    })
}

unsafe extern "C" fn mem_usage(
    _context: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
    _samples: usize,
) -> usize {
    catch_panic("MemUsage", 0, || {
        // SAFETY: `value` is valid for this call, and is an allocation of the server's allocator.
        let (size, lock) = unsafe { (api!(RedisModule_MallocSize(value.cast_mut())), lock(value)) };
        size.saturating_add(lock.map_or(0, Lock::heap_size))
    })
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    catch_panic("Digest", (), || {
        // SAFETY: `value` is valid for this call.
        let Some(lock) = (unsafe { lock(value) }) else { return };
        // The digest must be the same on a primary and its replica. Each server stores the deadline by its own clock,
        // so the digest leaves out the deadline.
        for holder in lock.holders() {
            let owner = holder.owner.to_bytes();
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            // SAFETY: `digest` is valid for this call, and the server copies the bytes.
            unsafe {
                api!(RedisModule_DigestAddStringBuffer(digest, owner.as_ptr().cast(), owner.len()));
                api!(RedisModule_DigestAddLongLong(digest, number(holder.token.get())));
                api!(RedisModule_DigestAddLongLong(digest, number(holder.holds.into())));
                api!(RedisModule_DigestAddLongLong(digest, number(holder.mode.slots.number().into())));
                api!(RedisModule_DigestAddLongLong(digest, number(holder.mode.weight.number().into())));
                api!(RedisModule_DigestEndSequence(digest));
            }
        }
    });
}

unsafe extern "C" fn unlink(context: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    // This callback ignores the module's own changes.
    if !state::own_write() {
        // SAFETY: the server's context and value are valid for this call.
        unsafe { unlinked(context, value) };
    }
}

/// # Safety
/// The server has passed context and value to the running callback.
#[inline(never)]
unsafe fn unlinked(context: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    catch_panic("Unlink", (), || {
        // SAFETY: the caller promises a valid context and value, and the name is valid through the call.
        unsafe {
            let db = Db(api!(RedisModule_GetDbIdFromOptCtx(context)));
            let name = api!(RedisModule_GetKeyNameFromOptCtx(context));
            if let (false, Some(lock)) = (name.is_null(), lock(value)) {
                server_events::unlinked(&KeyName::new(db, name.cast_mut()), lock);
            }
        }
    });
}

/// For a lock with many holders, the server calls this function again until the function returns 0. The cursor is the
/// token of the last holder that was visited.
unsafe extern "C" fn defrag(
    context: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    catch_panic("Defrag", 0, || {
        // SAFETY:
        // - the value, and an owner on the heap, are each one allocation of the server's allocator;
        // - `DefragAlloc` either moves an allocation and frees the old place, or returns null and changes
        //   nothing;
        // - a moved owner is put in place without dropping the box that pointed to its old place;
        // - the server's context is valid for this call.
        unsafe {
            let mut cursor = 0;
            api!(RedisModule_DefragCursorGet(context, &raw mut cursor));
            let after = FencingToken::new(cursor);
            if after.is_none() {
                let moved = api!(RedisModule_DefragAlloc(context, *value));
                if !moved.is_null() {
                    *value = moved;
                }
            }
            let Some(lock) = (*value).cast::<Lock>().as_mut() else { return 0 };
            for (token, owner) in lock.owners_mut(after) {
                if let Some(owner) = owner.heap_part() {
                    let moved = api!(RedisModule_DefragAlloc(context, owner.as_mut_ptr().cast()));
                    if !moved.is_null() {
                        let there =
                            Box::from_raw(ptr::slice_from_raw_parts_mut(moved.cast::<u8>(), owner.len()));
                        mem::forget(mem::replace(owner, there));
                    }
                }
                if api!(RedisModule_DefragShouldStop(context)) != 0
                    && api!(RedisModule_DefragCursorSet(context, token.get())) == raw::REDISMODULE_OK as c_int
                {
                    return 1;
                }
            }
        }
        0
    })
}
