//! Lockward beside other locks: the same jobs done with each of them, on servers of our own.
//!
//! A *peer* is a lock that a library offers, with the server it needs. A *contestant* is the program that does a job with a
//! peer; benches/peers/README.md says what it is asked and what it answers. The driver starts servers and contestants one
//! after the other, and measures what the servers spend meanwhile.

pub mod children;
pub mod contest;
pub mod interrupts;
pub mod meter;
pub mod monitor;
pub mod programs;
pub mod report;
pub mod roster;
pub mod server;
