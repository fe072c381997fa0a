//! What the benchmarks of Lockward share: a server of one's own, a client that costs little, the server's CPU time.
//!
//! What is measured is the CPU time of the server process, kernel included, never the wall time of the client: so a
//! busy machine makes the numbers noisier, but does not turn one into the other. Whatever is compared runs in turn,
//! round by round, in one run, and the medians are compared.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark that cannot go on ends, and says why"
)]

pub mod connection;
pub mod cpu;
pub mod handoff;
pub mod instructions;
pub mod limits;
pub mod pairs;
pub mod pipeline;
pub mod placement;
pub mod request;
pub mod rounds;
pub mod server;
