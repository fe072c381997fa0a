//! A context that is valid as long as the module is loaded, for work outside of a callback.

use super::context::Context;
use redis_module::raw;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

static MODULE_CONTEXT: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Makes the module's context. Called once, when the module is loaded.
pub fn create(context: Context) {
    // SAFETY: the context is valid. The new context is never freed, because the module cannot be unloaded.
    let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(context.as_ptr())) };
    MODULE_CONTEXT.store(detached, Ordering::Relaxed);
}

pub fn module_context() -> Context {
    // SAFETY: this context is valid as long as the module is loaded.
    unsafe { Context::new(MODULE_CONTEXT.load(Ordering::Relaxed)) }
}
