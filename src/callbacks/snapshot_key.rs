//! The data type of snapshot keys: how the server writes and reads the key that carries dropped locks in a snapshot,
//! see [`crate::snapshot`]. In memory the key has no value of its own, because the dropped locks are in the store.

use super::data_type::{NO_METHODS, emit_apply, save_string, with_loaded_string};
use crate::panics::catch_panic;
use crate::server::{Context, SNAPSHOT_KEY, api, string_bytes};
use crate::snapshot::{self, Carried};
use lockward_core::{Db, encoding};
use redis_module::raw;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

/// The name of the type. The server requires nine characters.
const NAME: &CStr = c"lockward_";

/// The version of the type, which the server writes into RDB files. This version stands for the form that [`rdb_save`]
/// writes: a database, and a list of keys and payloads. So the version must not change. Each payload begins with the
/// version of core's encoding.
const ENCODING: c_int = 1;

/// Makes the data type. Returns false if the server refuses the type.
pub fn register(context: Context) -> bool {
    let methods = raw::RedisModuleTypeMethods {
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        free: Some(free),
        ..NO_METHODS
    };
    SNAPSHOT_KEY.create(context, NAME, ENCODING, methods)
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, _value: *mut c_void) {
    catch_panic("RdbSave", (), || {
        // SAFETY: `io` is valid for this call.
        let db = Db(unsafe { api!(RedisModule_GetDbIdFromIO(io)) });
        let all = snapshot::carried(db, encoding::append_lock);
        // SAFETY: `io` is valid for this call, and the server copies the bytes.
        unsafe {
            api!(RedisModule_SaveUnsigned(io, u64::try_from(db.0).unwrap_or_default()));
            api!(RedisModule_SaveUnsigned(io, u64::try_from(all.len()).unwrap_or(u64::MAX)));
            for Carried { key, payload } in all {
                save_string(io, &key);
                save_string(io, &payload);
            }
        }
    });
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    catch_panic("RdbLoad", ptr::null_mut(), || {
        if version != ENCODING {
            return ptr::null_mut();
        }
        // SAFETY: `io` is valid for this call.
        let Some((db, all)) = (unsafe { read(io) }) else { return ptr::null_mut() };
        // SAFETY: `io` is valid for this call, and the name is null or valid through the call.
        let name = unsafe {
            let name = api!(RedisModule_GetKeyNameFromIO(io));
            if name.is_null() { &[] } else { string_bytes(name) }
        };
        if snapshot::load(db, name, &all) { ptr::dangling_mut() } else { ptr::null_mut() }
    })
}

/// Reads what [`rdb_save`] has written: the database and its dropped locks. Redis 7.0 cannot name the database while it
/// loads a data set beside its old data set, so the value contains the database.
///
/// # Safety
/// The server has passed `io` to the running callback.
unsafe fn read(io: *mut raw::RedisModuleIO) -> Option<(Db, Vec<Carried>)> {
    // SAFETY: the caller promises a valid `io`.
    let (db, count) = unsafe { (api!(RedisModule_LoadUnsigned(io)), api!(RedisModule_LoadUnsigned(io))) };
    let db = Db(i32::try_from(db).ok()?);
    let mut all = Vec::new();
    for _ in 0..count {
        // SAFETY: the caller promises a valid `io`.
        let (key, payload) =
            unsafe { (with_loaded_string(io, <[u8]>::to_vec)?, with_loaded_string(io, <[u8]>::to_vec)?) };
        all.push(Carried { key, payload });
    }
    // SAFETY: the caller promises a valid `io`.
    (unsafe { api!(RedisModule_IsIOError(io)) } == 0).then_some((db, all))
}

unsafe extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    _key: *mut raw::RedisModuleString,
    _value: *mut c_void,
) {
    catch_panic("AofRewrite", (), || {
        // SAFETY: `io` is valid for this call.
        let db = Db(unsafe { api!(RedisModule_GetDbIdFromIO(io)) });
        let append =
            |payload: &mut Vec<u8>, lock: &_, now| encoding::append_dropped_lock(payload, Some(lock), now);
        for Carried { key, payload } in snapshot::carried(db, append) {
            // SAFETY: `io` is valid for this call.
            unsafe { emit_apply(io, &key, &payload) };
        }
    });
}

unsafe extern "C" fn free(_value: *mut c_void) {}
