//! The callback of every command.

use crate::arguments::Arguments;
use crate::commands::{self, Command};
use crate::errors::Error;
use crate::panics::{catch_panic, catch_panic_on_any_thread};
use crate::server::{Context, KeyUse, add_category, argument_strings, register_command, report_keys};
use redis_module::raw;
use std::ffi::c_int;
use std::slice;

/// Registers all commands. Returns false if the server refuses a command.
pub fn register_all(context: Context) -> bool {
    let own_category = add_category(context);
    let registered = register::<commands::Acquire>(context, own_category)
        && register::<commands::Release>(context, own_category)
        && register::<commands::Renew>(context, own_category)
        && register::<commands::Guard>(context, own_category)
        && register::<commands::Info>(context, own_category)
        && register::<commands::Top>(context, own_category)
        && register::<commands::Apply>(context, own_category)
        && register::<commands::Gate>(context, own_category);
    #[cfg(feature = "panic-probe")]
    let registered = registered && register::<commands::Panic>(context, own_category);
    registered
}

fn register<C: Command>(context: Context, own_category: bool) -> bool {
    register_command(context, &C::INFO, own_category, Some(on_command::<C>))
}

unsafe extern "C" fn on_command<C: Command>(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    if let Some(KeyUse::ReadBeforeCommand) = C::INFO.key {
        let reported = catch_panic_on_any_thread("Keys", true, || {
            let count = usize::try_from(argc).unwrap_or_default();
            // SAFETY: the server's context and strings are valid for this call.
            unsafe { report_keys(context, slice::from_raw_parts(argv, count)) }
        });
        if reported {
            return raw::REDISMODULE_OK as c_int;
        }
    }
    // SAFETY: the server's context is valid for this call.
    let context = unsafe { Context::of_command(context) };
    let done = catch_panic("Command", Err(Error::Internal), || {
        // SAFETY: the server passes `argc` strings, which are valid until this call returns.
        C::run(context, Arguments::new(unsafe { argument_strings(argv, argc) }))
    });
    if let Err(error) = done {
        error.reply(context);
    }
    raw::REDISMODULE_OK as c_int
}
