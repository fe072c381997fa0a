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
//! **Every server needs a quarantine** (`lock.quarantine`) that is at least as long as the longest lease. A server that
//! restarts without its data has forgotten its vote. Without a quarantine, this server would grant the lock to another
//! owner while the first owner still relies on the vote.
//!
//! # How the lock is held
//!
//! Each server has its own tenure, with its own owner name. The client acquires, renews and releases each tenure like
//! any other [`Guard`](crate::Guard), and restores the tenure after a restart of the server. The lock is held while
//! more than half of these tenures are held. This process decides by its own clock whether a tenure is held. Two owners
//! cannot hold the lock at once: two majorities have at least one server in common, and a server has one tenure at a
//! time. If a server loses its tenure while the other servers are still a majority, the client asks this server for a
//! new tenure.
//!
//! # What Redlock does not give
//!
//! There is **no fencing token**, because tokens of different servers cannot be compared. There is no queue, so waiters
//! are served in no particular order. Redlock cannot stop the late write of a holder that was paused for longer than
//! its lease. To stop late writes, use [one server](crate::Client) with replicas, a quarantine and fencing tokens.

mod client;
mod guard;
mod lock;
mod majority;

pub use client::Redlock;
pub use guard::Guard;
pub use lock::Lock;
