//! A lock that is held.

use crate::commands::{Grants, Limit, read_one};
use crate::error::{Error, Loss};
use crate::request::Request;
use crate::servers::Inner;
use crate::settings::Settings;
use crate::tenure::{LOSSES, State, Tenure};
use crate::time::{FAR_FUTURE, from_now, millis, until};
use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

/// A lock that is held, or several locks that are held as one lock.
///
/// The client renews the lease while the guard exists. **The lock can still be lost**: this process may pause for
/// longer than the lease, no server may answer, or somebody may delete the lock. When the lock is lost,
/// [`lost`](Self::lost) resolves, and [`is_held`](Self::is_held) returns false from then on. But a write that is in
/// progress continues. So send the [token](Self::token) with each write, and let the store refuse a token that is
/// smaller than an earlier token.
///
/// If you drop a guard, the client sends the release at once, and repeats it in the background if there is no reply.
/// You do not learn whether the release succeeds, or whether the lock was held until then. Call
/// [`release`](Self::release) to learn both. If the runtime ends right after the drop, the release may not be sent: use
/// [`Lock::run`](crate::Lock::run), or call [`Client::close`](crate::Client::close) after the drop.
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard {
    pub(crate) tenure: Arc<Tenure>,
    grants: Grants,
}

impl Guard {
    /// A guard without keys. The caller adds the keys.
    pub(crate) fn new(client: &Arc<Inner>) -> Self {
        Self { tenure: Arc::new(Tenure::new(client)), grants: Grants::new() }
    }

    /// Completes the guard when all keys are granted. From now on `is_renewed` decides whether the client renews the keys.
    /// The keys are held at most for the hold limit, which begins at [`State::since`].
    ///
    /// # Errors
    /// [`Error::Lost`] if a key is lost.
    pub(crate) fn complete(&mut self, hold_limit: Option<Duration>, is_renewed: bool) -> Result<(), Error> {
        self.grants = self.tenure.state().keys;
        self.tenure.change(|state| {
            state.is_renewed = is_renewed;
            state.hold_end = hold_limit.zip(state.since).map(|(limit, since)| since + limit.min(FAR_FUTURE));
            state.deadline = state.deadline.min(state.hold_end.unwrap_or(state.deadline));
        });
        self.tenure.check()
    }

    /// The key of the lock. If the guard has several keys, this is the first key in the order of their bytes.
    pub fn key(&self) -> &[u8] {
        self.grants.keys().next().map_or(&[], |name| &name.key)
    }

    /// The name of the owner.
    pub fn owner(&self) -> &[u8] {
        self.grants.keys().next().map_or(&[], |name| &name.owner)
    }

    /// The fencing token. It is below 2^53, and larger than the token of every earlier tenure of this lock. If the
    /// guard has several keys, this is the token of the first key.
    pub fn token(&self) -> u64 {
        self.grants.values().next().map_or(0, |grant| grant.token)
    }

    /// The keys and their fencing tokens, sorted by key.
    pub fn tokens(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.grants.iter().map(|(name, grant)| (&*name.key, grant.token))
    }

    /// Whether the lock is held now, as far as this process knows. The client counts the lease on its own monotonic
    /// clock, from a time before it sent the request. So the lease ends for the client before it ends at the server.
    /// But on Linux this clock stops while the machine is suspended.
    pub fn is_held(&self) -> bool {
        self.tenure.check().is_ok()
    }

    /// How long the lock is still held if the client does not renew the lease again. Zero when the lock is lost.
    pub fn lease_left(&self) -> Duration {
        let state = self.tenure.state.borrow();
        if state.end.is_some() { Duration::ZERO } else { until(state.deadline) }
    }

