//! Withdraws an acquisition whose caller does not wait for it any more.

use crate::commands::OwnedKey;
use crate::connections::ConnectionKind;
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
    // The request of a waiter was sent on a connection of its own. On another new one, the server reads the release later.
    let mut kind = match may_be_queued {
        true => ConnectionKind::Dedicated(&mut connection),
        false => ConnectionKind::Shared,
    };
    let withdraw = key.withdraw();
    while let Ok(None) = attempts.attempt(&mut kind, &withdraw).await {}
    if let Some(connection) = connection {
        connection.keep_idle();
    }
    drop(owner_lock);
}
