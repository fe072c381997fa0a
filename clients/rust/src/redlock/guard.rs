//! A lock that a majority holds.

use super::held::Held;
use crate::error::{Error, Loss};
use crate::guard::Guard as Tenure;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One hold of a lock that a majority of the servers has granted.
///
/// While there is a guard, its leases are renewed. **The lock may be lost all the same**: this process stands
/// still past its lease, too few servers are reached, somebody breaks the lock by hand on enough of them.
/// [`lost`](Self::lost) tells of it as it happens, [`is_held`](Self::is_held) when asked. Neither stops a write
/// that is under way, and there is no token by which what the lock protects could refuse it.
///
/// A guard that is dropped gives its hold back in the background.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    held: Arc<Held>,
    key: Vec<u8>,
    is_left: bool,
}

impl Guard {
    pub(super) const fn new(held: Arc<Held>, key: Vec<u8>) -> Self {
        Self { held, key, is_left: false }
    }

    /// The name of the lock.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// How many guards of this tenure there are. They are counted in this process: servers know of one hold.
    pub fn holds(&self) -> u32 {
        self.held.guards.load(Ordering::Acquire)
    }

    /// How many of the servers hold the lock for it now, by what this process knows. Zero when it is lost.
    pub fn votes(&self) -> usize {
        self.held.look().map_or(0, |standing| standing.votes)
    }

    /// Whether a majority holds the lock for it now, by what this process knows. Once lost it stays lost.
    pub fn is_held(&self) -> bool {
        self.held.look().is_ok()
    }

    /// How long a majority will hold the lock, should no lease be renewed any more. Zero when it is lost.
    pub fn lease_left(&self) -> Duration {
        self.held.look().map_or(Duration::ZERO, |standing| standing.left)
    }

    /// Resolves when the lock is lost, with how the last tenures of the majority have ended. It also resolves,
    /// with [`Loss::Released`], when the last guard is released or dropped. It needs no guard, and may be moved to
    /// another task; it is to be awaited in a tokio runtime.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let held = Arc::clone(&self.held);
        async move { held.over().await }
    }

    /// Enters the lock again: one more guard of this tenure. The lock is given back with the last of them. No
    /// server is asked.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost.
    pub fn re_enter(&self) -> Result<Self, Error> {
        self.held.look().map_err(Error::Lost)?;
        self.held.guards.fetch_add(1, Ordering::AcqRel);
        Ok(Self { held: Arc::clone(&self.held), key: self.key.clone(), is_left: false })
    }

    /// Renews the lease at all servers now, and returns when a majority has. (A guard is renewed by itself, unless
    /// that was declined.)
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::NoMajority`] if too few servers answer, and then the lock may
    /// still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        self.held.look().map_err(Error::Lost)?;
        let tenures = self.held.tenures();
        let mut asked: FuturesUnordered<_> =
            tenures.into_iter().map(|tenure| async move { tenure.renew().await }).collect();
        let mut renewed = 0;
        let mut last = None;
        while let Some(told) = asked.next().await {
            match told {
                Ok(()) => renewed += 1,
                Err(error) => last = Some(error),
            }
            if renewed == self.held.needed {
                break;
            }
        }
        self.held.look().map_err(Error::Lost)?;
        match last {
            Some(error) if renewed < self.held.needed => Err(Error::NoMajority(Box::new(error))),
            _ => Ok(()),
        }
    }

    /// Gives the hold back. With the last guard the lock is given back at all servers; this returns when a
    /// majority has confirmed it. If the future is dropped, the rest is done in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before: the work was not protected up to its end.
    /// [`Error::NoMajority`] if too few servers answer; the client tries on in the background, and the leases end
    /// it at the latest.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_left = true;
        let standing = self.held.look();
        if self.held.guards.fetch_sub(1, Ordering::AcqRel) > 1 {
            return standing.map(|_| ()).map_err(Error::Lost);
        }
        let tenures = self.held.end(Loss::Released);
        standing.map_err(Error::Lost)?;
        let needed = self.held.needed;
        let mut asked: FuturesUnordered<_> =
            tenures.into_iter().filter_map(Arc::into_inner).map(Tenure::release).collect();
        let (mut released, mut silent, mut loss) = (0, None, Loss::LeaseOver);
        let mut unknown = 0;
        while let Some(told) = asked.next().await {
            match told {
                Ok(()) => released += 1,
                Err(Error::Lost(how)) => loss = how,
                Err(error) => {
                    unknown += 1;
                    silent = Some(error);
                }
            }
            if released == needed {
                return Ok(());
            }
        }
        match silent {
            // They may have held it up to now.
            Some(error) if released + unknown >= needed => Err(Error::NoMajority(Box::new(error))),
            _ => Err(Error::Lost(loss)),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_left && self.held.guards.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(self.held.end(Loss::Released));
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
