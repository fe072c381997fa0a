//! Runs clients and faults against real servers, records every call, and checks the history with `lockward-checker`.
//!
//! A [`run`] has a [`world`]: the servers, their faults, and the promises that hold in spite of them. The clients run in worker
//! processes ([`worker_process`], [`worker`]), so that a whole process can be stopped. Each is a [`workload_client`]. It sends its
//! calls through a [`recording_client`], and writes to a [`store`] that checks fencing tokens. [`queue_order`] tests the order of waiters.
//!
//! [`client_run`] runs the worlds with clients that use `lockward-client` ([`rust_client`]).
//!
//! [`restore`] is another kind of run: rounds in which a server forgets tenures, and their holders restore them.

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
