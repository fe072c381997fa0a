//! `lockward demo`: shows on a real server lost updates without a lock, and the late write of a stopped holder.

mod counting;
mod paused;

use clap::Args;

use crate::failure::Failure;
use crate::primaries::Servers;

/// Show lost updates without a lock, on a real server
///
/// Fifty clients add 1 to the same number (GET, add 1, SET): first without a lock, then with SET NX PX, then with
/// LOCK.ACQUIRE. The demo uses its own keys and deletes them.
#[derive(Args)]
pub(crate) struct Demo {
    /// Show instead the late write of a holder that was stopped until its lease was over: with SET and with LOCK.GUARD
    #[arg(long)]
    paused: bool,

    #[command(flatten)]
    servers: Servers,
}

impl Demo {
    /// Fails if an update was lost in spite of the lock commands, or a late write was accepted in spite of LOCK.GUARD.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let [server] = <[_; 1]>::try_from(self.servers.primaries()?)
            .map_err(|_| Failure::new("demo needs a server that is not part of a cluster"))?;
        server.connect_with_module()?;
        if self.paused { paused::run(&server) } else { counting::run(&server) }
    }
}
