//! Checks recorded histories of lock calls for violations of what Lockward promises.
//!
//! Clients record every call in a [`history`], with the times of invocation and response. The [`checker`] returns a
//! [`violation`] for each broken promise, with the few lines that show it. To test the checker, [`simulate`] creates
//! correct histories, and corrupts each history in one named way.

pub mod bounds;
pub mod checker;
pub mod client;
pub mod history;
pub mod random;
pub mod recorder;
mod report;
pub mod simulate;
mod spans;
mod tenure;
pub mod violation;
