//! No panic leaves the module, because such a panic would end the server's process.

use crate::server::{in_use, warn};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a callback. If the callback panics, this function logs the panic under `name` and returns `fallback`.
///
/// If a shared value is in use, the server has called back into the module during a call from the module. In this case
/// the callback does not run, and this function logs the call and returns `fallback`.
pub fn catch_panic<R>(name: &str, fallback: R, callback: impl FnOnce() -> R) -> R {
    if in_use() {
        warn(&format!("{name} ignored: the server called it while the module's state was in use"));
        return fallback;
    }
    catch_panic_on_any_thread(name, fallback, callback)
}

/// Runs a callback that the server may call on another thread, while the main thread uses a shared value. If the
/// callback panics, this function logs the panic under `name` and returns `fallback`.
pub fn catch_panic_on_any_thread<R>(name: &str, fallback: R, callback: impl FnOnce() -> R) -> R {
    let run = || {
        #[cfg(feature = "panic-probe")]
        probe::panic_if_armed(name);
        callback()
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|cause| {
        warn(&format!("panic caught in {name}: {}", reason(cause.as_ref())));
        fallback
    })
}

fn reason(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("for no known reason")
}

/// Panics on request. The test suite uses these functions to show that panics are caught.
#[cfg(feature = "panic-probe")]
pub mod probe {
    use std::cell::RefCell;

    thread_local! {
        static ARMED: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
    }

    /// Makes the next callback with this name panic.
    pub fn arm(name: &[u8]) {
        ARMED.replace(Some(name.to_vec()));
    }

    pub fn panic_if_armed(name: &str) {
        let is_armed = |armed: &mut Vec<u8>| armed == name.as_bytes();
        if ARMED.with_borrow_mut(|armed| armed.take_if(is_armed)).is_some() {
            std::panic::resume_unwind(Box::new("asked for by LOCK._PANIC"));
        }
    }
}
