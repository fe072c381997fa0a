//! Values that the module keeps from one call of the server to the next.

use redis_module::{RedisGILGuard, RedisLockIndicator};
use std::cell::RefCell;

/// A value that the server's calls into the module share. The server makes these calls one at a time, under a lock of its own.
/// They are not all on one thread: another module may call our commands on a thread of its own.
///
/// It is used only in calls that the server makes under its lock. The call that frees a value may come without that lock. It
/// uses shared values only after a check that the lock is held.
pub struct Shared<T>(RedisGILGuard<RefCell<T>>);

/// The server's lock, which is held during a call of the server.
struct ServerLock;

// SAFETY: only `Shared::with` makes one, and shared values are used only under the server's lock.
unsafe impl RedisLockIndicator for ServerLock {}

impl<T> Shared<T> {
    /// Shares a value.
    pub fn new(value: T) -> Self {
        Self(RedisGILGuard::new(RefCell::new(value)))
    }

    /// Uses the value. Must not be called within `use_value`.
    pub fn with<R>(&self, use_value: impl FnOnce(&mut T) -> R) -> R {
        use_value(&mut self.0.lock(&ServerLock).borrow_mut())
    }
}
