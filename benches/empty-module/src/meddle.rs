//! A module that deletes a key as soon as it hears of an event: in the midst of whatever the event tells of.

use crate::{ERR, OK, copied};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

/// The event, and the key that is deleted then, once.
static ORDER: Mutex<Option<(Vec<u8>, Vec<u8>)>> = Mutex::new(None);

/// EMPTY.MEDDLE key event
pub unsafe extern "C" fn meddle(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's arguments of this very call.
    let Ok([_, key, event]) = <[Vec<u8>; 3]>::try_from(unsafe { copied(argv, argc) }) else { return ERR };
    let Ok(mut order) = ORDER.lock() else { return ERR };
    *order = Some((event, key));
    let classes = (raw::REDISMODULE_NOTIFY_MODULE | raw::REDISMODULE_NOTIFY_EXPIRED) as c_int;
    // SAFETY: the server's context of this very call.
    unsafe {
        let listens = raw::RedisModule_SubscribeToKeyspaceEvents
            .is_some_and(|subscribe| subscribe(context, classes, Some(heard)) == OK);
        let word = if listens { c"OK" } else { c"ERR" };
        raw::RedisModule_ReplyWithSimpleString.map_or(ERR, |answer| answer(context, word.as_ptr()))
    }
}

unsafe extern "C" fn heard(
    context: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    _key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: a text of the server's, valid until this call returns.
    let event = unsafe { CStr::from_ptr(event) }.to_bytes();
    let due = ORDER.lock().ok().and_then(|mut order| order.take_if(|(awaited, _)| awaited == event));
    let Some((_, key)) = due else { return OK };
    // SAFETY: the format names a buffer and its length, which follow; the reply is freed once.
    unsafe {
        if let (Some(call), Some(free)) = (raw::RedisModule_Call, raw::RedisModule_FreeCallReply) {
            free(call(context, c"DEL".as_ptr(), c"b".as_ptr(), key.as_ptr(), key.len()));
        }
    }
    OK
}
