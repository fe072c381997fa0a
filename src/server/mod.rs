//! The server as the module sees it: the module API behind safe types, in both directions.
//!
//! All `unsafe` of the module is in this folder, in `callbacks/` and in `lib.rs`.

#[macro_use]
mod functions;
mod blocked_client;
mod call_reply;
pub mod clock;
mod cluster;
mod command;
mod command_filter;
mod context;
mod entry_points;
pub mod info;
mod inner_command;
mod key;
mod key_name;
mod known_commands;
pub mod lock_allocation;
mod log;
mod shared;
mod socket;
mod strings;
pub mod subscriptions;
pub mod timer;
mod write_gate;

pub use blocked_client::BlockedClient;
pub use clock::{latest_wall, mono, now};
pub use cluster::{ClusterState, cluster_state};
pub use command::{APPLY, Argument, CommandInfo, GATE, KeyUse, OWN_CATEGORY, add_category, register_command};
pub use command_filter::{Caller, caller, stop_watching_commands, watch_commands};
pub use context::{Context, create_module_context, global_flags, module_context};
pub use entry_points::{EntryPoints, set_entry_points};
pub(crate) use functions::api;
pub use functions::{is_recent_enough, known, version};
pub use inner_command::{InnerCommand, InnerRefused, report_keys};
pub use key::{LOCK, OpenKey, SNAPSHOT_KEY, WrongType};
pub use key_name::{KeyName, string_bytes};
pub use log::{notice, warn};
pub use shared::{Shared, in_use, set_main_thread};
pub use socket::Socket;
pub use strings::{ArgumentStrings, argument_strings};
pub use write_gate::WriteGate;
