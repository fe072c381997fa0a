//! How many locks there are in the keyspace: the values that the server has been given, less those it has freed.
//!
//! No event tells of every lock that goes: FLUSHALL and a full resync do not name them, and RENAME tells of one though
//! it stays. What the server frees is gone, whatever the reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// Written under the server's lock alone.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// Written by the server's own threads too: FLUSHALL ASYNC frees in the background.
static FREED: AtomicU64 = AtomicU64::new(0);

/// A value is the server's from here on.
pub fn given() {
    GIVEN.store(GIVEN.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The server frees a value.
pub fn free() {
    FREED.fetch_add(1, Ordering::Relaxed);
}

/// How many the server has freed since the module was loaded.
pub fn freed() -> u64 {
    FREED.load(Ordering::Relaxed)
}

/// How many there are. After FLUSHALL ASYNC it takes the server a while to free them.
pub fn alive() -> u64 {
    GIVEN.load(Ordering::Relaxed).wrapping_sub(freed())
}
