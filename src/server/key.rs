//! Open keys, and the locks in them.

use super::{Context, KeyName, lock_allocation};
use lockward_core::{Db, Lock, WallTime};
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A data type of the module. Null until the type has been created.
pub struct DataType(AtomicPtr<raw::RedisModuleType>);

/// The data type of locks.
pub static LOCK: DataType = DataType(AtomicPtr::new(ptr::null_mut()));

/// The data type of snapshot keys.
pub static SNAPSHOT_KEY: DataType = DataType(AtomicPtr::new(ptr::null_mut()));

impl DataType {
    /// Makes the data type. Returns false when the server refuses the type. The name must have nine characters.
    pub fn create(
        &self,
        context: Context,
        name: &CStr,
        version: c_int,
        mut methods: raw::RedisModuleTypeMethods,
    ) -> bool {
        let (context, name) = (context.as_ptr(), name.as_ptr());
        // SAFETY: the context is valid while the server loads the module, and the server copies the name and the
        // methods.
        let created = unsafe { api!(RedisModule_CreateDataType(context, name, version, &raw mut methods)) };
        self.0.store(created, Ordering::Relaxed);
        !created.is_null()
    }

    fn get(&self) -> *mut raw::RedisModuleType {
        self.0.load(Ordering::Relaxed)
    }
}

/// The key holds something that is not a lock.
#[derive(Debug)]
pub struct WrongType;

/// An open key, which is closed when this value is dropped. If a key whose TTL has passed is opened for
/// writing, the server first deletes the key, and calls back into the module for this.
pub struct OpenKey<'a> {
    key: *mut raw::RedisModuleKey,
    /// The lock in the key, after [`Self::content`] has found it.
    value: *mut Lock,
    open: PhantomData<&'a ()>,
}

impl<'a> OpenKey<'a> {
    /// Opens a key to change it. The server counts no hit or miss, and sends no signal of a change.
    pub fn for_write(context: Context, name: &KeyName<'a>) -> Self {
        Self::open(context, name, raw::REDISMODULE_WRITE)
    }

    /// Opens a key to inspect it. The server counts no hit and no miss. From Redis 7.2 on, a key whose TTL
    /// has passed is not deleted.
    pub fn to_look(context: Context, name: &KeyName<'a>) -> Self {
        const NO_EFFECTS: u32 = raw::REDISMODULE_OPEN_KEY_NOTOUCH
            | raw::REDISMODULE_OPEN_KEY_NONOTIFY
            | raw::REDISMODULE_OPEN_KEY_NOSTATS
            | raw::REDISMODULE_OPEN_KEY_NOEXPIRE;
        Self::open(context, name, raw::REDISMODULE_READ | NO_EFFECTS)
    }

    pub fn for_read(context: Context, name: &KeyName<'a>) -> Self {
        Self::open(context, name, raw::REDISMODULE_READ)
    }

    fn open(context: Context, name: &KeyName<'a>, mode: u32) -> Self {
        let mode = c_int::try_from(mode).unwrap_or_default();
        // SAFETY: the context and the name are valid for 'a.
        let key = unsafe { api!(RedisModule_OpenKey(context.as_ptr(), name.as_ptr(), mode)) };
        Self { key, value: ptr::null_mut(), open: PhantomData }
    }

    /// The database of the key; `None` when there is no key.
    pub fn db(&self) -> Option<Db> {
        // SAFETY: the key is open, or null.
        (!self.key.is_null()).then(|| Db(unsafe { api!(RedisModule_GetDbIdFromModuleKey(self.key)) }))
    }

