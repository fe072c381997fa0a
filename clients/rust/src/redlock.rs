//! Redlock: one lock on several independent servers, held while a majority of them grants it.
//!
//! ```
//! use lockward_client::redlock::Redlock;
//! use std::time::Duration;
//! # #[tokio::main] async fn main() -> Result<(), lockward_client::Error> {
//! # let servers: Vec<_> = (0..3).map(|_| lockward_tests::Server::start()).collect();
//! # let urls: Vec<_> = servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port())).collect();
//! # let urls: Vec<_> = urls.iter().map(|url| url.as_str()).collect();
//! # async fn work() {}
//!
//! let redlock = Redlock::connect(&urls).await?;
//! let guard = redlock.lock("order:42").wait(Duration::from_secs(60)).acquire().await?;
//! tokio::select! {
//!     () = work() => guard.release().await?,
//!     loss = guard.lost() => eprintln!("stopped: {loss}"),
//! }
//! # Ok(()) }
//! ```
//!
//! **Every server needs a quarantine** (`lock.quarantine`) no shorter than the longest lease. A server that restarts
//! without its data has forgotten its vote. Without a quarantine it would grant the lock to the next owner while the first
//! one still counts on that vote.
//!
//! # How it is held
//!
//! Each server has its own tenure, with its own owner name. It is acquired, renewed, restored after a restart and released
//! like any other [`Guard`](crate::Guard). The lock is held while more than half of these tenures are held, by the leases
//! that this process counts. Two owners cannot hold it at once: two majorities share a server, and that server has one
//! tenure at a time. When a server loses its tenure while the others are still a majority, the client asks it for a new one.
//!
//! # What it does not give
//!
//! There is **no fencing token**, because tokens of different servers cannot be compared. There is no queue, so waiters are
//! served in no order. If a holder that paused past its lease must not write, use [one server](crate::Client) with replicas
//! and a quarantine, and its tokens.

mod client;
mod guard;
mod lock;
mod majority;
mod voters;

pub use client::Redlock;
pub use guard::Guard;
pub use lock::Lock;
