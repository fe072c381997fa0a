//! A client of one deployment.

use crate::address::Address;
use crate::background::Task;
use crate::client_state::ClientState;
use crate::error::Error;
use crate::lock::Lock;
use crate::settings::Settings;
use redis::ConnectionInfo;
use std::fmt;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A client of one deployment: a server, the servers that Sentinels watch, or a cluster.
///
/// Clones share their connections and one background task, which renews all locks. The task runs in the tokio runtime
/// that the client was created in. When that runtime ends, nothing is renewed any more, and guards are lost when their
/// leases are over.
#[derive(Clone)]
pub struct Client {
    state: Arc<ClientState>,
}

impl Client {
    /// Creates a client for a URL in one of the forms of [`Address`], with the default [`Settings`], and waits until a
    /// server answers.
    ///
    /// # Errors
    /// [`Error::Connection`] when the URL is not valid, or the server refuses the connection; [`Error::Unreachable`] when
    /// no server answers within [`Settings::patience`]; otherwise as [`Client::new`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let client = Self::new(url.parse()?, Settings::default())?;
        client.reach().await?;
        Ok(client)
    }

    /// Creates a client. It connects at the first request.
    ///
    /// The tokio runtime needs its IO and time drivers (`enable_all`). Without them tokio panics at the first request.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the address names no server, or outside a tokio runtime.
    pub fn new(address: Address, settings: Settings) -> Result<Self, Error> {
        Ok(Self { state: Arc::new(ClientState::new(address, settings)?) })
    }

    /// A lock, to be acquired. The name may be any bytes. In a cluster the part in `{...}` decides which node has the lock.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.state), key.as_ref().to_vec())
    }

    /// Where the primaries are now, and how to connect to them: the one server, the primary that Sentinels name, or all
    /// primaries of a cluster. It is for tools that look at all locks, as a connection sees the locks of one server only.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when no Sentinel, or no node of the cluster, answers within the client's patience;
    /// [`Error::Connection`] when it refuses the connection. A single server is not asked.
    pub async fn primaries(&self) -> Result<Vec<ConnectionInfo>, Error> {
        self.state.servers.primaries().await
    }

    /// Resolves when nothing is left to release in the background: neither holds of dropped guards, nor acquisitions whose
    /// futures were dropped. Call it before a program ends; otherwise what is left ends with its lease.
    ///
    /// While no server answers, it may take as long as a lease, or an hour if the client does not know the lease. So bound
    /// it, for example with `tokio::time::timeout`.
    pub async fn settled(&self) {
        let (listener, dropped) = oneshot::channel();
        self.state.enqueue(Task::NotifyIdle(listener));
        // The background task drops the listener and sends nothing.
        let _ = dropped.await;
    }

    /// Waits until a server answers, as long as the client's patience.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        self.state.servers.reach().await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(out)
    }
}
