//! A client, and what its handles share.

use crate::address::Address;
use crate::error::Error;
use crate::keeper::{self, Errand};
use crate::lock::Lock;
use crate::request::Claim;
use crate::servers::{Servers, locked};
use crate::settings::Settings;
use crate::tenure::Turns;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
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
            name: Uuid::new_v4(),
            count: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A lock, to be acquired. Any bytes are a name; in a cluster, what stands in `{...}` decides which node has it.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(self.clone(), key.as_ref().to_vec())
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
