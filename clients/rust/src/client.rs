//! A client, and what its handles share.

use crate::address::Address;
use crate::error::Error;
use crate::keeper::{self, Errand};
use crate::lock::Lock;
use crate::request::Claim;
use crate::servers::{Servers, locked};
use crate::settings::Settings;
use crate::tenure::Turns;
use redis::ConnectionInfo;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};
use uuid::Uuid;

/// A client of one deployment: a server, the servers that Sentinels watch, or a cluster.
///
/// It is a handle: clones share connections, and the one task that renews all their locks. That task belongs to the
/// tokio runtime that the client was made in; when the runtime ends, guards are not renewed any more, and are lost
/// when their leases are over.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) servers: Arc<Servers>,
    pub(crate) waiting: Semaphore,
    errands: mpsc::UnboundedSender<Errand>,
    /// Owners that the caller names, and their tenures. Whoever asks in an owner's name has its turn first.
    owners: Mutex<HashMap<Claim, Weak<Turns>>>,
    /// The lease where none is named, in milliseconds, as the server has told; 0 before that.
    lease: AtomicU64,
    name: Uuid,
    count: AtomicU64,
}

impl Client {
    /// A client of the servers at a URL, as [`Address`] describes it, once one of them has answered.
    ///
    /// # Errors
    /// [`Error::Connection`] when the URL is not understood, or the server does not let the client in;
    /// [`Error::Unreachable`] when none answers within [`Settings::patience`]; else as [`Client::new`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let client = Self::new(url.parse()?, Settings::default())?;
        client.shared.servers.reach().await?;
        Ok(client)
    }

    /// A client of the servers at an address. It connects when it first has to.
    ///
    /// The tokio runtime needs its IO and time drivers (`enable_all`): without them tokio panics at the first request.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the address names no server, or outside a tokio runtime.
    pub fn new(address: Address, settings: Settings) -> Result<Self, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::Invalid("a client is made in a tokio runtime"));
        };
        let (errands, received) = mpsc::unbounded_channel();
        let news = errands.downgrade();
        let waiting = Semaphore::new(settings.waiting.min(Semaphore::MAX_PERMITS));
        let servers = Arc::new(Servers::new(address, settings, move || {
            if let Some(errands) = news.upgrade() {
                let _ = errands.send(Errand::RenewAll);
            }
        })?);
        runtime.spawn(keeper::keep(Arc::clone(&servers), received));
        let shared = Shared {
            servers,
            waiting,
            errands,
            owners: Mutex::default(),
            lease: AtomicU64::new(0),
            name: Uuid::new_v4(),
            count: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A lock, to be acquired. Any bytes are a name; in a cluster, what stands in `{...}` decides which node has it.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(self.clone(), key.as_ref().to_vec())
    }

    /// Where the primaries are now, and how to get into them: the one server, the one that Sentinels name, or all that a
    /// cluster has. For tools that look at every lock, as one connection sees only what its server has.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when no Sentinel, or no node of the cluster, tells within the client's patience;
    /// [`Error::Connection`] when it does not let the client in. One server is not asked.
    pub async fn primaries(&self) -> Result<Vec<ConnectionInfo>, Error> {
        self.shared.servers.primaries().await
    }

    /// Resolves when all that was left behind is given back: guards that were dropped, acquisitions whose futures were
    /// dropped. For programs that end soon after; whatever has not been given back by then ends with its lease. It may take
    /// as long as a lease while no server answers, an hour where that is not known, so bound it, as by
    /// `tokio::time::timeout`.
    pub async fn settled(&self) {
        let (listener, told) = oneshot::channel();
        self.shared.leave(Errand::Tell(listener));
        // It is dropped, whatever happens.
        let _ = told.await;
    }
}

impl Shared {
    /// Leaves something to the keeper. If the runtime has ended, nobody does it, and leases end by themselves.
    pub(crate) fn leave(&self, errand: Errand) {
        let _ = self.errands.send(errand);
    }

    /// An owner that nobody else is.
    pub(crate) fn fresh_owner(&self) -> Vec<u8> {
        format!("{}:{}", self.name, self.count.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }

    /// The lease where none is named, in milliseconds, if it is known.
    pub(crate) fn lease(&self) -> Option<u64> {
        Some(self.lease.load(Ordering::Relaxed)).filter(|lease| *lease > 0)
    }

    pub(crate) fn learn_lease(&self, lease: u64) {
        self.lease.store(lease, Ordering::Relaxed);
    }

    /// The server does not take this lease any more. It may have told of another one since.
    pub(crate) fn forget_lease(&self, lease: u64) {
        let _ = self.lease.compare_exchange(lease, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Where owners of this name take turns at this lock.
    pub(crate) fn turns(&self, claim: &Claim) -> Arc<Turns> {
        let mut owners = locked(&self.owners);
        if let Some(turns) = owners.get(claim).and_then(Weak::upgrade) {
            return turns;
        }
        owners.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::default();
        owners.insert(claim.clone(), Arc::downgrade(&turns));
        turns
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Client").field("name", &self.shared.name).finish_non_exhaustive()
    }
}
