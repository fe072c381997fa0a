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
            patience: Duration::from_secs(10),
            waiting_connections: 100,
        }
    }
}

impl Settings {
    /// How long a server has to reply. After that the client repeats the request on another connection. The default is
    /// 2 seconds. A request that waits for a lock has its wait limit and then this time. A renewal has no more than a
    /// third of the lease.
    #[must_use]
    pub fn response_limit(self, limit: Duration) -> Self {
        Self { response_limit: limit.min(FAR_FUTURE), ..self }
    }

    /// How long the client repeats a request while no server answers, before it fails with
    /// [`Error::Unreachable`](crate::Error::Unreachable). The default is 10 seconds. Make it longer than a failover or a
    /// restart takes. A request that waits for a lock is repeated until the wait limit, if that is later; a renewal is
    /// repeated until the lease is over.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: patience.min(FAR_FUTURE), ..self }
    }

    /// How many connections may wait for locks at a time: at least 1. The default is 100. Further callers wait in the
    /// process for one of these connections, within their wait limits. An acquisition of a free lock uses the shared
    /// connection and needs none of these.
    ///
    /// A caller that waits for a connection also tries to acquire its lock, at least once a second. It succeeds when the
    /// lock is free and its queue is empty. Otherwise the callers that have all the connections might wait for a
    /// lock that it holds itself.
    #[must_use]
    pub fn waiting_connections(self, count: usize) -> Self {
        Self { waiting_connections: count.max(1), ..self }
    }
}
