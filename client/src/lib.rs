//! The client of Lockward: distributed locks on Redis and Valkey.
#![forbid(unsafe_code)]

mod address;
mod client;
mod error;
mod guard;
mod keeper;
mod lock;
mod request;
mod servers;
mod settings;
mod tenure;

pub use address::Address;
pub use client::Client;
pub use error::{Error, Loss};
pub use guard::Guard;
pub use lock::Lock;
pub use settings::Settings;
