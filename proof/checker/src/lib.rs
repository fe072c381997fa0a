//! The trial of Lockward: what was seen of a run, and whether it keeps what is promised.
//!
//! Clients record every call in a [`history`]. The [`checker`] reads it and raises an [`violation`] for each promise that the
//! history breaks, with the few lines that show it. [`simulate`] makes histories of an honest server, and breaks them in
//! one named way each: so the checker is itself tried.
//!
//! Only exclusive locks are judged: a history must not hold calls with SHARED or SLOTS.

pub mod violation;
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
