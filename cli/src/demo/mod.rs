//! `lockward demo`: shows on a real server lost updates without a lock, and the late write of a stopped holder.

mod counting;
mod paused;

use clap::Args;
use redis::ConnectionInfo;

use crate::failure::Failure;
use crate::server::Server;
use counting::REPLY_LIMIT;

/// Show lost updates without a lock, on a real server
///
/// Fifty clients add 1 to the same number (GET, add 1, SET): first without a lock, then with SET NX PX, then with
/// LOCK.ACQUIRE. The demo uses its own keys and deletes them.
#[derive(Args)]
pub(crate) struct Demo {
    /// A server with the Lockward module
    #[arg(long, default_value = "redis://127.0.0.1:6379")]
    url: ConnectionInfo,

    /// Show instead the late write of a holder that was stopped until its lease was over: with SET and with LOCK.GUARD
    #[arg(long)]
    paused: bool,
}

impl Demo {
    /// Fails if an update was lost in spite of the lock commands, or a late write was accepted in spite of LOCK.GUARD.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let server = Server::new(self.url)?;
        server.require_module(&mut server.connect(REPLY_LIMIT)?)?;
        if self.paused { paused::run(&server) } else { counting::run(&server) }
    }
}
