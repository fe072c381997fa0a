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
//! let guard = client.lock("order:42").wait(Duration::from_secs(60)).acquire().await?;
//! tokio::select! {
//!     () = write(42, guard.token()) => guard.release().await?,
//!     loss = guard.lost() => eprintln!("stopped: {loss}"),
//! }
//! # Ok(()) }
//! ```
//!
//! # What it takes care of
//!
//! - **The lease is renewed** at each third of it, by one task for all guards of a client, until the guard is gone or
//!   the lock is lost. [`Lock::hold_limit`] bounds that; [`Lock::without_renewal`] declines it.
//! - **Lost replies.** Each request names the count of holds that it leads to, and is repeated when its reply is
//!   lost. Nothing is counted twice, what was granted to nobody is given back, and a waiter keeps its place in the
//!   queue.
//! - **Waiting** takes a connection of its own and holds up nothing else. Whoever finds the lock free needs none.
//! - **Servers that die, fail over or move slots.** Requests follow. As soon as a connection breaks all tenures are
//!   renewed with their tokens, which restores what a server in quarantine has forgotten.
//! - **Callers that leave.** A future that is dropped leaves the queue, and what it may have been granted meanwhile
//!   is given back.
//! - **Several independent servers**, of which a majority decides: [`redlock`].
//!
//! # What it cannot
//!
//! Stop a write that is under way when the lock is lost. This process may stand still past its lease, or the network
//! may; then another owner is granted the lock, as it should be. [`Guard::is_held`] is false by then, as the lease
//! ends earlier by this process's clock than by the server's, but nobody looks between every two instructions. So
//! pass [`Guard::token`] on to what the lock protects, and let that refuse a smaller token than it has seen.
//!
//! # Owners
//!
//! Each acquisition is an owner of its own, so two tasks of one process exclude each other as two processes do. To
//! enter a lock again, call [`Guard::re_enter`], or [name an owner](Lock::owner).
#![forbid(unsafe_code)]

mod address;
mod client;
mod error;
mod guard;
mod keeper;
mod lease;
mod lock;
pub mod redlock;
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

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// And that of the page on Redlock.
#[cfg(doctest)]
#[doc = include_str!("../../docs/redlock.md")]
struct OnRedlock;
