//! A lock that is held.

use crate::commands::{Limit, read};
use crate::error::{Error, Loss};
use crate::handle;
use crate::tenure::Tenure;
use crate::time::FAR_FUTURE;
use futures_util::future::{FutureExt, join_all, select_all};
use redis::{Cmd, FromRedisValue};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A lock that is held, or several that were acquired as one.
///
/// The client renews the lease while there is a guard. **The lock may be lost all the same**: this process may pause for
/// longer than the lease, no server may answer, or somebody may delete the lock. [`lost`](Self::lost) resolves when that
/// happens, and [`is_held`](Self::is_held) returns false from then on. Neither stops a write that is in progress. So send the
/// [token](Self::token) with each write, and let the resource refuse a smaller token than it has seen.
///
/// Dropping a guard sends the release at once, and repeats it in the background if there is no reply. The caller does not
/// learn whether that succeeds, or whether the lock was held until then. Call [`release`](Self::release) to know. A runtime
/// that ends right afterwards may not send it any more: use [`Lock::run`](crate::Lock::run), or call
/// [`Client::close`](crate::Client::close) before `main` returns.
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard {
    /// The tenures of the keys, sorted by key: at least one.
    tenures: Vec<Arc<Tenure>>,
}

impl Guard {
    /// The guard of one key.
    pub(crate) fn of(tenure: Arc<Tenure>, is_renewed: bool) -> Self {
        if is_renewed {
            tenure.keep_renewed();
        }
        Self { tenures: vec![tenure] }
    }

    /// One guard of several keys, which are held for `hold_limit` from the last grant on.
    ///
    /// # Errors
    /// [`Error::Lost`] if one of them is lost; [`Error::Invalid`] if there is none.
    pub(crate) fn join(mut parts: Vec<Self>, hold_limit: Option<Duration>) -> Result<Self, Error> {
        let tenures: Vec<_> = parts.iter_mut().flat_map(|part| std::mem::take(&mut part.tenures)).collect();
        let last = tenures.iter().map(|tenure| tenure.since).max();
        let last = last.ok_or_else(|| Error::invalid("no key is named"))?;
        let guard = Self { tenures };
        if let Some(limit) = hold_limit {
            guard.tenures().for_each(|tenure| tenure.limit(last + limit.min(FAR_FUTURE)));
        }
        guard.tenures().try_for_each(Tenure::check)?;
        if guard.tenures.len() > 1 {
            // When one of several locks is lost, the others are no longer renewed.
            let (lost, tenures) = (guard.lost(), guard.tenures.clone());
            guard.first().client.runtime.spawn(async move {
                lost.await;
                tenures.iter().for_each(|tenure| tenure.stop_renewing());
            });
        }
        Ok(guard)
    }

    #[allow(clippy::indexing_slicing, reason = "there is at least one")]
    fn first(&self) -> &Tenure {
        &self.tenures[0]
    }

    fn tenures(&self) -> impl Iterator<Item = &Tenure> {
        self.tenures.iter().map(|tenure| &**tenure)
    }

    /// The name of the lock. Of several, the first in the order of bytes.
    pub fn key(&self) -> &[u8] {
        &self.first().name.key
    }

    /// The name of the owner.
    pub fn owner(&self) -> &[u8] {
        &self.first().name.owner
    }

    /// The fencing token. It is below 2^53, and larger than that of every earlier tenure of this lock.
    pub fn token(&self) -> u64 {
        self.first().terms().token
    }

    /// The keys and their fencing tokens, sorted by key.
    pub fn tokens(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.tenures().map(|tenure| (&*tenure.name.key, tenure.terms().token))
    }

    /// Whether the lock is held now, as far as this process knows. The client counts the lease on its own monotonic clock,
    /// from before it sent the request. So it ends here before it ends at the server. (On Linux this clock stops while the
    /// machine is suspended.)
    pub fn is_held(&self) -> bool {
        self.tenures().all(|tenure| tenure.loss().is_none())
    }

    /// How long the lock is still held if its lease is not renewed. Zero when the lock is lost.
    pub fn lease_left(&self) -> Duration {
        self.tenures().map(Tenure::lease_left).min().unwrap_or_default()
    }

