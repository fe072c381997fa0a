//! A module for measurements and tests. The benchmarks compare Lockward with this module, which shows the cost that
//! every module has, and the cost of the API calls that a lock needs.
//!
//! Most commands accept any arguments after the key.
//!
//! | command | what it does | used by |
//! | --- | --- | --- |
//! | EMPTY.ACQUIRE, EMPTY.RELEASE | make the API calls of LOCK.ACQUIRE and LOCK.RELEASE (`bare.rs`) | the benchmarks, and tests of LOCK.GUARD |
//! | EMPTY.WAIT, EMPTY.UNBLOCK | block a client, and unblock the client that has waited the longest (`bare.rs`) | the benchmarks, and tests of LOCK.GUARD |
//! | EMPTY.WAIT_UNFLAGGED | is EMPTY.WAIT without the flag `blocking` | tests of LOCK.GUARD |
//! | EMPTY.CALL command ... | runs a command on a new thread | tests |
//! | EMPTY.CALL_ON_EVENT event command ... | runs a command in the callback of the next event of this name | tests |

mod api;
mod bare;
mod call_on_event;

use api::{Context, ERR, OK, Strings, copied, register, run_command};
use redis_module::raw;
use std::ffi::c_int;
use std::{ptr, thread};

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
        && register(context, c"empty.call", c"write deny-oom blocking", call)
        && register(context, c"empty.call_on_event", c"write", call_on_event::call_on_event)
        && bare::register_all(context);
    if registered { OK } else { ERR }
}

/// The data with which a thread runs a command while the client is blocked.
struct CallOnThread {
    handle: *mut raw::RedisModuleBlockedClient,
    command: Vec<Vec<u8>>,
}

// SAFETY: only the new thread uses the handle. The other field is bytes.
unsafe impl Send for CallOnThread {}

unsafe extern "C" fn call(context: Context, argv: Strings, argc: c_int) -> c_int {
    // SAFETY: the server passes valid arguments.
    let given = unsafe { copied(argv, argc) };
    let Some(command) = given.get(1..) else { return ERR };
    // SAFETY: the server passes a valid context. The thread that this function starts unblocks the client.
    let handle = unsafe {
        raw::RedisModule_BlockClient.map_or(ptr::null_mut(), |block| block(context, None, None, None, 0))
    };
    let call = CallOnThread { handle, command: command.to_vec() };
    thread::spawn(move || call.run());
    OK
}

impl CallOnThread {
    fn run(self) -> Option<()> {
        // SAFETY:
        // - between `ThreadSafeContextLock` and `ThreadSafeContextUnlock`, this thread may make the same calls as a
        //   command handler;
        // - reply and context are freed once, after their last use; the client is unblocked once.
        unsafe {
            let context = raw::RedisModule_GetThreadSafeContext?(self.handle);
            raw::RedisModule_ThreadSafeContextLock?(context);
            let answer = run_command(context, &self.command)?;
            raw::RedisModule_ReplyWithCallReply?(context, answer);
            raw::RedisModule_FreeCallReply?(answer);
            raw::RedisModule_ThreadSafeContextUnlock?(context);
            raw::RedisModule_FreeThreadSafeContext?(context);
            raw::RedisModule_UnblockClient?(self.handle, ptr::null_mut());
        }
        Some(())
    }
}
