//! The server as the module sees it: the module API behind safe types. All `unsafe` of the module is in this folder
//! and in `callbacks/`.

use std::panic::panic_any;

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

mod clock;
mod context;
mod key;
mod log;
mod name;

pub use clock::now;
pub use context::{Context, Flags, Gate, global_flags, string_bytes};
pub use key::{Content, Foreign, OpenKey, set_lock_type};
pub use log::{Level, log};
pub use name::{KeyName, OwnedName};

/// Ends in a panic that is caught at the callback edge.
pub fn missing(function: &'static str) -> ! {
    panic_any(function)
}
