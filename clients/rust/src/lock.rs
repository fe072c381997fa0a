//! A request for a lock, with its options.

use crate::commands::{Kind, Limit};
use crate::error::Error;
use crate::servers::Inner;
use crate::time::{FAR_FUTURE, millis};
use std::sync::Arc;
use std::time::Duration;

/// A request for a lock, with the options. Several locks may be acquired as one: see
/// [`Client::locks`](crate::Client::locks).
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
    pub(crate) client: Arc<Inner>,
    /// The keys are distinct and sorted.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) kind: Kind,
    pub(crate) lease: Option<Duration>,
    pub(crate) is_renewed: bool,
    pub(crate) hold_limit: Option<Duration>,
    pub(crate) wait: Duration,
    pub(crate) replicas: Option<(usize, Duration)>,
    pub(crate) owner: Option<Vec<u8>>,
}

impl Lock {
    /// Acquires a read lock: all owners that ask for a shared lock may hold the lock together. If you call this method
    /// and [`slots`](Self::slots), only the last call has an effect.
    pub fn shared(mut self) -> Self {
        self.kind.limit = Limit::Shared;
        self
    }

    /// Makes the lock a semaphore: the weights of all holders together are at most `slots`. This number is 1 to
    /// 1,000,000, and should be the same for all callers. If you call this method and [`shared`](Self::shared),
    /// only the last call has an effect.
    pub fn slots(mut self, slots: u32) -> Self {
        self.kind.limit = Limit::Slots(slots);
        self
    }

    /// How many of the [`slots`](Self::slots) to acquire: 1 by default.
    pub fn weight(mut self, weight: u32) -> Self {
        self.kind.weight = Some(weight);
        self
    }

    /// How long the lock stays held after this process has died or lost its connection: at least 2 milliseconds. While
    /// the process runs, the client renews the lease each time a third of it has passed. The server limits leases to
    /// `lock.max-lease` and `lock.quarantine`. If the lease is longer, the client uses the longest lease that the
    /// server accepts.
    ///
    /// Without this call, the lease is the server's setting `lock.default-lease`, which is 30 seconds by default. If
    /// the server's limit is shorter, the lease is this limit.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Switches the renewals off. The lock is lost when the lease is over.
    pub fn without_renewal(self) -> Self {
        Self { is_renewed: false, ..self }
    }

    /// Limits how long the lock is held: at least 2 milliseconds. The lock is lost when this time has passed since the
    /// acquisition. So even a holder that hangs loses the lock.
    pub fn hold_limit(self, limit: Duration) -> Self {
        Self { hold_limit: Some(limit), ..self }
    }

    /// How long [`acquire`](Self::acquire) waits for the lock. With zero, the call does not wait. By default, the call
    /// waits without limit.
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// The name of the owner: 1 to 1,024 bytes, but not `*`. All callers that use this name, in any process, are one
    /// owner. When one of these callers releases the lock, or its acquisition fails or is dropped, the lock is released
    /// for all of them. These callers must name the same lease, because a renewal by one of them sets the lease for all
    /// of them. Name the owner if a program must acquire its lock again after a crash. If a release by this owner is still in progress in the
    /// background, [`acquire`](Self::acquire) first waits until this release has ended. By default, each acquisition
    /// has its own owner.
    pub fn owner(self, owner: impl AsRef<[u8]>) -> Self {
        Self { owner: Some(owner.as_ref().to_vec()), ..self }
    }

    /// Acquires the lock only if `count` replicas confirm the grant before the time `within` is over. If fewer replicas
    /// confirm the grant, the client releases the lock, and the error is [`Error::Unreplicated`]. A replica that has
    /// confirmed a grant still has the grant when it becomes the primary. The time should be shorter than the lease. If the
    /// wait limit comes earlier, it ends the time, too.
    pub fn replicas(self, count: usize, within: Duration) -> Self {
        Self { replicas: Some((count, within.min(FAR_FUTURE))), ..self }
    }

    /// # Errors
    /// [`Error::Invalid`] when an option is out of range. The server checks the other options.
    pub(crate) fn check(&self) -> Result<(), Error> {
        // The client subtracts a millisecond from each lease. A shorter lease would be lost and acquired again and again.
        let is_short = |time: Option<Duration>| time.is_some_and(|time| millis(time) < 2);
        let why = match self.owner.as_deref() {
            Some(b"*") => "an owner must not be *, which asks the server to make one up",
            _ if is_short(self.lease) => "a lease must be at least 2 milliseconds",
            _ if is_short(self.hold_limit) => "a hold limit must be at least 2 milliseconds",
            _ if self.keys.is_empty() => "no key is named",
            _ => return Ok(()),
        };
        Err(Error::invalid(why))
    }

    /// How long a call repeats its request while no server answers. The replicas need time, too.
    pub(crate) fn patience(&self) -> Duration {
        let within = self.replicas.map_or(Duration::ZERO, |(_, within)| within);
        self.client.settings.patience.saturating_add(within)
    }

    /// The lease or the hold limit, whichever is shorter, in milliseconds.
    pub(crate) fn limit_lease(&self, lease: u64) -> u64 {
        self.hold_limit.map_or(lease, |limit| lease.min(millis(limit)))
    }

    /// Whether an attempt only tries the keys, without a wait. If there are several keys, the first attempt tries all
    /// keys at the same time.
    pub(crate) fn only_tries(&self, is_first: bool) -> bool {
        is_first && self.keys.len() > 1 || self.wait.is_zero()
    }
}
