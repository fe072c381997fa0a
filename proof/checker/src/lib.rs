//! Checks recorded histories of lock calls for violations of what Lockward promises.
//!
//! Clients record every call in a [`history`], with the times of invocation and response. The [`checker`] returns a
//! [`violation`] for each broken promise, with the few lines that show it. tests/simulated tests the checker with
//! simulated histories.

pub mod bounds;
pub mod checker;
pub mod client;
pub mod history;
pub mod recorder;
mod report;
mod spans;
pub mod tenure;
pub mod violation;
