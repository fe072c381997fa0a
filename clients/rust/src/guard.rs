//! A lock that is held.

use crate::background::Task;
use crate::client_state::ClientState;
use crate::commands::read;
use crate::error::{Error, Loss};
use crate::tenure::Tenure;
use redis::{Cmd, FromRedisValue};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One hold of a lock.
///
/// The client renews the lease while there is a guard. **The lock may be lost all the same**: this process may pause for
/// longer than the lease, no server may answer, or somebody may delete the lock. [`lost`](Self::lost) resolves when that
/// happens, and [`is_held`](Self::is_held) tells it when asked. Neither stops a write that is in progress. So send the
/// [token](Self::token) with each write, and let the resource refuse a smaller token than it has seen.
///
/// Dropping a guard releases its hold in the background. Nobody hears whether that succeeds, or whether the lock was held
/// until then; call [`release`](Self::release) to know.
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard {
    client: Arc<ClientState>,
    tenure: Arc<Tenure>,
    is_released: bool,
}

impl Guard {
    /// A guard that its tenure counts already.
    pub(crate) fn new(client: Arc<ClientState>, tenure: Arc<Tenure>) -> Self {
        if tenure.lease.is_renewed {
            client.enqueue(Task::Watch(Arc::clone(&tenure)));
        }
        Self { client, tenure, is_released: false }
    }

    /// Adds a guard to a tenure.
    pub(crate) async fn enter(client: &Arc<ClientState>, tenure: &Arc<Tenure>) -> Result<Self, Error> {
        let surplus = PendingSurplus::new(client, tenure);
        tenure.reenter(&client.servers).await?;
        surplus.cancel();
        Ok(Self::new(Arc::clone(client), Arc::clone(tenure)))
    }

    /// The name of the lock.
    pub fn key(&self) -> &[u8] {
        &self.tenure.key.key
    }

    /// The name of the owner.
    pub fn owner(&self) -> &[u8] {
        &self.tenure.key.owner
    }

    /// The fencing token. It is below 2^53, larger than that of every earlier tenure of this lock, and the same for all
    /// guards of one tenure.
    pub fn token(&self) -> u64 {
        self.tenure.token
    }

    /// How many guards this tenure has.
    pub fn holds(&self) -> u32 {
        self.tenure.guards()
    }

    /// Whether the lock is held now, as far as this process knows. The client counts the lease on its own monotonic clock,
    /// from before it sent the request. So it ends here before it ends at the server. (On Linux this clock stops while the
    /// machine is suspended.)
    pub fn is_held(&self) -> bool {
        self.tenure.is_held()
    }

    /// How long the lock is still held if its lease is not renewed. Zero when the lock is lost.
    pub fn lease_left(&self) -> Duration {
        let state = self.tenure.state();
        match state.loss() {
            Some(_) => Duration::ZERO,
            None => state.deadline.saturating_duration_since(Instant::now()),
        }
    }

    /// Resolves when the lock is lost, with the reason. When the last guard of the tenure is released or dropped, it
    /// resolves with [`Loss::Released`]. It borrows nothing from the guard and may be moved to another task. Await it in a
    /// tokio runtime.
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
        let mut states = self.tenure.watch_state();
        async move {
            loop {
                let state = states.borrow_and_update().clone();
                if let Some(loss) = state.loss() {
                    return loss;
                }
                tokio::select! {
                    changed = states.changed() => if changed.is_err() {
                        return Loss::Released;
                    },
                    () = tokio::time::sleep_until(state.deadline.into()) => {}
                }
            }
        }
    }

    /// Enters the lock again as the same owner: one more guard of this tenure. The lock is released with the last of them.
    ///
    /// If the future is dropped, this guard is as it was.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unreachable`] and [`Error::Server`] as for
    /// [`Lock::acquire`](crate::Lock::acquire), and then this guard is as it was.
    pub async fn re_enter(&self) -> Result<Self, Error> {
        Self::enter(&self.client, &self.tenure).await
    }

    /// Renews the lease now. It is rarely needed, as the client renews by itself unless
    /// [`Lock::without_renewal`](crate::Lock::without_renewal) was called. But its success proves, just before the work is
    /// published, that the lock has been held up to now.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unreachable`] if no server answers within the client's patience and
    /// the lease. After that error the lock may still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        self.tenure.renew(&self.client.servers, Some(self.client.servers.settings.patience)).await
    }

    /// Runs a command only while the server has this tenure: `LOCK.GUARD` with the key and the token of this guard. The check
    /// and the command are one step at the server, so a late write of a holder that was paused does not run. An empty
    /// command, `&redis::Cmd::new()`, is the check alone.
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
    /// **The client does not repeat the command when its reply is lost**, as it may have run. It repeats it only when it did
    /// not run: no server was connected, the slot has moved, or the server is a replica. If the future is dropped, the
    /// command may run all the same.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost: the command did not run. After the other errors the lock is as it was.
    /// [`Error::Server`] is an error of the command. [`Error::Unreachable`] means that no server has replied within the
    /// response limit or the client's patience: the command may have run. [`Error::Reply`] means that it has run, and its
    /// reply is no `T`.
    pub async fn guarded<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        read(self.tenure.guarded(&self.client.servers, command).await?)
    }

    /// Releases the hold. With the last guard of the tenure it releases the lock: when this returns, the first waiter has
    /// it. If the future is dropped, the hold is released in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before, so the work was not protected to its end. [`Error::Unreachable`] if no
    /// server answers within the client's patience: the client tries on in the background until the lease is over.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_released = true;
        self.tenure.remove_guard();
        let surplus = PendingSurplus::new(&self.client, &self.tenure);
        let servers = &self.client.servers;
        let limit = Instant::now() + servers.settings.patience;
        let released = self.tenure.release_surplus(servers, Some(limit)).await;
        if matches!(released, Ok(()) | Err(Error::Lost(_))) {
            surplus.cancel();
        }
        self.unwatch();
        released
    }

    fn unwatch(&self) {
        if self.tenure.guards() == 0 {
            self.client.enqueue(Task::Unwatch(self.tenure.id));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released {
            self.tenure.remove_guard();
            self.client.enqueue(Task::ReleaseSurplus(Arc::clone(&self.tenure)));
            self.unwatch();
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

/// While this exists, the server may count more holds than there are guards. When it is dropped without being cancelled,
/// the background task releases them.
struct PendingSurplus<'a> {
    client: &'a ClientState,
    tenure: &'a Arc<Tenure>,
    is_cancelled: bool,
}

impl<'a> PendingSurplus<'a> {
    const fn new(client: &'a ClientState, tenure: &'a Arc<Tenure>) -> Self {
        Self { client, tenure, is_cancelled: false }
    }

    fn cancel(mut self) {
        self.is_cancelled = true;
    }
}

impl Drop for PendingSurplus<'_> {
    fn drop(&mut self) {
        if !self.is_cancelled {
            self.client.enqueue(Task::ReleaseSurplus(Arc::clone(self.tenure)));
        }
    }
}