    /// Resolves when the lock is lost, with the reason, or with [`Loss::Released`] when the guard is released or dropped.
    /// Several locks are lost as soon as one is. It resolves when the lease is over by this process's clock, whatever the
    /// server does. It resolves at once when a renewal finds out that the server denies the lock. After a client has deleted
    /// the lock, that takes up to a third of the lease. It borrows nothing from the guard and may be moved to another task.
    /// Await it in a tokio runtime.
    ///
    /// ```no_run
    /// # async fn write_on(token: u64) {}
    /// # async fn example(guard: lockward_client::Guard) -> Result<(), lockward_client::Error> {
    /// tokio::select! {
    ///     () = write_on(guard.token()) => guard.release().await,
    ///     loss = guard.lost() => panic!("stop: {loss}"),
    /// }
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let losses: Vec<_> = self.tenures().map(|tenure| tenure.lost().boxed()).collect();
        select_all(losses).map(|(loss, ..)| loss)
    }

    /// Renews the lease now. It is rarely needed, because the client renews by itself unless
    /// [`Lock::without_renewal`](crate::Lock::without_renewal) was called. But its success proves, just before the work is
    /// published, that the lock has been held until now.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unreachable`] if no server answers within the client's patience and
    /// the lease. After that error the lock may still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        let patience = self.first().client.settings.patience;
        join_all(self.tenures().map(|tenure| tenure.renew(patience))).await.into_iter().collect()
    }

    /// Raises the limit, so that others can hold the lock too: those who ask for it with this larger limit. A writer that
    /// calls it with [`Limit::Shared`] becomes a reader. The token stays the same. A smaller limit is refused.
    ///
    /// # Errors
    /// As [`renew`](Self::renew). After [`Error::Unreachable`] the next renewal downgrades the lock.
    pub async fn downgrade(&self, limit: Limit) -> Result<(), Error> {
        join_all(self.tenures().map(|tenure| tenure.downgrade(limit))).await.into_iter().collect()
    }

    /// Runs a command only while the server has this tenure: `LOCK.GUARD` with the key and the token of this guard. The check
    /// and the command are one step at the server, so a late write of a holder that was paused does not run. An empty
    /// command, `&redis::Cmd::new()`, is the check alone. Of several locks, the first one is checked.
    ///
    /// The data must be on the lock's server; in a cluster its keys need the slot of the lock, by a common tag such as
    /// `{order:42}`.
    ///
    /// ```no_run
    /// # async fn example(guard: lockward_client::Guard) -> Result<(), lockward_client::Error> {
    /// let sold: u64 = guard.guarded(redis::cmd("INCR").arg("{order:42}:sold")).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// **The client does not repeat the command when its reply is lost**, because the command may have run. It repeats the
    /// command only if it did not run: no server was connected, the slot has moved, or the server is a replica. If the future
    /// is dropped, the command may still run.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost: the command did not run. After the other errors the lock is as it was.
    /// [`Error::Refused`] is an error of the command. [`Error::Unreachable`] means that no server has replied within the
    /// response limit or the client's patience: the command may have run. [`Error::Reply`] means that it has run, and its
    /// reply is not a `T`.
    pub async fn guarded<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        read(self.first().guarded(command).await?)
    }

    /// Leaves the lock to another process, which goes on with it by [`Client::resume`](crate::Client::resume). The string has
    /// the keys, the owner, the tokens, the lease and the kind. From now on this process neither renews nor releases the
    /// lock. It ends with its lease unless the other process resumes it before.
    pub fn handle(self) -> String {
        self.tenures().for_each(Tenure::hand_over);
        handle::write(&self.tenures)
    }

    /// Releases the lock: when this returns, the first waiter has it. If the future is dropped, the lock is released in the
    /// background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before, so the work was not protected to its end. [`Error::Unreachable`] if no
    /// server answers within the client's patience. The client then goes on trying in the background until the lease is over.
    pub async fn release(self) -> Result<(), Error> {
        self.release_all().await
    }

    pub(crate) async fn release_all(&self) -> Result<(), Error> {
        join_all(self.tenures().map(Tenure::release)).await.into_iter().collect()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tenures().for_each(Tenure::abandon);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Guard")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("token", &self.token())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}
