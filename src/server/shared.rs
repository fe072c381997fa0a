//! Values that the module keeps from one call of the server to the next.
//!
//! A value is used in short closures, and no code in such a closure uses a shared value again. `make lint`
//! checks this rule (`scripts/check-layers`). If the server still calls the module during a closure,
//! `catch_panic` rejects the call.
//!
//! Two calls may come without the server's lock: the call that frees a value, and the call that asks for the keys of a
//! command. These two calls use shared values only on the main thread, where the lock is held.

use redis_module::{RedisGILGuard, RedisLockIndicator};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

/// Records that this thread, which loads the module, is the server's main thread.
pub fn set_main_thread() {
    IS_MAIN.set(true);
}

/// Whether this is the server's main thread.
pub fn on_main_thread() -> bool {
    IS_MAIN.get()
}

/// Whether a shared value is in use. Set and read only under the server's lock.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// A value that is used in several calls of the server into the module. The server makes these calls one at a time,
/// under its own lock. The calls are not all on one thread: another module may call our commands on its own thread.
pub struct Shared<T>(RedisGILGuard<RefCell<T>>);

/// The server's lock, which is held during a call of the server.
struct ServerLock;

// SAFETY: only `Shared::with` makes a `ServerLock`, and shared values are used only under the server's lock.
unsafe impl RedisLockIndicator for ServerLock {}

impl<T> Shared<T> {
    pub fn new(value: T) -> Self {
        Self(RedisGILGuard::new(RefCell::new(value)))
    }

    /// Uses the value. Must not be called within `use_value`.
    pub fn with<R>(&self, use_value: impl FnOnce(&mut T) -> R) -> R {
        let _in_use = InUse::begin();
        use_value(&mut self.0.lock(&ServerLock).borrow_mut())
    }
}

/// Whether a shared value is in use. If so, a call of the server must not use any shared value.
pub fn in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// Marks a shared value as in use until this guard is dropped. A panic drops the guard too.
struct InUse {
    /// Whether a shared value was in use before. A use within another use must not clear the mark of the outer use.
    before: bool,
}

impl InUse {
    fn begin() -> Self {
        let before = in_use();
        IN_USE.store(true, Ordering::Relaxed);
        Self { before }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        IN_USE.store(self.before, Ordering::Relaxed);
    }
}
