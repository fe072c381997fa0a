//! Counts the locks that the server stores as values of keys, and manages their memory.
//!
//! No event reports every lock that leaves the keyspace: FLUSHALL and a full resync do not name locks, and RENAME
//! reports a lock that continues under another name. But when the server frees a value, its lock is certainly gone.
//!
//! The module uses the memory of a released lock for the next lock. This reuse saves the bookkeeping of the server's
//! allocator, about 20 ns for an acquire and a release.

use super::shared::Shared;
use lazy_static::lazy_static;
use lockward_core::Lock;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The module keeps the memory of at most this many released locks: 3 KB.
const SPARE: usize = 64;

/// The number of values that were given to the server, minus the values that the module has deleted. Written
/// only under the server's lock.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// The number of values that the server has freed although the module did not delete them. The server's own threads
/// write this number too, because FLUSHALL ASYNC frees values in the background.
static FREED: AtomicU64 = AtomicU64::new(0);

/// The value that the module is deleting now. Another thread may free other values meanwhile.
static DELETED: AtomicPtr<Lock> = AtomicPtr::new(ptr::null_mut());

lazy_static! {
    /// Spare memory. Used when the module makes a lock for a key, and when [`free`] frees a lock that the module
    /// deletes. Both happen under the server's lock.
    static ref SPARES: Shared<Spares> = Shared::new(Vec::new());
}

#[allow(clippy::vec_box, reason = "what is kept is the memory of each")]
type Spares = Vec<Box<Lock>>;

/// Memory for a lock, from the spares if there are any. The caller passes the memory to `give` or `keep`.
pub fn spare() -> Box<Lock> {
    SPARES.with(Vec::pop).unwrap_or_default()
}

/// Keeps the memory of a lock for the next [`spare`].
pub fn keep(mut lock: Box<Lock>) {
    if !lock.is_free() {
        *lock = Lock::new();
    }
    SPARES.with(|spares| {
        if spares.len() < SPARE {
            spares.push(lock);
        }
    });
}

/// The lock as a value for the server, which frees it through [`free`].
pub fn give(lock: Box<Lock>) -> *mut Lock {
    GIVEN.store(GIVEN.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    Box::into_raw(lock)
}

/// Calls `delete`, by which the server deletes the key of a value. The server frees the value during the call, because
/// a lock without holders is cheap to free (`freeObjAsync`). During the call, another module may be notified and make
/// this module delete a second value. In this case the first value counts in `FREED`.
pub fn deleting(value: *mut Lock, delete: impl FnOnce()) {
    DELETED.store(value, Ordering::Relaxed);
    delete();
    DELETED.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Frees a value.
///
/// # Safety
/// `value` was made by [`give`], and is freed once.
pub unsafe fn free(value: *mut Lock) {
    // SAFETY: the caller promises a value from `give`, which is freed once.
    let lock = unsafe { Box::from_raw(value) };
    if value == DELETED.load(Ordering::Relaxed) {
        GIVEN.store(GIVEN.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
        keep(lock);
    } else {
        // The store may share memory with this lock. The memory is released before the count grows. So if the store
        // reads the new count, no other value shares the memory.
        drop(lock);
        FREED.fetch_add(1, Ordering::Release);
    }
}

/// How many values the server has freed since the module was loaded. The values that the module has deleted do not
/// count.
pub fn freed() -> u64 {
    FREED.load(Ordering::Acquire)
}

/// How many locks are in the keyspace. After FLUSHALL ASYNC the server takes a while to free the locks.
pub fn alive() -> u64 {
    GIVEN.load(Ordering::Relaxed).wrapping_sub(freed())
}
