//! How a lock is to be acquired.

use crate::acquire::{AcquireRequest, Acquisition};
use crate::client_state::ClientState;
use crate::commands::{Limit, Mode, OwnedKey};
use crate::error::Error;
use crate::guard::Guard;
use crate::time::from_now;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::timeout_at;

/// A lock, and the options to acquire it with.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(client: lockward_client::Client) -> Result<(), lockward_client::Error> {
/// let guard = client.lock("order:42").lease(Duration::from_secs(10)).wait(Duration::from_secs(60)).acquire().await?;
/// # guard.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock is not acquired until `acquire` is called"]
pub struct Lock {
    client: Arc<ClientState>,
    key: Vec<u8>,
    owner: Option<Vec<u8>>,
    request: AcquireRequest,
}

impl Lock {
    pub(crate) const fn new(client: Arc<ClientState>, key: Vec<u8>) -> Self {
        let mode = Mode { limit: Limit::Exclusive, weight: None };
        let request = AcquireRequest {
            mode,
            lease: None,
            is_renewed: true,
            hold_limit: None,
            wait: None,
            replicas: None,
        };
        Self { client, key, owner: None, request }
    }

    /// Holds the lock together with others who ask for it like this: a read lock.
    pub fn shared(mut self) -> Self {
        self.request.mode.limit = Limit::Shared;
        self
    }

    /// Holds the lock while the weights of all holders are at most `slots`, 1 to 1,000,000: a semaphore.
    pub fn slots(mut self, slots: u32) -> Self {
        self.request.mode.limit = Limit::Slots(slots);
        self
    }

    /// How many of the [`slots`](Self::slots) to take. Without this call it is one.
    pub fn weight(mut self, weight: u32) -> Self {
        self.request.mode.weight = Some(weight);
        self
    }

    /// How long the lock stays held after this process has died or lost its connection: at least 1 millisecond. Until then
    /// the client renews the lease each time a third of it has passed. The server refuses a lease longer than its limits,
    /// `lock.max-lease` and `lock.quarantine`. If these are lowered while the lock is held, the client goes on with the longest
    /// lease that the server accepts.
    ///
    /// Without this call the lease is the server's default: `lock.default-lease`, which is 30 seconds unless it is set,
    /// or the server's limit if that is shorter.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.lease = Some(lease);
        self
    }

    /// Does not renew the lease. The lock is lost when the lease is over.
    pub fn without_renewal(mut self) -> Self {
        self.request.is_renewed = false;
        self
    }

    /// Ends renewals so that no lease ends later than this time after the acquisition: at least 1 millisecond. So a holder
    /// that hangs does not keep the lock for ever.
    pub fn hold_limit(mut self, limit: Duration) -> Self {
        self.request.hold_limit = Some(limit);
        self
    }

    /// How long [`acquire`](Self::acquire) waits for the lock. Zero does not wait. Without this call it waits without limit.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.request.wait = Some(limit);
        self
    }

    /// The owner to acquire the lock as: any 1 to 1,024 bytes but `*`. All who use this name, in any process, are the same
    /// owner, and share the lock. Within one client a second acquisition by the same owner enters the lock again, and each
    /// guard is one hold. Without this call each acquisition is an owner of its own.
    pub fn owner(self, owner: impl AsRef<[u8]>) -> Self {
        Self { owner: Some(owner.as_ref().to_vec()), ..self }
    }

    /// Acquires the lock only if `count` replicas confirm the grant within this time. Otherwise the client releases it, and
    /// the error is [`Error::Unreplicated`]. A replica that has confirmed a grant has it when it is promoted. The time
    /// must be shorter than the lease. Where the lease is the server's default, the client checks that after the grant.
    pub fn replicas(mut self, count: usize, within: Duration) -> Self {
        self.request.replicas = Some((count, within));
        self
    }

    /// Acquires the lock if it is free, without waiting.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is not free; otherwise as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Guard, Error> {
        self.wait(Duration::ZERO).acquire().await
    }

    /// Acquires the lock. If it is held, this waits in the server's queue: first come, first served.
    ///
    /// The client repeats the request when a reply is lost. No grant counts twice, and the waiter keeps its position in the
    /// queue. If another server takes over, the client sends the request to that one and waits at the end of its queue.
    ///
    /// **If the future is dropped**, the client leaves the queue and releases what the server may have granted, in the
    /// background.
    ///
    /// # Errors
    /// - [`Error::Busy`] when the wait limit is reached.
    /// - [`Error::Unreachable`] when no server has answered for the client's patience, or until the wait limit if that is
    ///   later.
    /// - [`Error::Lost`] when replies take longer than the lease, for as long.
    /// - [`Error::Unreplicated`] when too few [`replicas`](Self::replicas) confirm the grant.
    /// - [`Error::Invalid`] when an option is out of range.
    /// - [`Error::Server`] with the server's own error, such as `MAXWAITERS` or `OOM`.
    /// - [`Error::Connection`] when the server refuses the connection.
    pub async fn acquire(self) -> Result<Guard, Error> {
        self.check()?;
        let Self { client, key, owner, request } = self;
        let limit = request.wait.map(from_now);
        let Some(owner) = owner else {
            let key = OwnedKey { key, owner: client.unique_owner() };
            let tenure = Acquisition::new(&client, &key, &request, limit, None).acquire_first_hold().await?;
            return Ok(Guard::new(client, tenure));
        };
        let key = OwnedKey { key, owner };
        let locking = client.owner_mutex(&key).lock_owned();
        let mut owner_lock = match limit {
            Some(limit) => timeout_at(limit.into(), locking).await.map_err(|_| Error::Busy)?,
            None => locking.await,
        };
        if let Some(tenure) = owner_lock.upgrade() {
            match Guard::enter(&client, &tenure).await {
                // That tenure has ended, so this acquisition begins a new one.
                Err(Error::Lost(_)) => *owner_lock = Weak::new(),
                entered => return entered,
            }
        }
        let tenure =
            Acquisition::new(&client, &key, &request, limit, Some(owner_lock)).acquire_first_hold().await?;
        Ok(Guard::new(client, tenure))
    }

    fn check(&self) -> Result<(), Error> {
        match self.owner.as_deref() {
            Some(b"*") => Err(Error::Invalid("an owner must not be *, which asks the server to make one up")),
            Some(owner) if owner.is_empty() || owner.len() > 1_024 => {
                Err(Error::Invalid("an owner must be 1 to 1,024 bytes"))
            }
            _ => self.request.check(),
        }
    }
}
