//! The commands, one file each: describe, parse, decide, reply.

mod acquire;
mod apply;
mod command;
mod gate;
mod guard;
mod holding;
mod info;
#[cfg(feature = "panic-probe")]
mod panic;
mod release;
mod renew;
mod top;

pub use acquire::Acquire;
pub use apply::Apply;
pub use command::Command;
pub use gate::Gate;
pub use guard::Guard;
pub use info::Info;
#[cfg(feature = "panic-probe")]
pub use panic::Panic;
pub use release::Release;
pub use renew::Renew;
pub use top::Top;
