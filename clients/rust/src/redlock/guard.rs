//! A lock that a majority holds.

use crate::error::{Error, Loss};
use crate::guard::Guard as ServerGuard;
use crate::redlock::majority::Majority;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One hold of a lock that a majority of the servers has granted.
///
/// The client renews the leases while a guard exists. **The lock can still be lost**: this process may pause for longer
/// than the lease, too few servers may answer, or somebody may delete the lock on too many servers. Then
/// [`lost`](Self::lost) resolves, and [`is_held`](Self::is_held) returns false. But a write that is in progress
/// continues, and a Redlock has no token with which the store could refuse this write.
///
/// If you drop a guard, the client releases the guard's hold in the background.
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard {
    majority: Arc<Majority>,
    key: Vec<u8>,
    is_released: bool,
}

impl Guard {
    pub(super) const fn new(majority: Arc<Majority>, key: Vec<u8>) -> Self {
        Self { majority, key, is_released: false }
    }

    fn lost_by(&self, loss: Loss) -> Error {
        Error::Lost { key: String::from_utf8_lossy(&self.key).into_owned(), loss }
    }

    /// The name of the lock.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// How many guards share this tenure. Only this process counts the guards. On each server the tenure has one hold.
    pub fn holds(&self) -> u32 {
        self.majority.holds.load(Ordering::Acquire)
    }

    /// How many servers grant the lock now, as far as this process knows. Zero when the lock is lost.
    pub fn votes(&self) -> usize {
        self.majority.status().map_or(0, |status| status.votes)
    }

    /// Whether a majority grants the lock now, as far as this process knows. A lock that is lost stays lost.
    pub fn is_held(&self) -> bool {
        self.majority.status().is_ok()
    }

    /// How long the lock is still held if the client does not renew any lease. Zero when the lock is lost.
    pub fn lease_left(&self) -> Duration {
        self.majority.status().map_or(Duration::ZERO, |status| status.lease_left)
    }

    /// Resolves when the lock is lost, with the reason. When the last guard is released or dropped, the future resolves
    /// with [`Loss::Released`]. The future borrows nothing from the guard, so the program may move the future to
    /// another task. Await the future in a tokio runtime.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let majority = Arc::clone(&self.majority);
        async move { majority.ended().await }
    }

    /// Enters the lock again: returns one more guard of this tenure. The client releases the lock when the program
    /// releases or drops the last guard. This method sends no request.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost.
    pub fn re_enter(&self) -> Result<Self, Error> {
        self.majority.status().map_err(|loss| self.lost_by(loss))?;
        self.majority.holds.fetch_add(1, Ordering::AcqRel);
        Ok(Self::new(Arc::clone(&self.majority), self.key.clone()))
    }

    /// Renews the leases at all servers now, and returns when a majority has renewed. Programs rarely need this method,
    /// because the client renews the leases by itself, except after
    /// [`Lock::without_renewal`](super::Lock::without_renewal).
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::NoMajority`] if too few servers renew. After [`Error::NoMajority`]
    /// the lock may still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        self.majority.status().map_err(|loss| self.lost_by(loss))?;
        let votes = self.majority.votes().into_iter();
        let mut replies: FuturesUnordered<_> =
            votes.map(|guard| async move { guard.renew().await }).collect();
        let mut renewed = 0;
        let mut last_error = None;
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(()) => renewed += 1,
                Err(error) => last_error = Some(error),
            }
            if renewed == self.majority.needed {
                break;
            }
        }
        self.majority.status().map_err(|loss| self.lost_by(loss))?;
        match last_error {
            Some(error) if renewed < self.majority.needed => Err(Error::NoMajority(Box::new(error))),
            _ => Ok(()),
        }
    }

    /// Releases the guard's hold. If this is the last guard, the client releases the lock at all servers, and this
    /// method returns when a majority has confirmed the release. If the future is dropped, the client releases the lock
    /// in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before. Then the lock did not protect the work up to its end.
    /// [`Error::NoMajority`] if too few servers answer. The client then repeats the releases in the background until
    /// the leases are over.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_released = true;
        let status = self.majority.status();
        let key = String::from_utf8_lossy(&self.key).into_owned();
        let lost = |loss| Error::Lost { key: key.clone(), loss };
        if self.majority.holds.fetch_sub(1, Ordering::AcqRel) > 1 {
            return status.map(|_| ()).map_err(lost);
        }
        let votes = self.majority.end(Loss::Released);
        status.map_err(lost)?;
        let needed = self.majority.needed;
        let votes = votes.into_iter().filter_map(Arc::into_inner);
        let mut replies: FuturesUnordered<_> = votes.map(ServerGuard::release).collect();
        let (mut released, mut unknown, mut last_error, mut loss) = (0, 0, None, Loss::LeaseOver);
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(()) => released += 1,
                Err(Error::Lost { loss: reason, .. }) => loss = reason,
                Err(error) => {
                    unknown += 1;
                    last_error = Some(error);
                }
            }
            if released == needed {
                return Ok(());
            }
        }
        match last_error {
            // A server that did not answer may have kept the tenure, so a majority may have been held until now.
            Some(error) if released + unknown >= needed => Err(Error::NoMajority(Box::new(error))),
            _ => Err(lost(loss)),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released && self.majority.holds.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(self.majority.end(Loss::Released));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Guard")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("votes", &self.votes())
            .finish_non_exhaustive()
    }
}
