//! EMPTY.CALL_ON_EVENT: lets the module run a command in the callback of an event.

use crate::api::{Context, ERR, OK, Strings, copied, run_command};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

/// A command that the module runs when it receives an event.
struct Pending {
    event: Vec<u8>,
    command: Vec<Vec<u8>>,
}

static PENDING: Mutex<Option<Pending>> = Mutex::new(None);

/// The classes of events that the module receives.
const CLASSES: c_int = raw::REDISMODULE_NOTIFY_MODULE
    | raw::REDISMODULE_NOTIFY_EXPIRED
    | raw::REDISMODULE_NOTIFY_EVICTED
    | raw::REDISMODULE_NOTIFY_GENERIC
    | raw::REDISMODULE_NOTIFY_NEW;

/// EMPTY.CALL_ON_EVENT event command [argument ...]: runs the command once, when the module next receives this event.
pub unsafe extern "C" fn call_on_event(context: Context, argv: Strings, argc: c_int) -> c_int {
    // SAFETY: the server passes valid arguments.
    let given = unsafe { copied(argv, argc) };
    let Some([event, command @ ..]) = given.get(1..) else { return ERR };
    let Ok(mut pending) = PENDING.lock() else { return ERR };
    *pending = Some(Pending { event: event.clone(), command: command.to_vec() });
    drop(pending);
    // SAFETY: the server passes a valid context.
    unsafe {
        let listens = raw::RedisModule_SubscribeToKeyspaceEvents
            .is_some_and(|subscribe| subscribe(context, CLASSES, Some(on_event)) == OK);
        let word = if listens { c"OK" } else { c"ERR" };
        raw::RedisModule_ReplyWithSimpleString.map_or(ERR, |answer| answer(context, word.as_ptr()))
    }
}

unsafe extern "C" fn on_event(
    context: Context,
    _class: c_int,
    event: *const c_char,
    _key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes a text that is valid until this call returns.
    let event = unsafe { CStr::from_ptr(event) }.to_bytes();
    let next = PENDING.lock().ok().and_then(|mut pending| pending.take_if(|pending| pending.event == event));
    let Some(Pending { command, .. }) = next else { return OK };
    // SAFETY: the server passes a valid context; the reply is freed once.
    unsafe {
        if let (Some(reply), Some(free)) = (run_command(context, &command), raw::RedisModule_FreeCallReply)
            && !reply.is_null()
        {
            free(reply);
        }
    }
    OK
}