    /// Resolves when the lock is lost, with the reason, or with [`Loss::Released`] when the guard is released or
    /// dropped. A guard of several locks is lost as soon as one of the locks is lost. The future resolves when the
    /// lease is over by this process's clock, even if no server answers. It resolves earlier when the server refuses a
    /// renewal because the owner does not hold the lock. So if a client deletes the lock, the future resolves within a
    /// third of the lease. The future borrows nothing from the guard, so the program may move the future to another
    /// task. Await the future in a tokio runtime. If a task blocks a thread of this runtime, the timers of all other tasks
    /// may stop, and this future is late. So use `spawn_blocking` or `block_in_place` for work that blocks.
    /// [`is_held`](Self::is_held) returns false in time even then.
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
                    (state.check(), state.deadline)
                };
                if let Err(Error::Lost { loss, .. }) = checked {
                    return loss;
                }
                // This timer detects the end of a lease even if no renewal runs.
                let _ = timeout_at(deadline.into(), states.changed()).await;
            }
        }
    }

    /// Renews the lease now. Programs rarely need this method, because the client renews the lease by itself, except
    /// after [`Lock::without_renewal`](crate::Lock::without_renewal). But if this method succeeds, the lock was held
    /// until now. This check is useful just before a program publishes its work.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unreachable`] if no server answers within the client's patience.
    /// After [`Error::Unreachable`] the lock may still be held.
    pub async fn renew(&self) -> Result<(), Error> {
        self.tenure.renew(self.tenure.client.settings.patience, false).await
    }

    /// Raises the limit. Then other owners that ask for the lock with the new limit can also hold the lock. A writer
    /// that passes [`Limit::Shared`] becomes a reader. The token does not change. The server refuses a smaller limit.
    ///
    /// # Errors
    /// The errors of [`renew`](Self::renew). If the server refuses the limit, the error is [`Error::Refused`], and the
    /// lock keeps its limit. After [`Error::Unreachable`] the next renewal repeats the downgrade. The next renewal also
    /// repeats the downgrade if the future is dropped.
    pub async fn downgrade(&self, limit: Limit) -> Result<(), Error> {
        self.tenure.change(|state| state.keys.values_mut().for_each(|grant| grant.downgrade(limit)));
        self.tenure.renew(self.tenure.client.settings.patience, true).await
    }

    /// Runs a command only while the server has this tenure: `LOCK.GUARD` with the key and the token of this guard. The
    /// check and the command are one step at the server, so the server refuses the late write of a holder that was
    /// paused. With an empty command, `&redis::Cmd::new()`, the server only checks the token. The guard must have one
    /// key, because the server checks only one token.
    ///
    /// The data must be on the lock's server. In a cluster, the keys of the data must be in the slot of the lock: give
    /// all keys a common tag such as `{order:42}`.
    ///
    /// ```no_run
    /// # async fn example(guard: lockward_client::Guard) -> Result<(), lockward_client::Error> {
    /// let sold: u64 = guard.guarded(redis::cmd("INCR").arg("{order:42}:sold")).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// **The client does not repeat the command when its reply is lost**, because the command may have run. It repeats
    /// the command only if it did not run: no server was connected, the slot has moved, or the server is a replica. If
    /// the future is dropped, the command may still run.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost: the command did not run. The other errors do not change the lock.
    /// [`Error::Invalid`] means that the guard has several keys: the command did not run.
    /// [`Error::Refused`] is an error of the command. [`Error::Unreachable`] means that no server has replied within
    /// the response limit or the client's patience: the command may have run. [`Error::Reply`] means that the command
    /// has run, and its reply is not a `T`.
    pub async fn guarded<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        let Tenure { client, .. } = &*self.tenure;
        let (Some((name, grant)), 1) = (self.grants.first_key_value(), self.grants.len()) else {
            return Err(Error::invalid("a guarded command needs a lock of one key"));
        };
        let cmd = name.guard(grant.token, command);
        let Settings { patience, response_limit, .. } = client.settings;
        let mut request = Request::new(client, vec![Arc::clone(name)], from_now(patience));
        request.runs_once = true;
        let next = |_| self.tenure.check().map(|()| (vec![cmd.clone()], response_limit));
        let mut guarded = request.ask(next).await;
        if matches!(&guarded, Err(error) if error.code() == Some("FENCED")) {
            // A server in quarantine may have forgotten the tenure. A renewal restores it.
            self.renew().await?;
            guarded = request.ask(next).await;
        }
        read_one(guarded.map_err(|error| self.tenure.judge(name, error, &["FENCED"]))?)
    }

    /// Returns a string without spaces. Another process passes this string to [`Client::resume`](crate::Client::resume)
    /// to continue the tenure. The string has the keys, the owner, the tokens, the lease, the kinds, whether the
    /// client renews the lock, and how much is left of the hold limit. The other process counts this time from the call
    /// of `resume`. From now on this process neither renews nor releases the lock. If no process resumes the tenure, it ends with its lease.
    pub fn handle(self) -> String {
        let State { keys, lease, hold_end, is_renewed, .. } = self.tenure.state();
        self.tenure.change(|state| state.keys.clear());
        let parts = self.grants.iter().map(|(name, grant)| {
            let current = keys.get(name).unwrap_or(grant);
            (&**name, current.token, &current.kinds)
        });
        let parts: Vec<_> = parts.collect();
        let hold_left = hold_end.map(|end| millis(until(end)));
        serde_json::to_string(&(parts, lease, hold_left, is_renewed)).unwrap_or_default()
    }

    /// Releases the lock. When this method returns, the server has granted the lock to the first waiter. If the future
    /// is dropped, the lock is released in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before. Then the lock did not protect the work up to its end.
    /// [`Error::Unreachable`] if no server answers within the client's patience. The client then repeats the release in
    /// the background until the lease is over.
    pub async fn release(self) -> Result<(), Error> {
        self.release_all().await
    }

    pub(crate) async fn release_all(&self) -> Result<(), Error> {
        // When the client has sent a release, the server may end the tenure at any time. So end the tenure here first.
        let (ended, keys, deadline) = self.end();
        let Tenure { client, .. } = &*self.tenure;
        let end = from_now(client.settings.patience).min(deadline);
        let releases = keys.iter().map(async |(name, grant)| {
            let mut request = Request::new(client, vec![Arc::clone(name)], end);
            request.is_release = true;
            let released = match request.repeat(&name.release(grant.token)).await {
                Ok(replies) => read_one(replies).map(|_holds: u64| ()),
                // The reply to an earlier attempt was lost, but the earlier attempt has released the lock.
                Err(error) if error.code() == Some("NOTHELD") && request.may_have_run => Ok(()),
                Err(error @ Error::Unreachable { .. }) => return Err(error),
                Err(error) => Err(self.tenure.judge(name, error, &LOSSES)),
            };
            self.tenure.forget(name);
            released
        });
        ended.and(join_all(releases).await.into_iter().collect())
    }

    /// Ends the tenure in this process. Returns whether it was held until now, the keys that the server may still hold
    /// for the owner, and until when.
    fn end(&self) -> (Result<(), Error>, Grants, Instant) {
        let key = String::from_utf8_lossy(self.key()).into_owned();
        let ended = self.tenure.end(Error::Lost { key, loss: Loss::Released });
        let State { keys, last_deadline, .. } = self.tenure.state();
        let keys = if last_deadline > Instant::now() { keys } else { Grants::new() };
        (ended, keys, last_deadline)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (_, keys, deadline) = self.end();
        for (name, grant) in keys {
            let mut request = Request::new(&self.tenure.client, Vec::new(), deadline);
            request.release_in_background(&[name], |name| name.release(grant.token));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Guard({}, token {})", self.key().escape_ascii(), self.token())
    }
}
