//! Runs clients and faults against real servers, records every call, and checks the history with `lockward-checker`.
//!
//! A [`run`] happens in a [`world`]: servers, their faults, and the promises that hold in spite of these faults. The
//! clients run in worker processes ([`worker_process`], [`worker`]), so that a fault can stop a whole process. Each
//! client is a [`workload_client`]. It sends its calls through a [`recording_client`], and writes to a [`store`] that
//! checks fencing tokens. [`queue_order`] tests the order of waiters.
//!
//! [`client_run`] runs a world with clients that use `lockward-client` ([`rust_client`]).
//!
//! [`restore`] is another kind of run: in each round a server forgets tenures, and their holders restore them.

pub mod client_run;
pub mod queue_order;
pub mod recording_client;
pub mod restore;
pub mod run;
pub mod rust_client;
pub mod store;
pub mod worker;
pub mod worker_process;
pub mod workload_client;
pub mod world;
