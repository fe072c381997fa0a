//! The callbacks at the beginning and at the end of commands. The server calls the command filter at the beginning of
//! each command, while the module watches commands.

use crate::command_time;
use crate::panics::{Callback, catch_panic};
use crate::server;
use crate::server_events;
use redis_module::raw;
use std::ffi::c_void;

pub unsafe extern "C" fn on_command(command: *mut raw::RedisModuleCommandFilterCtx) {
    catch_panic(Callback::NextCommand, (), || {
        command_time::command_begins();
        // SAFETY: the server's filter context is valid for this call.
        server_events::command_begins(unsafe { server::caller(command) });
    });
}

pub unsafe extern "C" fn on_over(_context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    catch_panic(Callback::Over, (), command_time::forget);
}
