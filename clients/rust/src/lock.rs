//! The options of an acquisition.

use crate::acquire::{Acquire, Options};
use crate::commands::{Kind, Limit, OwnedKey};
use crate::error::Error;
use crate::guard::Guard;
use crate::servers::Inner;
use crate::time::{FAR_FUTURE, from_now, until};
use futures_util::future::{FutureExt, pending, try_join_all};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How long to wait before the client starts over. Without a pause it would never rest if the lease is shorter than a round trip.
const PAUSE_AFTER_LOSS: Duration = Duration::from_millis(50);

/// A lock, and the options to acquire it with; or several locks that are acquired as one.
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
    /// They are distinct and sorted.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) options: Options,
}

impl Lock {
    /// Holds the lock together with other owners that also call this: a read lock.
    pub fn shared(mut self) -> Self {
        self.options.kind.limit = Limit::Shared;
        self
    }

    /// Holds the lock together with others while the sum of their weights is at most `slots`, 1 to 1,000,000: a semaphore.
    pub fn slots(mut self, slots: u32) -> Self {
        self.options.kind.limit = Limit::Slots(slots);
        self
    }

    /// How many of the [`slots`](Self::slots) to take. Without this call it is one.
    pub fn weight(mut self, weight: u32) -> Self {
        self.options.kind.weight = Some(weight);
        self
    }

    /// How long the lock stays held after this process has died or lost its connection: at least 1 millisecond. Until then
    /// the client renews the lease each time a third of it has passed. The server has limits, `lock.max-lease` and
    /// `lock.quarantine`. If the lease is longer, the client takes the longest that the server accepts.
    ///
    /// Without this call the lease is the server's default: `lock.default-lease`, which is 30 seconds unless it is set,
    /// or the server's limit if that is shorter.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Does not renew the lease. The lock is lost when the lease is over.
    pub fn without_renewal(mut self) -> Self {
        self.options.without_renewal = true;
        self
    }

    /// Ends renewals so that the lock is lost when this time has passed since the acquisition: at least 1 millisecond. So a
    /// holder that hangs does not keep the lock for ever.
    pub fn hold_limit(mut self, limit: Duration) -> Self {
        self.options.hold_limit = Some(limit);
        self
    }

