//! A module that does nothing. Benchmarks compare Lockward with this module, which shows the cost that every module
//! has.
//!
//! The module's commands accept any arguments. EMPTY.BLOCK blocks its client as LOCK.ACQUIRE does, but never unblocks
//! the client and stores nothing. EMPTY.CALL runs the command in its arguments on a new thread. EMPTY.MEDDLE sets a
//! command that the module runs when it receives an event. The commands in `bare` make the API calls that a lock needs.

mod bare;
mod meddle;

use redis_module::raw;
use std::ffi::{CStr, CString, c_int};
use std::{ptr, slice, thread};

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Called by the server to load the module.
///
/// # Safety
/// Only the server may call this function.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the server looks up a function with this name")]
pub unsafe extern "C" fn RedisModule_OnLoad(context: Context, _argv: Strings, _argc: c_int) -> c_int {
    let api_version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: the server passes a valid context.
    let known = unsafe { raw::Export_RedisModule_Init(context, c"empty".as_ptr(), 1, api_version) };
    let registered = known == OK
        && register(context, c"empty.block", c"write deny-oom blocking", block)
        && register(context, c"empty.call", c"write deny-oom blocking", call)
        && register(context, c"empty.meddle", c"write", meddle::meddle)
        && bare::register_all(context);
    if registered { OK } else { ERR }
}

type Context = *mut raw::RedisModuleCtx;
type Strings = *mut *mut raw::RedisModuleString;
type Handler = unsafe extern "C" fn(Context, Strings, c_int) -> c_int;

fn register(context: Context, name: &CStr, flags: &CStr, handler: Handler) -> bool {
    // SAFETY: the server passes a valid context to the module's load; the texts are constant and end in NUL. The first
    // argument is the key, as in the commands of Lockward.
    let created = unsafe {
        raw::RedisModule_CreateCommand
            .map(|create| create(context, name.as_ptr(), Some(handler), flags.as_ptr(), 1, 1, 1))
    };
    created == Some(OK)
}

/// Copies the bytes of a command's words.
///
/// # Safety
/// As for [`arguments`].
unsafe fn copied(argv: Strings, argc: c_int) -> Vec<Vec<u8>> {
    // SAFETY: the caller passes the arguments of a command that has not returned yet; the bytes are copied.
    unsafe { arguments(argv, argc).iter().map(|word| bytes(*word).unwrap_or_default().to_vec()).collect() }
}

/// The words of a command.
///
/// # Safety
/// `argv` and `argc` must be the arguments that the server has passed to a call that has not returned yet.
unsafe fn arguments<'a>(argv: Strings, argc: c_int) -> &'a [*mut raw::RedisModuleString] {
    // SAFETY: the server passes `argc` strings, which are valid until the command returns.
    unsafe { slice::from_raw_parts(argv, usize::try_from(argc).unwrap_or_default()) }
}

unsafe fn bytes<'a>(string: *mut raw::RedisModuleString) -> Option<&'a [u8]> {
    let mut len = 0;
    // SAFETY: the string and its bytes are valid until the command returns.
    unsafe {
        let start = raw::RedisModule_StringPtrLen?(string, &raw mut len);
        Some(slice::from_raw_parts(start.cast(), len))
    }
}

unsafe extern "C" fn reply(context: Context, _argv: Strings, _argc: c_int) -> c_int {
    // SAFETY: the server passes a valid context.
    unsafe { raw::RedisModule_ReplyWithLongLong.map_or(ERR, |answer| answer(context, 0)) }
}

unsafe extern "C" fn block(context: Context, _argv: Strings, _argc: c_int) -> c_int {
    // SAFETY:
    // - the server passes a valid context;
    // - the client has no private data, so no callback is needed to free it;
    // - the handle for the disconnect callback is new, so it is valid.
    unsafe {
        let (Some(block), Some(when_it_leaves)) =
            (raw::RedisModule_BlockClient, raw::RedisModule_SetDisconnectCallback)
        else {
            return ERR;
        };
        let handle = block(context, Some(reply), None, None, 0);
        if !handle.is_null() {
            when_it_leaves(handle, Some(release));
        }
    }
    OK
}

/// Unblocks a client that has disconnected. Without this call, the client's handle would leak.
unsafe extern "C" fn release(_context: Context, handle: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the server passes a valid handle, and no other code unblocks its client.
    unsafe {
        if let Some(unblock) = raw::RedisModule_UnblockClient {
            unblock(handle, ptr::null_mut());
        }
    }
}

/// The data with which a thread runs a command while the client is blocked.
struct Elsewhere {
    handle: *mut raw::RedisModuleBlockedClient,
    command: Vec<Vec<u8>>,
}

// SAFETY: only the new thread uses the handle. The other field is bytes.
unsafe impl Send for Elsewhere {}

unsafe extern "C" fn call(context: Context, argv: Strings, argc: c_int) -> c_int {
    // SAFETY: the server passes valid arguments.
    let given = unsafe { copied(argv, argc) };
    let Some(command) = given.get(1..) else { return ERR };
    // SAFETY: the server passes a valid context. The thread that this function starts unblocks the client.
    let handle = unsafe {
        raw::RedisModule_BlockClient.map_or(ptr::null_mut(), |block| block(context, None, None, None, 0))
    };
    let elsewhere = Elsewhere { handle, command: command.to_vec() };
    thread::spawn(move || elsewhere.run());
    OK
}

impl Elsewhere {
    fn run(self) -> Option<()> {
        // SAFETY:
        // - between `ThreadSafeContextLock` and `ThreadSafeContextUnlock`, this thread may make the same calls as a
        //   command handler;
        // - reply and context are freed once, after their last use; the client is unblocked once.
        unsafe {
            let context = raw::RedisModule_GetThreadSafeContext?(self.handle);
            raw::RedisModule_ThreadSafeContextLock?(context);
            let answer = give(context, &self.command)?;
            raw::RedisModule_ReplyWithCallReply?(context, answer);
            raw::RedisModule_FreeCallReply?(answer);
            raw::RedisModule_ThreadSafeContextUnlock?(context);
            raw::RedisModule_FreeThreadSafeContext?(context);
            raw::RedisModule_UnblockClient?(self.handle, ptr::null_mut());
        }
        Some(())
    }
}

/// Calls a command of the server. Returns the reply, which may be null.
///
/// # Safety
/// The context must be valid, and this thread must be allowed to call the module API.
unsafe fn give(context: Context, command: &[Vec<u8>]) -> Option<*mut raw::RedisModuleCallReply> {
    let (name, arguments) = command.split_first()?;
    let name = CString::new(name.as_slice()).ok()?;
    // SAFETY: the format names an array of strings and their number, which follow; each string is freed once.
    unsafe {
        let mut strings = Vec::new();
        for bytes in arguments {
            strings.push(raw::RedisModule_CreateString?(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()));
        }
        let (strings_at, count) = (strings.as_mut_ptr(), strings.len());
        let reply = raw::RedisModule_Call?(context, name.as_ptr(), c"v".as_ptr(), strings_at, count);
        for string in strings {
            raw::RedisModule_FreeString?(ptr::null_mut(), string);
        }
        Some(reply)
    }
}
