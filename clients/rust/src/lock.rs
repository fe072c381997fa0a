//! The options of an acquisition.

use crate::acquire::{Acquire, GIVE_UP_LIMIT, OVERTIME, Options};
use crate::commands::{Kind, Limit, OwnedKey};
use crate::error::Error;
use crate::guard::Guard;
use crate::servers::Inner;
use crate::time::{FAR_FUTURE, from_now, until};
use futures_util::future::{FutureExt, join_all};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How long the client pauses after a loss before it acquires all keys again. If the lease is shorter than a round
/// trip, a client without this pause would send requests without a break.
const PAUSE_AFTER_LOSS: Duration = Duration::from_millis(50);

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
    pub(crate) options: Options,
}

impl Lock {
    /// Acquires a read lock: all owners that ask for a shared lock may hold the lock together.
    pub fn shared(mut self) -> Self {
        self.options.kind.limit = Limit::Shared;
        self
    }

    /// Makes the lock a semaphore: the weights of all holders together are at most `slots`. This number is 1 to
    /// 1,000,000, and should be the same for all callers.
    pub fn slots(mut self, slots: u32) -> Self {
        self.options.kind.limit = Limit::Slots(slots);
        self
    }

    /// How many of the [`slots`](Self::slots) to acquire. Without this call the weight is 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.options.kind.weight = Some(weight);
        self
    }

    /// How long the lock stays held after this process has died or lost its connection: at least 2 milliseconds. While
    /// the process runs, the client renews the lease each time a third of it has passed. The server limits leases to
    /// `lock.max-lease` and `lock.quarantine`. If the lease is longer, the client uses the longest lease that the
    /// server accepts.
    ///
    /// Without this call, the lease is the server's setting `lock.default-lease`, which is 30 seconds by default. If
    /// the server's limit is shorter, the lease is this limit.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Switches the renewals off. The lock is lost when the lease is over.
    pub fn without_renewal(mut self) -> Self {
        self.options.without_renewal = true;
        self
    }

    /// Limits how long the lock is held: at least 2 milliseconds. The lock is lost when this time has passed since the
    /// acquisition. So even a holder that hangs loses the lock.
    pub fn hold_limit(mut self, limit: Duration) -> Self {
        self.options.hold_limit = Some(limit);
        self
    }

    /// How long [`acquire`](Self::acquire) waits for the lock. With zero, the call does not wait. By default, the call
    /// waits without limit.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.options.wait = Some(limit);
        self
    }

    /// The name of the owner: 1 to 1,024 bytes, but not `*`. All callers that use this name, in any process, are one
    /// owner. When one of these callers releases the lock, the lock is released for all of them. Name the owner if a
    /// program must acquire its lock again after a crash. If a release by this owner is still in progress in the
    /// background, [`acquire`](Self::acquire) first waits until this release has ended. By default, each acquisition
    /// has its own owner.
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
        self.options.owner = Some(owner.as_ref().to_vec());
        self
    }

    /// Acquires the lock only if `count` replicas confirm the grant within this time. If fewer replicas confirm the
    /// grant, the client releases the lock, and the error is [`Error::Unreplicated`]. A replica that has confirmed a
    /// grant still has the grant when it becomes the primary. The time must be shorter than the lease. The client adds
    /// the time to the wait limit.
    pub fn replicas(mut self, count: usize, within: Duration) -> Self {
        self.options.replicas = Some((count, within));
        self
    }

    /// Acquires the lock if it is free, without waiting.
    ///
    /// # Errors
    /// [`Error::Busy`] if the lock is not free; and the other errors of [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Guard, Error> {
        self.wait(Duration::ZERO).acquire().await
    }

    /// Acquires the lock. If another owner holds the lock, the call waits in the server's queue: first come, first
    /// served.
    ///
    /// The client repeats the request when a reply is lost. No grant counts twice, and the waiter keeps its position in
    /// the queue. After a failover, the client sends the request to the new primary, and waits at the end of the queue
    /// there. If one of several locks is lost before the last lock is acquired, the client releases all locks and
    /// starts again.
    ///
    /// **If the future is dropped**, the client leaves the queue in the background, and releases the lock if the server
    /// may have granted it.
    ///
    /// # Errors
    /// - [`Error::Busy`] when the wait limit is reached.
    /// - [`Error::Unreachable`] when no server answers within the client's patience, or before the wait limit if the wait
    ///   limit comes first. A caller that is already in the queue waits until its wait limit.
    /// - [`Error::Lost`] when a call that does not wait gets the lock, but loses it before the call returns.
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
            // If there are several keys, the first attempt tries all keys at the same time.
            let together = is_first && self.keys.len() > 1;
            // If the program has named no owner, each attempt has a new owner. So a late release of an earlier attempt
            // cannot end a hold of this attempt.
            let owner = self.options.owner.clone().unwrap_or_else(|| self.client.unique_owner());
            let is_own = |name: &OwnedKey| name.owner == owner && self.keys.contains(&name.key);
            let attempted = self.attempt(&owner, together, limit).await;
            // After a failed attempt, wait for the replies to its releases, but not for long. If no server answers,
            // this wait is useless.
            if matches!(&attempted, Err(error) if !matches!(error, Error::Unreachable { .. })) {
                let end = from_now(GIVE_UP_LIMIT).min(limit + OVERTIME * 3 / 2);
                self.client.releases_end(end, is_own).await;
            }
            match attempted {
                Err(Error::Busy { .. }) if together && !waits_not => {}
                Err(Error::Lost { .. }) if !waits_not => sleep(PAUSE_AFTER_LOSS).await,
                // A server has answered the first attempt, so the lock was busy.
                Err(Error::Unreachable { key, .. }) if !is_first && until(limit).is_zero() => {
                    return Err(Error::Busy { key });
                }
                acquired => return acquired,
            }
            is_first = false;
        }
    }

    /// Acquires all keys. If `together` is true, the client tries all keys at the same time. If it is false, the client
    /// acquires one key after the other. The attempt ends when a granted key is lost, and the client then releases all
    /// other granted keys. These keys must not stay held while the call waits again for the lost key: this could cause
    /// a deadlock with another caller.
    async fn attempt(&self, owner: &[u8], together: bool, limit: Instant) -> Result<Guard, Error> {
        let Self { client, keys, options } = self;
        let mut guard = Guard::new(client, options.kind);
        let tenure = &guard.tenure;
        let only_tries = together || options.waits_not();
        let acquisitions = keys.iter().map(async |key| {
            let name = OwnedKey { key: key.clone(), owner: owner.to_vec() };
            let part = Acquire::run(client, name, options, limit, only_tries).await?;
            tenure.join(&part);
            Ok(())
        });
        let all = async {
            if together {
                // The attempt fails only after all tries have ended: a late *give up* of a try could end the next
                // tenure of a named owner.
                let errors = join_all(acquisitions).await.into_iter().filter_map(Result::err);
                return errors.min_by_key(|error| matches!(error, Error::Busy { .. })).map_or(Ok(()), Err);
            }
            for acquisition in acquisitions {
                acquisition.await?;
            }
            Ok(())
        };
        tokio::select! {
            biased;
            // If there is only one key, no granted key can be lost during a wait for another key. Then the watch would
            // wake this task without need.
            _ = guard.lost(), if keys.len() > 1 => {}
            acquired = all => acquired?,
        }
        guard.complete(options.hold_limit, !options.without_renewal)?;
        Ok(guard)
    }

    /// Acquires the lock, runs `work` and releases the lock, even if `work` returns an error or panics. When the lock
    /// is lost, `work` is dropped at its current `.await`.
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
    /// The error of `work`; [`Error::Lost`] if the lock was lost before `work` had ended; and the errors of
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

    /// Runs `work` while this process is the leader. The leader is the process that holds the exclusive lock. The call
    /// waits for the lock without limit. The token of the guard is the term. When the lock is lost, the client drops
    /// `work` at its current `.await`, and this process is a candidate again. When `work` returns, the client releases
    /// the lock.
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
    /// The errors of [`acquire`](Self::acquire), except [`Error::Busy`], [`Error::Unreachable`] and [`Error::Lost`].
    /// While no server answers, the candidate keeps trying.
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
                    // `work` has ended, so it does not matter if the lock was lost just before the release.
                    let _ = guard.release_all().await;
                    return Ok(value);
                }
                _ = lost => {}
            }
        }
    }
}
