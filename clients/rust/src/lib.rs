//! The client of Lockward: distributed locks on Redis and Valkey, for [tokio](https://docs.rs/tokio).
//!
//! ```
//! use lockward_client::Client;
//! use std::time::Duration;
//! # #[tokio::main] async fn main() -> Result<(), lockward_client::Error> {
//! # let server = lockward_tests::Server::start();
//! # let url = &format!("redis://127.0.0.1:{}", server.port());
//! # async fn write(order: u32, token: u64) {}
//!
//! let client = Client::connect(url).await?;
//! let lock = client.lock("order:42").wait(Duration::from_secs(60));
//! lock.run(async |lock| {
//!     write(42, lock.token()).await;
//!     Ok::<_, lockward_client::Error>(())
//! })
//! .await?;
//! # Ok(()) }
//! ```
//!
//! # What the client does
//!
//! - **It renews a lease** each time a third of the lease has passed, until the guard is released or the lock is lost.
//!   [`Lock::hold_limit`] limits how long the client renews, and [`Lock::without_renewal`] switches renewals off.
//! - **It detects a loss by its own clock**, at the end of the lease, even if no server answers.
//! - **It repeats requests** whose replies are lost. Each request names the resulting number of holds, so no hold
//!   counts twice. A waiter keeps its position in the queue.
//! - **Each waiter has a connection of its own**, so a waiter delays no other request. The client acquires a free lock
//!   on a shared connection.
//! - **It follows failovers and slots that move.** As soon as the connection to a server breaks, the client renews its
//!   tenures with their tokens. So a server in quarantine restores the tenures that it has forgotten.
//! - **It cleans up after callers that leave.** If a future is dropped, the client leaves the queue, and releases the
//!   lock if the server may have granted it.
//! - **It can use a majority**: [`redlock`] is one lock on several independent servers.
//!
//! # What the client cannot do
//!
//! The client cannot stop a write that is in progress when the lock is lost. This process may pause for longer than its
//! lease, and the server then grants the lock to another owner. By then [`Guard::is_held`] is false, because the lease
//! ends earlier by this process's clock than by the server's. But the lease may end between such a check and the write.
//! So use [`Guard::guarded`] for a write to the lock's server. With each write to another store send [`Guard::token`],
//! and let the store refuse a token that is smaller than an earlier token.
//!
//! # Owners
//!
//! Each acquisition has its own owner, so two tasks of one process exclude each other as two processes do. A task
//! cannot acquire a lock twice: if the task holds the lock, its second acquisition waits for the first. With
//! [`Lock::owner`] a program names the owner itself.
#![forbid(unsafe_code)]

mod acquire;
mod address;
mod client;
mod commands;
mod error;
mod guard;
mod lock;
pub mod redlock;
mod request;
mod servers;
mod settings;
mod tenure;
mod time;

pub use address::Address;
pub use client::Client;
pub use commands::Limit;
pub use error::{Error, Loss};
pub use guard::Guard;
pub use lock::Lock;
/// The crate whose commands [`Guard::guarded`] runs.
pub use redis;
pub use settings::Settings;

/// Runs the programs of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the program of the page on Redlock as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/redlock.md")]
struct RedlockPage;
