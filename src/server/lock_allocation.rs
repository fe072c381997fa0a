//! The locks in the keyspace as values of the server: how many there are, and their memory.
//!
//! No event reports every lock that goes: FLUSHALL and a full resync do not name them, and RENAME reports one that
//! stays. But a value that the server frees is gone, whatever the reason.
//!
//! Most locks go because they are released, and the next one is acquired soon. So their memory is used again. That saves the
//! bookkeeping of the server's allocator, some 20 ns of acquire and release.

use super::shared::Shared;
use lazy_static::lazy_static;
use lockward_core::Lock;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// How many locks' memory is kept: 3 KB.
const SPARE: usize = 64;

/// The values that the server has been given, less those that the module has deleted. Written under the server's lock alone.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// The values that the server has freed otherwise. Written by the server's own threads too: FLUSHALL ASYNC frees in the background.
static FREED: AtomicU64 = AtomicU64::new(0);

/// The value that the module is deleting now. Another thread frees other values meanwhile.
static DELETED: AtomicPtr<Lock> = AtomicPtr::new(ptr::null_mut());

lazy_static! {
    /// Used when the module makes a lock for a key, and when [`free`] frees a lock that the module deletes. Both run under the
    /// server's lock.
    static ref SPARES: Shared<Spares> = Shared::new(Vec::new());
}

#[allow(clippy::vec_box, reason = "what is kept is the memory of each")]
type Spares = Vec<Box<Lock>>;

/// A free lock, to be given to the server or kept.
pub fn spare() -> Box<Lock> {
    SPARES.with(Vec::pop).unwrap_or_default()
}

/// Keeps the memory of a lock, to be used again.
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

/// Has the server delete the key of a value. The server frees the value within: it leaves only values that are much work to free
/// to a thread (`freeObjAsync`). Another module may be notified and make this module delete another value meanwhile. Then
/// this one counts as freed otherwise.
pub fn deleting(value: *mut Lock, delete: impl FnOnce()) {
    DELETED.store(value, Ordering::Relaxed);
    delete();
    DELETED.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Frees a value.
///
/// # Safety
/// It was made by [`give`], and is freed once.
pub unsafe fn free(value: *mut Lock) {
    // SAFETY: as the caller promises.
    let lock = unsafe { Box::from_raw(value) };
    if value == DELETED.load(Ordering::Relaxed) {
        GIVEN.store(GIVEN.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
        keep(lock);
    } else {
        // The store may share memory with this lock. When it reads the count it is the only owner of it.
        drop(lock);
        FREED.fetch_add(1, Ordering::Release);
    }
}

/// How many values the server has freed since the module was loaded, without those that the module has deleted.
pub fn freed() -> u64 {
    FREED.load(Ordering::Acquire)
}

/// How many locks are in the keyspace. After FLUSHALL ASYNC it takes the server a while to free them.
pub fn alive() -> u64 {
    GIVEN.load(Ordering::Relaxed).wrapping_sub(freed())
}
