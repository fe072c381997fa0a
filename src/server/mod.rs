//! The server as the module sees it: the module API behind safe types. All `unsafe` of the module is in this folder
//! and in `callbacks/`.

use std::ffi::c_int;
use std::panic::resume_unwind;

/// Calls a function of the module API by its name. Those used without a check for presence exist since Redis 7.0;
/// should one be missing all the same, the panic ends at the callback edge.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => $crate::server::missing(stringify!($function)),
        }
    };
}
pub(crate) use api;

pub mod clock;
mod context;
pub mod info;
mod key;
mod log;
mod name;
mod shared;
mod socket;
pub mod values;

pub use clock::{latest_wall, mono, now};
pub use context::{Context, Flags, Gate, global_flags, string_bytes};
pub use key::{Content, Foreign, OpenKey, set_carrier_type, set_lock_type};
pub use log::{Level, log};
pub use name::{KeyName, OwnedName};
pub use shared::Shared;
pub use socket::Socket;

/// The oldest version, as the server numbers itself, that has all the module needs.
const OLDEST: c_int = 0x0007_0000;

/// The version of the server, as it numbers itself: 0x00MMmmpp. Zero when it is too old to tell.
pub fn version() -> c_int {
    // SAFETY: reads a function pointer that the server set when the module was loaded; the function takes nothing.
    unsafe { redis_module::raw::RedisModule_GetServerVersion.map_or(0, |version| version()) }
}

/// Whether the server has all the module needs.
pub fn is_recent_enough() -> bool {
    version() >= OLDEST
}

/// Ends in an unwinding that is caught at the callback edge.
pub fn missing(function: &'static str) -> ! {
    resume_unwind(Box::new(function))
}
