//! The values that the server keeps for us: the locks in the keyspace, how many there are, and the memory they rest in.
//!
//! No event tells of every lock that goes: FLUSHALL and a full resync do not name them, and RENAME tells of one though
//! it stays. What the server frees is gone, whatever the reason.
//!
//! Most locks that go are given back, and the next one is about to be taken: their memory is used again. It saves the accounts that
//! the allocator of the server keeps, some 20 ns of acquire and release.

use super::shared::Shared;
use lazy_static::lazy_static;
use lockward_core::Lock;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// How many are kept to be used again: 3 KB.
const SPARE: usize = 64;

/// Written under the server's lock alone: the values that the server has been given, less those we have deleted.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// Those that it has freed otherwise. Written by the server's own threads too: FLUSHALL ASYNC frees in the background.
static FREED: AtomicU64 = AtomicU64::new(0);

/// The value that we delete just now. What another thread frees meanwhile is another one.
static DELETED: AtomicPtr<Lock> = AtomicPtr::new(ptr::null_mut());

lazy_static! {
    /// Used where a lock is made for a key, and where one is freed that the module deletes: [`free`] knows that one, and runs under
    /// the server's lock then.
    static ref SPARES: Shared<Spares> = Shared::new(Vec::new());
}

#[allow(clippy::vec_box, reason = "what is kept is the memory of each")]
type Spares = Vec<Box<Lock>>;

/// A lock that nobody holds, to be given to the server or kept.
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

/// Has the server delete the key of a value, which it frees with that: a value of ours is no work to free, so that the
/// server does not leave it to a thread (`freeObjAsync`). Other modules may hear of it and have us delete another one within:
/// then this one counts as freed otherwise.
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
    // SAFETY: as demanded.
    let lock = unsafe { Box::from_raw(value) };
    if value == DELETED.load(Ordering::Relaxed) {
        GIVEN.store(GIVEN.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
        keep(lock);
    } else {
        FREED.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many the server has freed, beside those that we have deleted, since the module was loaded.
pub fn freed() -> u64 {
    FREED.load(Ordering::Relaxed)
}

/// How many there are. After FLUSHALL ASYNC it takes the server a while to free them.
pub fn alive() -> u64 {
    GIVEN.load(Ordering::Relaxed).wrapping_sub(freed())
}
