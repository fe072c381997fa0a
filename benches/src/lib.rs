//! The benchmarks of Lockward, and what they share: servers, a client that uses little CPU, the server's CPU time, and
//! reports. The programs in `bin/` list the benchmarks.
//!
//! Most figures are the CPU time of the server process, including its time in the kernel. So a busy machine makes the
//! figures noisier, but does not change which side of a comparison costs less. The two sides of a comparison run
//! alternately, round by round, in one run. Their medians are compared.

#![allow(
    missing_docs,
    reason = "only the programs of this crate use it; names that say everything need no comment"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark that fails panics with the reason"
)]

pub mod batch;
pub mod clients;
pub mod cluster;
pub mod cpu;
pub mod expiry;
pub mod flame;
pub mod handoff;
pub mod holders;
pub mod instructions;
pub mod locks;
pub mod machine;
pub mod memory;
pub mod pairs;
pub mod peers;
pub mod placement;
pub mod plot;
pub mod pubsub;
pub mod queues;
pub mod replica;
pub mod report;
pub mod request;
pub mod results;
pub mod scene;
pub mod server;
pub mod sizing;
pub mod slots;
pub mod stalls;
pub mod table;
pub mod waiters;
