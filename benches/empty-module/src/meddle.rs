//! A module that runs a command from the callback of an event.

use crate::{ERR, OK, copied};
use redis_module::raw;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Mutex;

/// A command that is run when an event is received.
struct Order {
    event: Vec<u8>,
    command: Vec<Vec<u8>>,
}

static ORDER: Mutex<Option<Order>> = Mutex::new(None);

/// The classes of events that modules can receive.
const CLASSES: c_int = raw::REDISMODULE_NOTIFY_MODULE
    | raw::REDISMODULE_NOTIFY_EXPIRED
    | raw::REDISMODULE_NOTIFY_EVICTED
    | raw::REDISMODULE_NOTIFY_GENERIC
    | raw::REDISMODULE_NOTIFY_NEW;

/// EMPTY.MEDDLE event command [argument ...]
pub unsafe extern "C" fn meddle(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's arguments of this very call.
    let given = unsafe { copied(argv, argc) };
    let Some([event, command @ ..]) = given.get(1..) else { return ERR };
    let Ok(mut order) = ORDER.lock() else { return ERR };
    *order = Some(Order { event: event.clone(), command: command.to_vec() });
    drop(order);
    // SAFETY: the server's context of this very call.
    unsafe {
        let listens = raw::RedisModule_SubscribeToKeyspaceEvents
            .is_some_and(|subscribe| subscribe(context, CLASSES, Some(heard)) == OK);
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
    let due = ORDER.lock().ok().and_then(|mut order| order.take_if(|order| order.event == event));
    let Some(Order { command, .. }) = due else { return OK };
    // SAFETY: the server's context of this very call.
    unsafe { run(context, &command) };
    OK
}

/// SAFETY: the server's context of a call that is not over.
unsafe fn run(context: *mut raw::RedisModuleCtx, command: &[Vec<u8>]) -> Option<()> {
    let (name, arguments) = command.split_first()?;
    let name = CString::new(name.as_slice()).ok()?;
    // SAFETY: the format names an array of strings and their number, which follow; strings and reply are freed once.
    unsafe {
        let mut strings = Vec::new();
        for bytes in arguments {
            strings.push(raw::RedisModule_CreateString?(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()));
        }
        let format = c"v".as_ptr();
        let reply =
            raw::RedisModule_Call?(context, name.as_ptr(), format, strings.as_mut_ptr(), strings.len());
        if !reply.is_null() {
            raw::RedisModule_FreeCallReply?(reply);
        }
        for string in strings {
            raw::RedisModule_FreeString?(ptr::null_mut(), string);
        }
    }
    Some(())
}
