//! A lock that a majority of the servers has granted.

use crate::error::{Error, Loss};
use crate::guard::Guard as ServerGuard;
use crate::redlock::client::successes;
use crate::redlock::majority::Majority;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A lock that a majority of the servers has granted.
///
/// The client renews the leases while a guard exists. **The lock can still be lost**: this process may pause for longer
/// than the lease, too few servers may answer, or somebody may delete the lock on too many servers. Then
/// [`lost`](Self::lost) resolves, and [`is_held`](Self::is_held) returns false. But a write that is in progress
/// continues, and a Redlock has no token with which the store of the data could refuse this write.
///
/// If you drop a guard, the client releases the lock in the background.
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard {
    pub(super) majority: Arc<Majority>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.majority.end(Loss::Released);
    }
}

impl Guard {
    /// The name of the lock.
    pub fn key(&self) -> &[u8] {
        &self.majority.key
    }

    /// How many servers grant the lock now, as far as this process knows. Zero when the lock is lost.
    pub fn votes(&self) -> usize {
        self.majority.leases().map_or(0, |leases| leases.len())
    }

    /// Whether a majority grants the lock now, as far as this process knows. A lock that is lost stays lost.
    pub fn is_held(&self) -> bool {
        self.majority.check().is_ok()
    }

    /// How long the lock is still held if the client does not renew any lease. Zero when the lock is lost.
    pub fn lease_left(&self) -> Duration {
        let majority = &self.majority;
        let leases = majority.leases().unwrap_or_default();
        leases.get(majority.needed - 1).copied().unwrap_or_default()
    }

    /// Resolves when the lock is lost, with the reason, or with [`Loss::Released`] when the guard is released or
    /// dropped. The future borrows nothing from the guard, so the program may move the future to
    /// another task. Await the future in a tokio runtime.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let majority = Arc::clone(&self.majority);
        async move { majority.ended().await }
    }

    /// Renews the leases at all servers now, and returns when a majority has renewed. Programs rarely need this method,
    /// because the client renews the leases by itself, except after
    /// [`Lock::without_renewal`](super::Lock::without_renewal).
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::NoMajority`] if too few servers renew. After [`Error::NoMajority`]
    /// the lock may still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        let majority = &self.majority;
        majority.check()?;
        let renewals = majority.votes().into_iter().map(|vote| async move { vote.renew().await });
        let renewed = successes(majority.needed, renewals).await;
        majority.check()?;
        let failure = renewed.err().and_then(|mut failures| failures.pop());
        failure.map_or(Ok(()), |error| Err(Error::NoMajority(Box::new(error))))
    }

    /// Releases the lock at all servers, and returns when a majority has confirmed the release. If the future is
    /// dropped, the client releases the lock in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before. Then the lock did not protect the work until the work was done.
    /// [`Error::NoMajority`] if too few servers answer. The client then repeats the releases in the background until
    /// the leases are over.
    pub async fn release(self) -> Result<(), Error> {
        let majority = &self.majority;
        majority.check()?;
        let votes: Vec<_> = majority.end(Loss::Released).into_iter().filter_map(Arc::into_inner).collect();
        let count = votes.len();
        let releases = votes.into_iter().map(ServerGuard::release);
        let Err(failures) = successes(majority.needed, releases).await else { return Ok(()) };
        let (mut lost, mut unknown): (Vec<_>, Vec<_>) =
            failures.into_iter().partition(|error| matches!(error, Error::Lost { .. }));
        match unknown.pop() {
            // A server that did not answer may have kept its tenure, so this guard may have had a majority until now.
            Some(error) if count - lost.len() >= majority.needed => Err(Error::NoMajority(Box::new(error))),
            _ => Err(lost.pop().unwrap_or_else(|| majority.lost_by(Loss::LeaseOver))),
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Guard({}, {} votes)", self.key().escape_ascii(), self.votes())
    }
}
