//! A lock without logic: commands that make all calls of the module API that a lock needs, and nothing else. The
//! difference between the cost of Lockward and the cost of these commands is the cost of Lockward's own code.
//!
//! EMPTY.ACQUIRE and EMPTY.RELEASE make the API calls of LOCK.ACQUIRE and LOCK.RELEASE, and send similar replies.
//! EMPTY.ACQUIRE stores a value of the module's own type with a TTL, and EMPTY.RELEASE deletes the value. EMPTY.WAIT
//! blocks its client, and EMPTY.UNBLOCK unblocks the client that has waited the longest.

use crate::api::{Context, ERR, OK, Strings, arguments, register, reply};
use redis_module::raw;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

static KIND: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// The clients that wait. The server calls the module on one thread.
    static QUEUE: RefCell<VecDeque<Handle>> = const { RefCell::new(VecDeque::new()) };
}

type Handle = *mut raw::RedisModuleBlockedClient;

/// When a value expires, in milliseconds since 1970: long after the benchmark.
const EXPIRES_AT: i64 = 4_102_444_800_000;

/// A value of the size of a lock with one holder.
type Value = [u8; 48];

pub fn register_all(context: Context) -> bool {
    // SAFETY: the server passes a valid context to the module's load, and copies the methods.
    let kind = unsafe {
        let mut methods: raw::RedisModuleTypeMethods = mem::zeroed();
        methods.version = raw::REDISMODULE_TYPE_METHOD_VERSION.into();
        methods.free = Some(free);
        raw::RedisModule_CreateDataType
            .map(|create| create(context, c"emptylock".as_ptr(), 1, &raw mut methods))
    };
    // SAFETY: the server passes a valid context. With this option, which Lockward also sets, the server signals a
    // changed key only if the module asks for the signal.
    unsafe {
        let options = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED.cast_signed();
        if let Some(set) = raw::RedisModule_SetModuleOptions {
            set(context, options);
        }
    }
    KIND.store(kind.unwrap_or(ptr::null_mut()), Ordering::Relaxed);
    kind.is_some_and(|kind| !kind.is_null())
        && register(context, c"empty.acquire", c"write deny-oom", acquire)
        && register(context, c"empty.release", c"write fast", release)
        && register(context, c"empty.wait", c"write deny-oom blocking", wait)
        // EMPTY.WAIT_UNFLAGGED blocks, but its flags lack `blocking`. A test checks that LOCK.GUARD refuses such a
        // command, too.
        && register(context, c"empty.wait_unflagged", c"write deny-oom", wait)
        && register(context, c"empty.unblock", c"write fast", unblock)
}

/// The handlers of commands. A handler returns an error if a function of the API is missing.
macro_rules! handlers {
    ($($handler:ident => $try:ident),*) => {$(
        unsafe extern "C" fn $handler(context: Context, argv: Strings, argc: c_int) -> c_int {
            // SAFETY: the server passes a valid context and valid arguments.
            unsafe { $try(context, argv, argc) }.map_or(ERR, |()| OK)
        }
    )*};
}

handlers!(acquire => try_acquire, release => try_release, wait => try_wait, unblock => try_unblock);

unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: `try_acquire` has allocated the value, and the server calls this function once for each value.
    drop(unsafe { Box::from_raw(value.cast::<Value>()) });
}

/// SAFETY: callers of this function, and of the functions below, pass the context and the arguments that the server
/// passes to a command.
unsafe fn try_acquire(context: Context, argv: Strings, argc: c_int) -> Option<()> {
    // SAFETY: the strings are valid until the call returns; the key is closed once; the server owns the stored value.
    unsafe {
        let name = *arguments(argv, argc).get(1)?;
        let now = raw::RedisModule_MonotonicMicroseconds?();
        let key = raw::RedisModule_OpenKey?(context, name, raw::REDISMODULE_WRITE as c_int);
        if raw::RedisModule_KeyType?(key) == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
            let value: *mut Value = Box::into_raw(Box::new([0; size_of::<Value>()]));
            raw::RedisModule_ModuleTypeSetValue?(key, KIND.load(Ordering::Relaxed), value.cast());
            raw::RedisModule_SetAbsExpire?(key, EXPIRES_AT);
        }
        raw::RedisModule_CloseKey?(key);
        signal_change(context, name)?;
        raw::RedisModule_ReplyWithArray?(context, 3);
        raw::RedisModule_ReplyWithLongLong?(context, (1_795_000_000_000_000 + now).cast_signed());
        raw::RedisModule_ReplyWithLongLong?(context, 1);
        raw::RedisModule_ReplyWithLongLong?(context, 30_000);
    }
    Some(())
}

unsafe fn try_release(context: Context, argv: Strings, argc: c_int) -> Option<()> {
    // SAFETY: the strings are valid until the call returns; the key is closed once.
    unsafe {
        let name = *arguments(argv, argc).get(1)?;
        raw::RedisModule_MonotonicMicroseconds?();
        let key = raw::RedisModule_OpenKey?(context, name, raw::REDISMODULE_WRITE as c_int);
        if raw::RedisModule_ModuleTypeGetType?(key) == KIND.load(Ordering::Relaxed)
            && !raw::RedisModule_ModuleTypeGetValue?(key).is_null()
        {
            raw::RedisModule_DeleteKey?(key);
        }
        raw::RedisModule_CloseKey?(key);
        signal_change(context, name)?;
        raw::RedisModule_ReplyWithLongLong?(context, 0);
    }
    Some(())
}

/// Replicates a change, signals it, and sends its event.
unsafe fn signal_change(context: Context, name: *mut raw::RedisModuleString) -> Option<()> {
    let (class, event) = (raw::REDISMODULE_NOTIFY_MODULE, c"empty.changed");
    // SAFETY: context and name are valid.
    unsafe {
        raw::RedisModule_ReplicateVerbatim?(context);
        raw::RedisModule_SignalModifiedKey?(context, name);
        raw::RedisModule_NotifyKeyspaceEvent?(context, class, event.as_ptr(), name);
    }
    Some(())
}

unsafe fn try_wait(context: Context, _argv: Strings, _argc: c_int) -> Option<()> {
    // SAFETY: nobody sends EMPTY.UNBLOCK after a waiting client has disconnected, so the handle is valid while it is used.
    let handle = unsafe { raw::RedisModule_BlockClient?(context, Some(reply), None, None, 0) };
    QUEUE.with_borrow_mut(|queue| queue.push_back(handle));
    Some(())
}

unsafe fn try_unblock(context: Context, _argv: Strings, _argc: c_int) -> Option<()> {
    // SAFETY: a client that was taken out of the queue is unblocked once.
    unsafe {
        if let Some(first) = QUEUE.with_borrow_mut(VecDeque::pop_front) {
            raw::RedisModule_UnblockClient?(first, ptr::null_mut());
        }
        raw::RedisModule_ReplyWithLongLong?(context, 0);
    }
    Some(())
}
