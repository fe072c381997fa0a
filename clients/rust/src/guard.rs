//! A lock that is held.

use crate::commands::{Kind, Limit, Tokens, read};
use crate::error::{Error, Loss};
use crate::handle;
use crate::request::Request;
use crate::servers::Inner;
use crate::tenure::{Held, LOSSES, State, Tenure};
use crate::time::{FAR_FUTURE, until};
use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep_until;

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
    pub(crate) tenure: Arc<Tenure>,
    /// Sorted by key.
    tokens: Tokens,
}

impl Guard {
    /// A guard to which keys are added.
    pub(crate) fn new(client: &Arc<Inner>, kind: Kind) -> Self {
        Self { tenure: Arc::new(Tenure::new(client, kind)), tokens: Vec::new() }
    }

    /// All keys are granted. They are held for `hold_limit` from the last grant on.
    ///
    /// # Errors
    /// [`Error::Lost`] if one of them is lost.
    pub(crate) fn complete(&mut self, hold_limit: Option<Duration>) -> Result<(), Error> {
        let keys = self.tenure.state().keys.into_iter();
        self.tokens = keys.map(|held| (held.name, held.token)).collect();
        if let Some(limit) = hold_limit {
            self.tenure.change(|state| {
                let end = state.since + limit.min(FAR_FUTURE);
                state.hold_end = Some(end);
                state.keys.iter_mut().for_each(|held| held.deadline = held.deadline.min(end));
            });
        }
        self.tenure.check()
    }

    /// The name of the lock. Of several, the first in the order of bytes.
    pub fn key(&self) -> &[u8] {
        self.tokens.first().map_or(&[], |(name, _)| &name.key)
    }

    /// The name of the owner.
    pub fn owner(&self) -> &[u8] {
        self.tokens.first().map_or(&[], |(name, _)| &name.owner)
    }

    /// The fencing token. It is below 2^53, and larger than that of every earlier tenure of this lock.
    pub fn token(&self) -> u64 {
        self.tokens.first().map_or(0, |(_, token)| *token)
    }

    /// The keys and their fencing tokens, sorted by key.
    pub fn tokens(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.tokens.iter().map(|(name, token)| (&*name.key, *token))
    }

    /// Whether the lock is held now, as far as this process knows. The client counts the lease on its own monotonic clock,
    /// from before it sent the request. So it ends here before it ends at the server. (On Linux this clock stops while the
    /// machine is suspended.)
    pub fn is_held(&self) -> bool {
        self.tenure.check().is_ok()
    }

    /// How long the lock is still held if its lease is not renewed. Zero when the lock is lost.
    pub fn lease_left(&self) -> Duration {
        let state = self.tenure.state.borrow();
        if state.end.is_some() { Duration::ZERO } else { until(state.deadline()) }
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
        let mut states = self.tenure.state.subscribe();
        async move {
            loop {
                let (checked, deadline) = {
                    let state = states.borrow_and_update();
                    (state.check(), state.deadline())
                };
                if let Err(Error::Lost { loss, .. }) = checked {
                    return loss;
                }
                tokio::select! {
                    changed = states.changed() => if changed.is_err() {
                        return Loss::Released;
                    },
                    // The leases are watched here, by the clock alone.
                    () = sleep_until(deadline.into()) => {}
                }
            }
        }
    }

    /// Renews the lease now. It is rarely needed, because the client renews by itself unless
    /// [`Lock::without_renewal`](crate::Lock::without_renewal) was called. But its success proves, just before the work is
    /// published, that the lock has been held until now.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unreachable`] if no server answers within the client's patience and
    /// the lease. After that error the lock may still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        self.tenure.renew(self.tenure.client.settings.patience).await
    }

    /// Raises the limit, so that others can hold the lock too: those who ask for it with this larger limit. A writer that
    /// calls it with [`Limit::Shared`] becomes a reader. The token stays the same. A smaller limit is refused.
    ///
    /// # Errors
    /// As [`renew`](Self::renew). After [`Error::Unreachable`] the next renewal downgrades the lock.
    pub async fn downgrade(&self, limit: Limit) -> Result<(), Error> {
        let before = self.tenure.state().kind;
        let kind = Kind { limit, weight: before.weight.filter(|_| limit != Limit::Shared) };
        kind.check()?;
        self.tenure.change(|state| state.kind = kind);
        self.renew().await.inspect_err(|error| {
            if error.code().is_some() {
                self.tenure.change(|state| state.kind = before);
            }
        })
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
        let Tenure { client, .. } = &*self.tenure;
        let Some((name, token)) = self.tokens.first() else { return Err(Error::invalid("no key is named")) };
        let cmd = name.guard(*token, command);
        let mut request = Request::new(client, name);
        request.runs_once = true;
        let mut is_renewed = false;
        loop {
            self.tenure.check()?;
            match request.send(&cmd, client.settings.response_limit).await {
                Ok(Some(reply)) => return read(reply),
                Ok(None) => {}
                // A server in quarantine may have forgotten the tenure. A renewal restores it.
                Err(error) if error.code() == Some("FENCED") && !is_renewed => {
                    is_renewed = true;
                    self.renew().await?;
                }
                Err(error) => return Err(self.tenure.judge(name, error, &["FENCED"])),
            }
        }
    }

    /// Leaves the lock to another process, which goes on with it by [`Client::resume`](crate::Client::resume). The string has
    /// the keys, the owner, the tokens, the lease and the kind. From now on this process neither renews nor releases the
    /// lock. It ends with its lease unless the other process resumes it before.
    pub fn handle(self) -> String {
        self.tenure.change(|state| state.keys.clear());
        let State { lease, kind, .. } = self.tenure.state();
        handle::write(&self.tokens, lease, kind)
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
        // From here on the server may end the tenure, so it must no longer count as held.
        let ended = self.end();
        let Tenure { client, .. } = &*self.tenure;
        let keys = self.unreleased();
        let releases = keys.iter().map(async |Held { name, token, deadline, .. }| {
            let mut request = Request::new(client, name);
            request.deadline = *deadline;
            let released = match request.repeat(&name.release(*token)).await {
                Ok(_) => Ok(()),
                // An earlier attempt has released it.
                Err(error) if error.code() == Some("NOTHELD") && request.may_have_run => Ok(()),
                Err(error @ Error::Unreachable { .. }) => return Err(error),
                Err(error) => Err(self.tenure.judge(name, error, &LOSSES)),
            };
            self.tenure.forget(name);
            released
        });
        ended.and(join_all(releases).await.into_iter().collect())
    }

    /// The keys that the server may still hold by this process's clock.
    fn unreleased(&self) -> Vec<Held> {
        let now = Instant::now();
        self.tenure.state().keys.into_iter().filter(|held| held.deadline > now).collect()
    }

    fn end(&self) -> Result<(), Error> {
        let key = String::from_utf8_lossy(self.key()).into_owned();
        self.tenure.end(Error::Lost { key, loss: Loss::Released })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.end();
        for held in self.unreleased() {
            let release = held.name.release(held.token);
            Request::new(&self.tenure.client, &held.name).release_in_background(release, held.deadline);
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
