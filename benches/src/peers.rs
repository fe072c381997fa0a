//! Lockward compared with other locks: each lock runs the same jobs, on a server that the driver starts.
//!
//! A *peer* is a lock of a library, with the server that it needs. A *peer program* runs a job with a peer.
//! benches/peers/README.md describes the input and output of a peer program. The driver starts a server and a peer
//! program for each job, one job at a time, and measures the CPU time of the server. If the driver is killed, its
//! servers and peer programs are killed too.

pub mod job;
pub mod list;
pub mod meter;
pub mod report;
pub mod server;
