//! A client of one deployment.

use crate::address::Address;
use crate::commands::{Grant, Kind, OwnedKey};
use crate::error::Error;
use crate::guard::Guard;
use crate::lock::Lock;
use crate::request::Request;
use crate::servers::Inner;
use crate::settings::Settings;
use crate::tenure::Tenure;
use crate::time::{FAR_FUTURE, from_now, lease_end};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The keys with their tokens and kinds, the lease, the rest of the hold limit, and whether the client renews the lock.
type Handle = (Vec<(OwnedKey, u64, Vec<Kind>)>, u64, Option<u64>, bool);

/// A client of one deployment: a server, the servers that Sentinels watch, or a cluster.
///
/// Clones share their connections. Tasks of the tokio runtime in which the client was created renew the locks. When
/// that runtime ends, the client stops renewing, and guards are lost when their leases are over.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Creates a client for a URL in one of the forms of [`Address`], with the default [`Settings`], and waits until a
    /// server answers.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the URL is not valid; [`Error::Refused`] when the server refuses the connection;
    /// [`Error::Unreachable`] when no server answers within [`Settings::patience`]; and the errors of [`Client::new`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let client = Self::new(url.parse()?, Settings::default())?;
        client.reach(from_now(client.inner.settings.patience)).await?;
        Ok(client)
    }

    /// Creates a client. It connects at the first request.
    ///
    /// The tokio runtime needs its IO and time drivers (`enable_all`). Without them tokio panics at the first request.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the address names no server, or outside a tokio runtime.
    pub fn new(address: Address, settings: Settings) -> Result<Self, Error> {
        Ok(Self { inner: Inner::new(address, settings)? })
    }

    /// A request for a lock: see [`Lock::acquire`]. The key may be any bytes. In a cluster, the part of the key in
    /// `{...}` decides which node has the lock.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        self.locks([key])
    }

    /// A request for several locks as one lock. The client acquires all keys or none. It acquires the keys in the order
    /// of their bytes, so that callers with common keys do not deadlock. A key that is named twice counts once.
    pub fn locks<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Lock {
        let mut keys: Vec<_> = keys.into_iter().map(|key| key.as_ref().to_vec()).collect();
        keys.sort();
        keys.dedup();
        let (client, kind, wait) = (Arc::clone(&self.inner), Kind::default(), FAR_FUTURE);
        let (lease, hold_limit, replicas, owner) = (None, None, None, None);
        Lock { client, keys, kind, lease, is_renewed: true, hold_limit, wait, replicas, owner }
    }

    /// Runs `work` while this process is the leader for `key`: [`Lock::lead`] with the default options.
    ///
    /// # Errors
    /// The errors of [`Lock::lead`].
    pub async fn lead<F: Future>(
        &self,
        key: impl AsRef<[u8]>,
        work: impl FnMut(Arc<Guard>) -> F,
    ) -> Result<F::Output, Error> {
        self.lock(key).lead(work).await
    }

    /// Continues a tenure of another process. `handle` is the result of [`Guard::handle`] in that process. The client
    /// renews the tenure at once. If the future is dropped, the tenure ends with its lease.
    ///
    /// # Errors
    /// - [`Error::Invalid`] when the handle is not valid.
    /// - [`Error::Lost`] when the tenure is over. If one of several keys is lost, the client releases the other keys.
    /// - [`Error::Unreachable`] when no server answers within the client's patience. Then the program can call `resume`
    ///   again.
    pub async fn resume(&self, handle: &str) -> Result<Guard, Error> {
        let invalid = |error| Error::Invalid(format!("the handle is not valid: {error}"));
        let (keys, lease, hold_left, is_renewed): Handle = serde_json::from_str(handle).map_err(invalid)?;
        if keys.is_empty() {
            return Err(Error::invalid("the handle is not valid: it has no key"));
        }
        let tenure = Tenure::new(&self.inner);
        let grant = |(name, token, kinds)| (Arc::new(name), Grant { token, kinds });
        let keys = keys.into_iter().map(grant).collect();
        let hold_limit = hold_left.map(Duration::from_millis);
        // The client does not know when the other process renewed the lease last. So until the first renewal the lease
        // counts from now on.
        let now = Instant::now();
        tenure.add(keys, lease_end(lease, now), lease, Some(now));
        tenure.change(|state| state.hold_end = hold_limit.map(from_now));
        let renewed = tenure.renew(self.inner.settings.patience, false).await;
        let mut guard = Guard::new(&self.inner);
        if matches!(renewed, Ok(()) | Err(Error::Lost { .. })) {
            // If one key is lost, the drop of this guard releases the other keys.
            guard.tenure.join(&tenure);
        }
        renewed?;
        guard.complete(hold_limit, is_renewed).map(|()| guard)
    }

    /// Waits until the releases that are in progress in the background have ended, at most for the client's patience.
    /// These are the releases of dropped guards, and of acquisitions that have failed or whose futures were dropped.
    /// Returns whether all these releases have ended. The client continues the remaining releases while its runtime runs.
    /// A lock that is not released ends with its lease. Call this method before a program ends.
    ///
    /// This method closes nothing. The client continues to renew the locks whose guards exist, callers continue to wait,
    /// and the client can still be used.
    pub async fn close(&self) -> bool {
        self.inner.releases_end(from_now(self.inner.settings.patience), |_| true).await
    }

    /// Waits until a server answers, at most until `end`.
    pub(crate) async fn reach(&self, end: Instant) -> Result<(), Error> {
        Request::new(&self.inner, Vec::new(), end).repeat(&redis::cmd("PING")).await.map(drop)
    }
}
