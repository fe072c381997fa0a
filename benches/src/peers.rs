//! Lockward compared with other locks: the same jobs are done with each of them, on servers of our own.
//!
//! A *peer* is a lock of another library, with the server that it needs. A *contestant* is the program that runs a job with a
//! peer; benches/peers/README.md describes its input and output. The driver starts servers and contestants one
//! after the other, and measures the CPU time of the servers meanwhile. If the driver is killed, they are killed too.

pub mod contest;
pub mod meter;
pub mod monitor;
pub mod programs;
pub mod report;
pub mod roster;
pub mod server;