    /// The lock in the key; `None` if the key does not exist.
    pub fn content(&mut self) -> Result<Option<&mut Lock>, WrongType> {
        // SAFETY: the key is open, or null if it was opened for reading and does not exist; the API allows null.
        let of_type = unsafe { api!(RedisModule_ModuleTypeGetType(self.key)) };
        if of_type.is_null() || of_type != LOCK.get() {
            // SAFETY: the key is open, or null, which the API allows.
            let kind = unsafe { api!(RedisModule_KeyType(self.key)) };
            let is_missing = kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
            return if is_missing { Ok(None) } else { Err(WrongType) };
        }
        // SAFETY: the key is open.
        self.value = unsafe { api!(RedisModule_ModuleTypeGetValue(self.key)) }.cast();
        // SAFETY:
        // - a value of our type was made by `lock_allocation::give`, in `create` or in the type's load callback;
        // - the value lives as long as the key, and `self` is borrowed while the reference is used;
        // - all code runs under the server's lock, and the key is opened only once at a time.
        unsafe { self.value.as_mut() }.map(Some).ok_or(WrongType)
    }

    /// Stores `lock` and its expiry time in a key that holds nothing. A free lock is not stored.
    #[inline(always)]
    pub fn create(&mut self, lock: Box<Lock>) {
        if lock.is_free() {
            return lock_allocation::keep(lock);
        }
        let expires_at = lock.expires_at();
        let value = lock_allocation::give(lock);
        let of_type = LOCK.get();
        // SAFETY: the key is open for writing, and the value belongs to the server after this call.
        let stored = unsafe { api!(RedisModule_ModuleTypeSetValue(self.key, of_type, value.cast())) };
        if stored != raw::REDISMODULE_OK as c_int {
            // SAFETY: the server has refused the value, so the module still owns it.
            return unsafe { lock_allocation::free(value) };
        }
        self.expire_at(expires_at);
    }

    /// Carries out a change of the lock in the key. `before` is the expiry time of the lock before the change, and
    /// `after` is the expiry time now. A free lock has none: its key is deleted. When a lease begins, the key gets the
    /// expiry time of the lock. When the tenure with the latest deadline ends early, the key gets an earlier expiry
    /// time. All other changes leave the TTL of the key alone. So a TTL that a client has set stays until the next
    /// lease, and a key without a TTL stays without one.
    ///
    /// The existence of the TTL must not depend on the order in which the leases end. This order may differ on a
    /// replica, because leases on a replica begin when the replica receives them.
    pub fn changed(&mut self, before: WallTime, after: Option<WallTime>, leased: bool) {
        match after {
            None => lock_allocation::deleting(self.value, || {
                // SAFETY: the key is open for writing.
                unsafe { api!(RedisModule_DeleteKey(self.key)) };
            }),
            Some(after) if leased => self.expire_at(after),
            Some(after) if after < before && self.expires_at() > Some(after) => self.expire_at(after),
            Some(_) => {}
        }
    }

    /// The time at which the key expires, by the TTL that the module or a client has set; `None` without a
    /// TTL or without a key.
    pub fn expires_at(&self) -> Option<WallTime> {
        // SAFETY: the key is open. From 8.2 on, `RM_GetAbsExpire` of a missing key crashes Redis, so the key
        // type is checked first.
        let time = unsafe {
            if api!(RedisModule_KeyType(self.key)) == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
                return None;
            }
            api!(RedisModule_GetAbsExpire(self.key))
        };
        (time >= 0).then(|| WallTime::from_millis(time))
    }

    /// Stores a snapshot key in a key that holds nothing.
    pub fn create_snapshot_key(&mut self) {
        let of_type = SNAPSHOT_KEY.get();
        // SAFETY: the key is open for writing, and nobody reads or frees the value of a snapshot key.
        unsafe { api!(RedisModule_ModuleTypeSetValue(self.key, of_type, ptr::dangling_mut())) };
    }

    pub fn delete_snapshot_key(&mut self) {
        // SAFETY: the key is open for writing.
        unsafe {
            let of_type = api!(RedisModule_ModuleTypeGetType(self.key));
            if !of_type.is_null() && of_type == SNAPSHOT_KEY.get() {
                api!(RedisModule_DeleteKey(self.key));
            }
        }
    }

    fn expire_at(&mut self, time: WallTime) {
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.key, time.as_millis().max(0))) };
    }
}

impl Drop for OpenKey<'_> {
    fn drop(&mut self) {
        // SAFETY: the key was opened once and is closed once. The API allows null.
        unsafe { api!(RedisModule_CloseKey(self.key)) };
    }
}
