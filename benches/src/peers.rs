//! Lockward compared with other locks: each lock runs the same jobs, on a server that the driver starts.
//! benches/peers/README.md describes the peer programs. If the driver is killed, its servers and peer programs are
//! killed too.

pub mod job;
pub mod list;
pub mod meter;
pub mod report;
pub mod server;
