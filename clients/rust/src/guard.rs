//! A lock that is held.

use crate::client::Shared;
use crate::error::{Error, Loss};
use crate::keeper::Errand;
use crate::tenure::Tenure;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One hold of a lock.
///
/// While there is a guard, its lease is renewed. **The lock may be lost all the same**: this process stands still
/// past its lease, no server is reached, somebody breaks the lock by hand. [`lost`](Self::lost) tells of it as it
/// happens, [`is_held`](Self::is_held) when asked. Neither stops a write that is under way: hand the
/// [token](Self::token) to what the lock protects, and let that refuse a smaller token than it has seen.
///
/// A guard that is dropped gives its hold back in the background, as well as that goes. To know that it was given
/// back, and that the lock was held up to then, call [`release`](Self::release).
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    shared: Arc<Shared>,
    tenure: Arc<Tenure>,
    is_left: bool,
}

impl Guard {
    pub(crate) const fn new(shared: Arc<Shared>, tenure: Arc<Tenure>) -> Self {
        Self { shared, tenure, is_left: false }
    }

    /// One guard more of a tenure.
    pub(crate) async fn enter(shared: &Arc<Shared>, tenure: &Arc<Tenure>) -> Result<Self, Error> {
        let entering = Settling::new(shared, tenure);
        tenure.enter(&shared.servers).await?;
        entering.done();
        if tenure.lease.is_renewed {
            shared.leave(Errand::Keep(Arc::clone(tenure)));
        }
        Ok(Self::new(Arc::clone(shared), Arc::clone(tenure)))
    }

    /// The name of the lock.
    pub fn key(&self) -> &[u8] {
        &self.tenure.claim.key
    }

    /// In whose name it is held.
    pub fn owner(&self) -> &[u8] {
        &self.tenure.claim.owner
    }

    /// The fencing token: below 2^53, larger than that of every earlier tenure of this lock, and the same for all
    /// guards of one tenure.
    pub fn token(&self) -> u64 {
        self.tenure.token
    }

    /// How many guards of this tenure there are.
    pub fn holds(&self) -> u32 {
        self.tenure.guards()
    }

    /// Whether the lock is held now, by what this process knows. It counts the lease on its own monotonic clock, from
    /// before it asked for it, so that it is over here before it is over at the server. (Linux does not count the
    /// time that the whole machine sleeps.)
    pub fn is_held(&self) -> bool {
        self.tenure.is_held()
    }

    /// How long the lock will be held for, should it not be renewed any more. Zero when it is lost.
    pub fn lease_left(&self) -> Duration {
        let standing = self.tenure.standing();
        match standing.loss() {
            Some(_) => Duration::ZERO,
            None => standing.until.saturating_duration_since(Instant::now()),
        }
    }

    /// Resolves when the lock is lost, with how. It also resolves, with [`Loss::Released`], when the last guard of
    /// the tenure is released or dropped, as there is nothing left then to be lost. It needs no guard, and may be
    /// moved to another task; it is to be awaited in a tokio runtime.
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
        let mut news = self.tenure.news();
        async move {
            loop {
                let standing = news.borrow_and_update().clone();
                if let Some(loss) = standing.loss() {
                    return loss;
                }
                tokio::select! {
                    changed = news.changed() => if changed.is_err() {
                        return Loss::Released;
                    },
                    () = tokio::time::sleep_until(standing.until.into()) => {}
                }
            }
        }
    }

    /// Enters the lock again, in the same owner's name: one more guard of this tenure. The lock is given back with
    /// the last of them.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unreachable`] and [`Error::Server`] as for
    /// [`Lock::acquire`](crate::Lock::acquire), and this guard is as it was.
    pub async fn re_enter(&self) -> Result<Self, Error> {
        Self::enter(&self.shared, &self.tenure).await
    }

    /// Renews the lease now. Who renews just before the work is made public knows that the lock was held up to then.
    /// (A guard is renewed by itself, unless that was declined.)
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unreachable`] if no server answers while the client's patience
    /// and the lease last, and then the lock may still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        self.tenure.renew(&self.shared.servers, Some(self.shared.servers.settings.patience)).await
    }

    /// Gives the hold back. With the last guard of the tenure the first waiter has the lock by the time this returns.
    /// If the future is dropped, the hold is given back in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before: the work was not protected up to its end. [`Error::Unreachable`]
    /// if no server answers; the client tries on in the background, and the lease ends it at the latest.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_left = true;
        self.tenure.leave();
        let leaving = Settling::new(&self.shared, &self.tenure);
        let servers = &self.shared.servers;
        let settled = self.tenure.settle(servers, Some(Instant::now() + servers.settings.patience)).await;
        if matches!(settled, Ok(()) | Err(Error::Lost(_))) {
            leaving.done();
        }
        if self.tenure.guards() == 0 {
            self.shared.leave(Errand::Forget(self.tenure.id));
        }
        settled
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_left {
            self.tenure.leave();
            self.shared.leave(Errand::Settle(Arc::clone(&self.tenure)));
            if self.tenure.guards() == 0 {
                self.shared.leave(Errand::Forget(self.tenure.id));
            }
        }
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

/// While this is there, the counts of holds here and at the server may differ. If its caller goes, they are settled.
struct Settling<'a> {
    shared: &'a Shared,
    tenure: &'a Arc<Tenure>,
    is_done: bool,
}

impl<'a> Settling<'a> {
    const fn new(shared: &'a Shared, tenure: &'a Arc<Tenure>) -> Self {
        Self { shared, tenure, is_done: false }
    }

    fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.shared.leave(Errand::Settle(Arc::clone(self.tenure)));
        }
    }
}
