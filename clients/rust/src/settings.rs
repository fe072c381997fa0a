//! Limits of time and connections.

use crate::time::FAR_FUTURE;
use std::time::Duration;

/// How a [`Client`](crate::Client) deals with servers that are slow or do not answer.
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
    pub(crate) waiting_connections: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            response_limit: Duration::from_secs(2),
            patience: Duration::from_secs(5),
            waiting_connections: 256,
        }
    }
}

impl Settings {
    /// How long the client waits for a reply, before it repeats the request on another connection. The default is 2
    /// seconds. For a request that waits for a lock, this time begins when the wait of the request ends. For a renewal,
    /// the time is at most a sixth of the lease.
    #[must_use]
    pub fn response_limit(self, limit: Duration) -> Self {
        Self { response_limit: limit.min(FAR_FUTURE), ..self }
    }

    /// How long a call repeats its request while no server answers, before the call fails with
    /// [`Error::Unreachable`](crate::Error::Unreachable). The default is 5 seconds. This time does not limit a call
    /// that waits in the queue: such a call waits until its wait limit, through restarts and failovers. This time also
    /// does not limit automatic renewals: the client tries to renew a lease until the lease is over.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: patience.min(FAR_FUTURE), ..self }
    }

    /// How many connections may wait for locks at a time: at least 1. The default is 256. Further callers wait in the
    /// process for one of these connections. Meanwhile they try to acquire their locks without waiting: first after 50
    /// milliseconds, then after pauses that double up to a second. Such a try succeeds when the lock is free and its
    /// queue is empty. Calls with [`replicas`](crate::Lock::replicas) open further connections.
    #[must_use]
    pub fn waiting_connections(self, count: usize) -> Self {
        Self { waiting_connections: count.max(1), ..self }
    }
}
