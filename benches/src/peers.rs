//! Lockward compared with other locks: each lock runs the same jobs, on a server that the driver starts.
//!
//! A *peer* is a lock of a library, with the server that it needs. A *contestant* is the program that runs a job with a
//! peer. benches/peers/README.md describes the input and output of a contestant. The driver runs the contestants one
//! after the other, and measures the CPU time of their servers. If the driver is killed, its servers and contestants
//! are killed too.

pub mod contest;
pub mod meter;
pub mod monitor;
pub mod programs;
pub mod report;
pub mod roster;
pub mod server;
