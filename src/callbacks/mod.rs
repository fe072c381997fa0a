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
mod filter;
pub mod snapshot_key;
pub mod statistics;
mod timer;

use crate::server::EntryPoints;

/// The functions that are passed to the server after the module has been loaded.
pub const ENTRY_POINTS: EntryPoints = EntryPoints {
    timer: Some(timer::on_timer),
    reply: Some(blocked::on_reply),
    unblock: Some(blocked::on_unblock),
    disconnect: Some(blocked::on_disconnect),
    expired_evicted: Some(events::on_expired_evicted),
    new_key: Some(events::on_new_key),
    generic: Some(events::on_generic),
    async_loading: Some(events::on_async_loading),
    command: Some(filter::on_command),
    over: Some(filter::on_over),
};
