//! What callbacks remember from one to the next.

use std::cell::{OnceCell, RefCell};

/// A value that the server's calls into the module share. It makes them one at a time, under a lock of its own, though
/// not all on one thread: another module may give our commands on a thread that it has started.
pub struct Shared<T> {
    value: OnceCell<RefCell<T>>,
    make: fn() -> T,
}

// SAFETY: only callbacks use it, as `new` demands, and the server's lock lets one in after the other.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// A value that is made when it is used for the first time.
    ///
    /// # Safety
    /// It is used only within callbacks that the server makes under its lock. One that frees a value may be made outside it.
    pub const unsafe fn new(make: fn() -> T) -> Self {
        Self { value: OnceCell::new(), make }
    }

    /// Uses the value. Not to be called within itself.
    pub fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        use_it(&mut self.value.get_or_init(|| RefCell::new((self.make)())).borrow_mut())
    }
}