    /// How long [`acquire`](Self::acquire) waits for the lock. Zero does not wait. Without this call it waits without limit.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.options.wait = Some(limit);
        self
    }

    /// The name of the owner: 1 to 1,024 bytes, but not `*`. All callers that use this name, in any process, are one owner. When
    /// one of them releases the lock, it is released for all. Use it to take a lock again after a crash. If a release by
    /// this owner is still in progress in the background, [`acquire`](Self::acquire) first waits until it has ended. Without this call
    /// each acquisition has its own owner.
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
        self.options.owner = Some(owner.as_ref().to_vec());
        self
    }

    /// Acquires the lock only if `count` replicas confirm the grant within this time. Otherwise the client gives it back, and
    /// the error is [`Error::Unreplicated`]. If a replica that has confirmed a grant is promoted, it still has the grant. The
    /// time must be shorter than the lease. It is added to the wait limit.
    pub fn replicas(mut self, count: usize, within: Duration) -> Self {
        self.options.replicas = Some((count, within));
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
    /// If one of several locks is lost before the last one is acquired, the client gives all back and starts over.
    ///
    /// **If the future is dropped**, the client leaves the queue and gives back what the server may have granted, in the
    /// background.
    ///
    /// # Errors
    /// - [`Error::Busy`] when the wait limit is reached.
    /// - [`Error::Unreachable`] when no server answers for the client's patience, or until the wait limit if that is earlier. A
    ///   caller that is already waiting goes on until its wait limit.
    /// - [`Error::Lost`] when the lock is lost at the moment it is acquired.
    /// - [`Error::Unreplicated`] when too few [`replicas`](Self::replicas) confirm the grant.
    /// - [`Error::Invalid`] when an option is out of range.
    /// - [`Error::Refused`] with the server's own error, such as `MAXWAITERS` or `OOM`.
    pub async fn acquire(self) -> Result<Guard, Error> {
        self.options.check()?;
        if self.keys.is_empty() {
            return Err(Error::invalid("no key is named"));
        }
        let limit = from_now(self.options.wait.filter(|wait| !wait.is_zero()).unwrap_or(FAR_FUTURE));
        let (waits_not, mut is_first) = (self.options.waits_not(), true);
        loop {
            // If there are several keys, all are first tried together.
            let together = is_first && self.keys.len() > 1;
            match self.attempt(together, limit).await {
                Err(Error::Busy { .. }) if together && !waits_not => {}
                Err(Error::Lost { .. }) if !waits_not => sleep(PAUSE_AFTER_LOSS).await,
                // A server has answered the first attempt.
                Err(Error::Unreachable { key, .. }) if !is_first && until(limit).is_zero() => {
                    return Err(Error::Busy { key });
                }
                acquired => return acquired,
            }
            is_first = false;
        }
    }

    /// Acquires all keys as a new owner: the release of an earlier attempt must not end what is acquired from here on. The
    /// keys are tried together, or acquired one after the other. The attempt ends when one that is granted is lost. What it
    /// has acquired by then is given back: a caller that waits for one key must not hold another one, because the next
    /// waiter for the first key may need it.
    async fn attempt(&self, together: bool, limit: Instant) -> Result<Guard, Error> {
        let Self { client, keys, options } = self;
        let owner = options.owner.clone().unwrap_or_else(|| client.unique_owner());
        let mut guard = Guard::new(client, options.kind);
        let tenure = &guard.tenure;
        // If there is one key, nothing is held before it is granted.
        let lost = if keys.len() > 1 { guard.lost().boxed() } else { pending().boxed() };
        let only_tries = together || options.waits_not();
        let acquisitions = keys.iter().map(async |key| {
            let name = OwnedKey { key: key.clone(), owner: owner.clone() };
            let part = Acquire::run(client, name, options, limit, only_tries).await?;
            tenure.join(&part, !options.without_renewal);
            Ok(())
        });
        let all = async {
            if together {
                return try_join_all(acquisitions).await.map(drop);
            }
            for acquisition in acquisitions {
                acquisition.await?;
            }
            Ok(())
        };
        tokio::select! {
            biased;
            _ = lost => {}
            acquired = all => acquired?,
        }
        guard.complete(options.hold_limit)?;
        Ok(guard)
    }

    /// Acquires the lock, runs `work` and releases the lock, even if `work` returns an error or panics. When the lock is lost,
    /// `work` is dropped at the `.await` where it is.
    ///
    /// ```no_run
    /// # async fn example(client: lockward_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let paid = client.lock("order:42").run(async |lock| {
    ///     let order = std::fs::read_to_string("order")?;
    ///     // send lock.token() with each write
    ///     Ok::<_, Box<dyn std::error::Error>>(order.len())
    /// });
    /// println!("{}", paid.await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The error of `work`; [`Error::Lost`] if the lock was lost before `work` had ended; otherwise as
    /// [`acquire`](Self::acquire) and [`Guard::release`].
    pub async fn run<T, E, F>(self, work: impl FnOnce(Arc<Guard>) -> F) -> Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let guard = Arc::new(self.acquire().await?);
        let lost = guard.lost();
        let ended = tokio::select! {
            biased;
            ended = AssertUnwindSafe(async { work(Arc::clone(&guard)).await }).catch_unwind() => Some(ended),
            _ = lost => None,
        };
        let released = guard.release_all().await;
        match ended {
            Some(Ok(Ok(value))) => Ok(released.map(|()| value)?),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(panic)) => resume_unwind(panic),
            None => Err(released.err().unwrap_or_else(|| Error::invalid("the lock was released")).into()),
        }
    }

    /// Runs `work` while this process is the leader, which means that it holds the exclusive lock. It waits for the lock without
    /// limit. The token of the guard is the term. When the lock is lost, `work` is dropped at the `.await` where it is, and this
    /// process is a candidate again. When `work` returns, the lock is released.
    ///
    /// ```no_run
    /// # async fn step() {}
    /// # async fn example(client: lockward_client::Client) -> Result<(), lockward_client::Error> {
    /// client.lead("scheduler", async |leader| loop {
    ///     println!("still the leader, in term {}", leader.token());
    ///     step().await;
    /// }).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but without [`Error::Busy`] and [`Error::Unreachable`]: the candidate goes on.
    pub async fn lead<F: Future>(
        mut self,
        mut work: impl FnMut(Arc<Guard>) -> F,
    ) -> Result<F::Output, Error> {
        (self.options.kind, self.options.wait) = (Kind::default(), None);
        loop {
            let guard = match self.clone().acquire().await {
                Ok(guard) => Arc::new(guard),
                Err(Error::Unreachable { .. } | Error::Lost { .. }) => continue,
                Err(error) => return Err(error),
            };
            let lost = guard.lost();
            tokio::select! {
                biased;
                value = work(Arc::clone(&guard)) => {
                    // The work is done, so a loss of the lock at its end does not matter.
                    let _ = guard.release_all().await;
                    return Ok(value);
                }
                _ = lost => {}
            }
        }
    }
}
