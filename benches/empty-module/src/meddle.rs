//! EMPTY.MEDDLE: lets the module run a command in the callback of an event.

use crate::{Context, ERR, OK, Strings, copied, give};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

/// A command that the module runs when it receives an event.
struct Order {
    event: Vec<u8>,
    command: Vec<Vec<u8>>,
}

static ORDER: Mutex<Option<Order>> = Mutex::new(None);

/// The classes of events that the module receives.
const CLASSES: c_int = raw::REDISMODULE_NOTIFY_MODULE
    | raw::REDISMODULE_NOTIFY_EXPIRED
    | raw::REDISMODULE_NOTIFY_EVICTED
    | raw::REDISMODULE_NOTIFY_GENERIC
    | raw::REDISMODULE_NOTIFY_NEW;

/// EMPTY.MEDDLE event command [argument ...]: runs the command once, when the module next receives this event.
pub unsafe extern "C" fn meddle(context: Context, argv: Strings, argc: c_int) -> c_int {
    // SAFETY: the server passes valid arguments.
    let given = unsafe { copied(argv, argc) };
    let Some([event, command @ ..]) = given.get(1..) else { return ERR };
    let Ok(mut order) = ORDER.lock() else { return ERR };
    *order = Some(Order { event: event.clone(), command: command.to_vec() });
    drop(order);
    // SAFETY: the server passes a valid context.
    unsafe {
        let listens = raw::RedisModule_SubscribeToKeyspaceEvents
            .is_some_and(|subscribe| subscribe(context, CLASSES, Some(heard)) == OK);
        let word = if listens { c"OK" } else { c"ERR" };
        raw::RedisModule_ReplyWithSimpleString.map_or(ERR, |answer| answer(context, word.as_ptr()))
    }
}

unsafe extern "C" fn heard(
    context: Context,
    _class: c_int,
    event: *const c_char,
    _key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes a text that is valid until this call returns.
    let event = unsafe { CStr::from_ptr(event) }.to_bytes();
    let due = ORDER.lock().ok().and_then(|mut order| order.take_if(|order| order.event == event));
    let Some(Order { command, .. }) = due else { return OK };
    // SAFETY: the server passes a valid context; the reply is freed once.
    unsafe {
        if let (Some(reply), Some(free)) = (give(context, &command), raw::RedisModule_FreeCallReply)
            && !reply.is_null()
        {
            free(reply);
        }
    }
    OK
}
