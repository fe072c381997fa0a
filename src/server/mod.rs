//! The server as the module sees it: the module API behind safe types. All `unsafe` of the module is in this folder
//! and in `callbacks/`.

#[macro_use]
mod functions;
pub mod clock;
mod context;
pub mod info;
mod key;
pub mod lock_allocation;
mod log;
mod name;
mod shared;
mod socket;

pub use clock::{latest_wall, mono, now};
pub use context::{Context, Flags, WriteGate, global_flags, string_bytes};
pub(crate) use functions::api;
pub use functions::{is_recent_enough, known, version};
pub use key::{Content, OpenKey, WrongType, set_carrier_type, set_lock_type};
pub use log::{Level, log};
pub use name::{KeyName, OwnedName};
pub use shared::Shared;
pub use socket::Socket;
