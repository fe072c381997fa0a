//! What the handlers of all commands need: registration, arguments, replies, and calls of other commands.

use redis_module::raw;
use std::ffi::{CStr, CString, c_int};
use std::{ptr, slice};

pub(crate) const OK: c_int = raw::REDISMODULE_OK as c_int;
pub(crate) const ERR: c_int = raw::REDISMODULE_ERR as c_int;

pub(crate) type Context = *mut raw::RedisModuleCtx;
pub(crate) type Strings = *mut *mut raw::RedisModuleString;
pub(crate) type Handler = unsafe extern "C" fn(Context, Strings, c_int) -> c_int;

pub(crate) fn register(context: Context, name: &CStr, flags: &CStr, handler: Handler) -> bool {
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
pub(crate) unsafe fn copied(argv: Strings, argc: c_int) -> Vec<Vec<u8>> {
    // SAFETY: the caller passes the arguments of a command that has not returned yet; the bytes are copied.
    unsafe { arguments(argv, argc).iter().map(|word| bytes(*word).unwrap_or_default().to_vec()).collect() }
}

/// The words of a command.
///
/// # Safety
/// `argv` and `argc` must be the arguments that the server has passed to a call that has not returned yet.
pub(crate) unsafe fn arguments<'a>(argv: Strings, argc: c_int) -> &'a [*mut raw::RedisModuleString] {
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

/// Replies with 0.
pub(crate) unsafe extern "C" fn reply(context: Context, _argv: Strings, _argc: c_int) -> c_int {
    // SAFETY: the server passes a valid context.
    unsafe { raw::RedisModule_ReplyWithLongLong.map_or(ERR, |answer| answer(context, 0)) }
}

/// Calls a command of the server. Returns the reply, which may be null.
///
/// # Safety
/// The context must be valid, and this thread must be allowed to call the module API.
pub(crate) unsafe fn run_command(
    context: Context,
    command: &[Vec<u8>],
) -> Option<*mut raw::RedisModuleCallReply> {
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
