//! The functions that the server calls: every `extern "C"` function of the module, each inside
//! [`crate::panics::catch_panic`].
//!
//! No lower layer imports this folder. While the server loads the module, this folder gives the layer `server/` one
//! table of the functions that the server calls later: [`ENTRY_POINTS`].

pub mod blocked;
pub mod commands;
pub mod config;
pub mod data_type;
pub mod events;
pub mod snapshot_key;
pub mod statistics;

use crate::server::EntryPoints;

/// The functions that are passed to the server after the module has been loaded.
pub const ENTRY_POINTS: EntryPoints = EntryPoints {
    timer: Some(events::on_timer),
    reply: Some(blocked::on_reply),
    unblock: Some(blocked::on_unblock),
    disconnect: Some(blocked::on_disconnect),
    server_event: Some(events::on_server_event),
    keyspace_event: Some(events::on_keyspace_event),
    command: Some(events::on_command),
    over: Some(events::on_over),
};
