//! What a client may be told about time and connections.

use crate::tenure::FAR;
use std::time::Duration;

/// How a [`Client`](crate::Client) deals with servers that are slow or silent.
///
/// ```
/// # use lockward_client::Settings;
/// # use std::time::Duration;
/// let settings = Settings::default().patience(Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) response_limit: Duration,
    pub(crate) patience: Duration,
    pub(crate) waiting: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { response_limit: Duration::from_secs(2), patience: Duration::from_secs(10), waiting: 100 }
    }
}

impl Settings {
    /// How long a server has to reply before it is taken for unreachable, and the request is repeated on another
    /// connection: 2 seconds. (A request that waits for a lock has its wait limit and then so long.) A renewal is
    /// given no more than a third of the lease.
    #[must_use]
    pub fn response_limit(self, limit: Duration) -> Self {
        Self { response_limit: limit.min(FAR), ..self }
    }

    /// How long a request is repeated while no server takes it, before it fails with
    /// [`Error::Unreachable`](crate::Error::Unreachable): 10 seconds. A failover or a restart has to be over by then.
    /// Who waits for a lock bears an outage as long as the wait limit, if that is longer; a renewal is repeated until
    /// the lease is over.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: patience.min(FAR), ..self }
    }

    /// How many connections may wait for locks at a time: 100, at least 1. More callers that wait stand in line
    /// before these, in the process, within their wait limits. Whoever finds the lock free needs none.
    ///
    /// Who stands in that line asks for its lock now and then, once a second or more often, and gets it when it is free and nobody waits in the
    /// server's queue: all connections may be taken by those who wait for a lock that it holds itself.
    #[must_use]
    pub fn waiting_connections(self, count: usize) -> Self {
        Self { waiting: count.max(1), ..self }
    }
}
