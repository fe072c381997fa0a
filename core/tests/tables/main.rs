//! Tests of decisions, as tables in virtual time: see [`notation`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in what it calls as well"
)]

mod acquire;
mod counters;
mod kept_places;
mod lease;
mod many_holders;
mod modes;
mod notation;
mod quarantine;
mod queue;
mod release;
mod renew;
mod replication;
mod tokens;
mod wait_queues;
