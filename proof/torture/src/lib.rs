//! Clients on real servers with faults meanwhile, everything recorded, and judged by `lockward-checker`.
//!
//! A [`run`] has a [`world`]: the servers, what may happen to them, and what is promised all the same. Its clients live
//! in worker processes ([`worker`]), so that they can be stopped as a whole; each is a [`player`] that calls through a
//! [`caller`] and writes to a [`store`] which knows fencing tokens. [`queue`] tries the order of waiters.
//!
//! [`through`] plays the worlds with clients that use `lockward-client`.
//!
//! [`restore`] is a run of its own: rounds in which a server forgets, and holders come back with their tokens.

pub mod caller;
pub mod player;
pub mod queue;
pub mod restore;
pub mod run;
pub mod store;
pub mod through;
pub mod wire;
pub mod worker;
pub mod world;
