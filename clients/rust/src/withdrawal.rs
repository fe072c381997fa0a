//! Withdraws an acquisition whose caller does not wait for it any more.

use crate::commands::{Block, Mode, OwnedKey};
use crate::connections::ConnectionKind;
use crate::error::Error;
use crate::servers::Servers;
use crate::tenure::Tenure;
use crate::time::from_now;
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// An acquisition whose caller has left, or whose reply was lost. The server may have granted it, or may still do so.
pub(crate) struct AbandonedAcquire {
    pub(crate) key: OwnedKey,
    pub(crate) may_be_queued: bool,
    /// After this time a grant has ended by itself.
    pub(crate) lease: Duration,
    /// No other caller acquires as a named owner until the withdrawal is done.
    pub(crate) owner_lock: Option<OwnedMutexGuard<Weak<Tenure>>>,
}

/// Removes the waiter from the queue, and releases what it may have been granted. Tries until a grant has ended with its
/// lease.
pub(crate) async fn withdraw(servers: &Servers, abandoned: AbandonedAcquire) {
    let AbandonedAcquire { key, may_be_queued, lease, owner_lock } = abandoned;
    let mut attempts = servers.attempts(&key.key, from_now(lease));
    let mut connection = None;
    let mut is_left = !may_be_queued;
    // The server may not have noticed yet that the connection of the waiter is closed. A second wait of the same owner takes
    // over its position, and ends after an instant.
    let brief_wait = key.acquire(Some(1), 1, Mode::default(), Block::For(Duration::ZERO));
    while !is_left {
        match attempts.attempt(&mut ConnectionKind::Dedicated(&mut connection), &brief_wait).await {
            Ok(reply) => is_left = reply.is_some(),
            // With an error the server ends the wait, too.
            Err(Error::Server { .. }) => is_left = true,
            Err(_) => break,
        }
    }
    if is_left {
        let _ = attempts.request(&key.withdraw()).await;
    }
    if let Some(connection) = connection {
        connection.keep_idle();
    }
    drop(owner_lock);
}
