//! Clients on real servers with faults meanwhile, everything recorded, and report by `lockward-checker`.
//!
//! A [`run`] has a [`world`]: the servers, what may happen to them, and what is promised all the same. Its clients live
//! in worker processes ([`worker`]), so that they can be stopped as a whole; each is a [`workload_client`] that calls through a
//! [`recording_client`] and writes to a [`store`] which knows fencing tokens. [`queue_order`] tries the order of waiters.
//!
//! [`rust_client`] plays the worlds with clients that use `lockward-client`.
//!
//! [`restore`] is a run of its own: rounds in which a server forgets, and holders come back with their tokens.

pub mod recording_client;
pub mod workload_client;
pub mod queue_order;
pub mod restore;
pub mod run;
pub mod store;
pub mod rust_client;
pub mod worker;
pub mod world;
