//! Acquires locks: the states `try`, `wait`, `confirm` and `give up` of the clients' protocol.
//!
//! | state | request | next |
//! | --- | --- | --- |
//! | try | ACQUIRE, on the shared connection | granted: held; busy: wait, or the end |
//! | wait | ACQUIRE BLOCK with a short lease, slice by slice, on a connection of its own | granted: confirm; limit: the end |
//! | confirm | RENEW with the whole lease | token: held; denied: wait |
//! | give up | RELEASE HOLDS 0, in the background | the end |
//!
//! If no connection for a wait is free, or the server is full, a call that may wait polls: it repeats *try*, with pauses,
//! until it gets a connection.

use crate::commands::{Grant, Kind, OwnedKey, read};
use crate::error::Error;
use crate::guard::Guard;
use crate::lock::Lock;
use crate::request::{Request, shown};
use crate::tenure::Tenure;
use crate::time::{FAR_FUTURE, from_now, lease_end, millis, pause_after, until};
use futures_util::future::{FutureExt, join_all};
use redis::Value;
use std::mem::take;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// The lease of a grant that is not confirmed yet, in milliseconds. If the reply is lost, the server keeps the lock at
/// most for this time.
const SHORT_LEASE: u64 = 3_000;

/// The longest time that one request waits in the server's queue.
const SLICE: Duration = Duration::from_secs(10);

/// How long the server keeps the queue position of a waiter between two requests, in milliseconds.
const KEEP: u64 = 5_000;

/// If a request with `BLOCK` gets its reply earlier than this, the client pauses before the next request.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// How long after the wait limit a reply may still arrive.
const OVERTIME: Duration = Duration::from_millis(100);

/// How long the client repeats *give up* for a named owner, which may acquire the lock again. A call that fails also
/// waits for the reply to *give up*, at most for this time.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(200);

/// How long the client pauses after a loss before it acquires all keys again. If the lease is shorter than a round
/// trip, a client without this pause would send requests without a break.
const PAUSE_AFTER_LOSS: Duration = Duration::from_millis(50);

impl Lock {
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
    /// - [`Error::Unreachable`] when no server answers before the client's patience or the wait limit is over. A caller
    ///   that is already in the queue waits until its wait limit.
    /// - [`Error::Lost`] when a call that does not wait gets the lock, but loses it before the call returns.
    /// - [`Error::Unreplicated`] when too few [`replicas`](Self::replicas) confirm the grant.
    /// - [`Error::Invalid`] when an option is out of range.
    /// - [`Error::Refused`] with the server's own error, such as `MAXWAITERS` or `OOM`, or for slots or a weight out of
    ///   range.
    pub async fn acquire(self) -> Result<Guard, Error> {
        self.check()?;
        let waits = !self.wait.is_zero();
        let limit = from_now(if waits { self.wait } else { FAR_FUTURE });
        let mut is_first = true;
        loop {
            // If the program has named no owner, each attempt has a new owner. So a late release of an earlier attempt
            // cannot end a hold of this attempt.
            let owner = self.owner.clone().unwrap_or_else(|| self.client.unique_owner());
            let attempted = self.attempt(&owner, is_first, limit).await;
            // After a failed attempt, wait for the replies to its releases, at most for `GIVE_UP_LIMIT`. If no server
            // answers, this wait is useless.
            if matches!(&attempted, Err(error) if !matches!(error, Error::Unreachable { .. })) {
                let end = from_now(GIVE_UP_LIMIT).min(limit + OVERTIME * 3 / 2);
                self.client.releases_end(end, |name| name.owner == owner).await;
            }
            match attempted {
                Err(Error::Busy { .. }) if waits && self.only_tries(is_first) => {}
                Err(Error::Lost { .. }) if waits => sleep(PAUSE_AFTER_LOSS).await,
                acquired => return acquired,
            }
            is_first = false;
        }
    }

    /// Acquires all keys. An attempt that only tries the keys tries all at the same time. Another attempt acquires one
    /// key after the other. When a granted key is lost, the attempt ends, and the client releases all other granted keys.
    /// If these keys stayed held while the call waits again for the lost key, this call and another caller could
    /// deadlock.
    async fn attempt(&self, owner: &[u8], is_first: bool, limit: Instant) -> Result<Guard, Error> {
        let mut guard = Guard::new(&self.client);
        let only_tries = self.only_tries(is_first);
        // In a cluster, each key has a request of its own, because the keys may be on different nodes.
        let together = if only_tries && !self.client.is_cluster() { self.keys.len() } else { 1 };
        let acquisitions = self.keys.chunks(together).map(async |keys| {
            let name = |key: &Vec<u8>| Arc::new(OwnedKey { key: key.clone(), owner: owner.to_vec() });
            let mut acquire = Acquire::new(self, keys.iter().map(name).collect(), limit, is_first);
            match acquire.acquire(only_tries).await {
                Ok(tenure) => guard.tenure.join(&tenure),
                // A server has answered during the call, so the lock was busy until the wait limit.
                Err(Error::Unreachable { key, .. }) if acquire.request.is_answered && acquire.is_late() => {
                    return Err(Error::Busy { key });
                }
                Err(error) => return Err(error),
            }
            Ok(())
        });
        let all = async {
            if only_tries {
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
            // If there is only one key, no granted key can be lost during a wait for another key. Then this branch would
            // wake the task without need.
            _ = guard.lost(), if self.keys.len() > 1 => {}
            acquired = all => acquired?,
        }
        guard.complete(self.hold_limit, self.is_renewed)?;
        Ok(guard)
    }

    /// Acquires the lock, runs `work` and releases the lock, even if `work` returns an error or panics. The panic
    /// continues after the release. When the lock is lost, `work` is dropped at its current `.await`.
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
        let working = async {
            tokio::select! {
                biased;
                ended = work(Arc::clone(&guard)) => Some(ended),
                _ = lost => None,
            }
        };
        // If a panic ended the runtime, the drop of the guard could not release the lock.
        let ended = AssertUnwindSafe(working).catch_unwind().await;
        let released = guard.release_all().await;
        match ended.unwrap_or_else(|panic| resume_unwind(panic)) {
            Some(Ok(value)) => Ok(released.map(|()| value)?),
            Some(Err(error)) => Err(error),
            None => Err(released.err().unwrap_or_else(|| Error::invalid("the lock was released")).into()),
        }
    }

    /// Runs `work` while this process is the leader. The leader is the process that holds the exclusive lock. The call
    /// waits for the lock without limit. The token of the guard is the term. When the lock is lost, the client drops
    /// `work` at its current `.await`, and this process is a candidate again. When `work` returns or panics, the client
    /// releases the lock.
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
    /// The errors of [`acquire`](Self::acquire), except [`Error::Busy`] and [`Error::Unreachable`]: while no server
    /// answers, the candidate keeps trying. The errors of [`Guard::release`] when `work` has returned. [`Error::Invalid`]
    /// also when the lock has several keys, is shared, has slots or has a wait limit.
    pub async fn lead<F: Future>(self, mut work: impl FnMut(Arc<Guard>) -> F) -> Result<F::Output, Error> {
        if self.keys.len() != 1 || self.kind != Kind::default() || self.wait < FAR_FUTURE {
            return Err(Error::invalid("a leader holds one exclusive lock, and waits for it without limit"));
        }
        loop {
            let mut value = None;
            let term = self.clone().run(async |leader| {
                value = Some(work(leader).await);
                Ok(())
            });
            let ended = term.await;
            if let Some(value) = value {
                return ended.map(|()| value);
            }
            match ended {
                Ok(()) | Err(Error::Unreachable { .. } | Error::Lost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The acquisition of one key, or of several keys without a wait. If this value is dropped before the acquisition has
/// ended, the client sends *give up* in the background.
struct Acquire<'a> {
    lock: &'a Lock,
    /// The end of the wait.
    limit: Instant,
    /// The lease to ask for, in milliseconds. `None` is the server's default.
    lease: Option<u64>,
    request: Request,
    /// The keys for which the server keeps a queue position or a grant of this owner, as the last replies show.
    left: Vec<Arc<OwnedKey>>,
}

impl<'a> Acquire<'a> {
    /// The acquisition of these keys. `is_first` is true in the first attempt of the call.
    fn new(lock: &'a Lock, names: Vec<Arc<OwnedKey>>, limit: Instant, is_first: bool) -> Self {
        let patience = lock.patience();
        let end = if lock.wait.is_zero() { from_now(patience) } else { limit + OVERTIME };
        let mut request = Request::new(&lock.client, names, end);
        request.patience = patience;
        // A further attempt happens only after a server has answered the first attempt.
        request.is_answered = !is_first;
        let lease = lock.lease.map(|lease| lock.limit_lease(millis(lease)));
        Self { lock, limit, lease, request, left: Vec::new() }
    }

    /// Sends ACQUIRE until the lock is granted or the wait is over. The first request does not wait, because a call
    /// needs no connection of its own to acquire a free lock. If the lock is held, the call waits slice by slice until
    /// the wait limit.
    async fn acquire(&mut self, only_tries: bool) -> Result<Tenure, Error> {
        // The client may still repeat an earlier release of a named owner. After the acquisition this release would end
        // the new tenure.
        let (lock, names) = (self.lock, self.request.names.clone());
        let is_same = |other: &OwnedKey| names.iter().any(|name| **name == *other);
        if lock.owner.is_some() && !lock.client.releases_end(self.request.end(), is_same).await {
            return Err(self.request.unreachable("an earlier release of this owner has had no reply"));
        }
        // While this call polls, this future keeps the call's place among the callers that want a permit.
        let mut turn = pin!(lock.client.wait_permits.acquire());
        let (mut permit, mut waits) = (None, false);
        let (mut polls, mut early) = (0, 0);
        loop {
            let (requested, is_last, replies) = match self.ask(waits).await {
                // The call gets no connection of its own, for example because the server is full. So it polls.
                Err(Error::Unreachable { .. }) if waits && !self.request.is_sent && !self.is_late() => {
                    waits = false;
                    continue;
                }
                asked => asked?,
            };
            let is_busy = |reply: &Value| *reply == Value::Nil;
            let busy = replies.iter().position(is_busy);
            let left = names.iter().zip(&replies).filter(|(_, reply)| !is_last || !is_busy(reply));
            self.left = left.map(|(name, _)| Arc::clone(name)).collect();
            if busy.is_none() {
                let granted = replies.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
                match self.hold(&granted, waits, requested).await {
                    Err(Error::Lost { .. }) => {}
                    held => return held,
                }
            }
            if only_tries || self.is_late() || (waits && is_last && busy.is_some()) {
                return Err(Error::Busy { key: shown(names.get(busy.unwrap_or_default())) });
            }
            if !waits {
                polls += 1;
                let pause = pause_after(polls, 50, 1_000).min(until(self.limit));
                if permit.is_some() {
                    sleep(pause).await;
                } else {
                    permit = timeout(pause, &mut turn).await.ok().and_then(Result::ok);
                }
                waits = permit.is_some();
            } else if requested.elapsed() < SHORTEST_WAIT {
                // The server did not block, for example because a proxy runs the command in a script. Or the lease is
                // shorter than a round trip. Without a pause the client would send requests without a break.
                if early > 0 {
                    sleep(pause_after(early, 50, 1_000).min(until(self.limit))).await;
                }
                early += 1;
            }
            // From here on the call waits until its wait limit, even if no server answers or no connection is free.
            self.request.patience = FAR_FUTURE;
            self.request.deadline = self.limit + OVERTIME;
        }
    }

    /// Asks for the keys, until there are replies. Returns when the last request was sent, whether it was the last
    /// slice of the wait, and the replies.
    async fn ask(&mut self, waits: bool) -> Result<(Instant, bool, Vec<Value>), Error> {
        (self.request.waits, self.request.replicas) = (waits, self.replicas().filter(|_| !waits));
        let (kind, limit, lease) = (self.lock.kind, self.limit, &mut self.lease);
        let names = self.request.names.clone();
        let response_limit = self.lock.client.settings.response_limit;
        let (mut requested, mut is_last) = (Instant::now(), true);
        let all = |lease, wait| names.iter().map(|name| name.acquire(lease, wait, kind)).collect();
        let asked = self.request.ask(|longest_lease| {
            requested = Instant::now();
            *lease = lease.map(|lease| lease.min(longest_lease));
            if !waits {
                return Ok((all(*lease, None), response_limit));
            }
            let left = until(limit);
            if left.is_zero() {
                return Err(Error::Busy { key: shown(names.first()) });
            }
            is_last = left <= SLICE;
            // The last slice is rounded up, because `BLOCK 0` has no limit.
            let block = millis(left.min(SLICE)) + u64::from(is_last);
            let keep = (!is_last).then_some(KEEP);
            let commands = all(lease.map(|lease| lease.min(SHORT_LEASE)), Some((block, keep)));
            Ok((commands, response_limit.saturating_add(Duration::from_millis(block))))
        });
        let replies = asked.await?;
        Ok((requested, is_last, replies))
    }

    /// Turns the grants of all keys into a tenure. If a grant ends a wait, or if the granted lease differs from the
    /// wanted lease, the client first renews the lease. A grant is a token, a number of holds, and a lease.
    ///
    /// # Errors
    /// [`Error::Lost`] if the grant has ended before this renewal.
    async fn hold(
        &mut self,
        grants: &[(u64, u32, u64)],
        waits: bool,
        requested: Instant,
    ) -> Result<Tenure, Error> {
        let shortest = grants.iter().map(|(_, _, lease)| *lease).min().unwrap_or_default();
        let whole = self.lease.unwrap_or(shortest);
        let lease = self.lock.limit_lease(whole);
        let tenure = Tenure::new(&self.lock.client);
        let grants = grants.iter().map(|(token, ..)| Grant { token: *token, kinds: vec![self.lock.kind] });
        let keys = self.request.names.iter().cloned().zip(grants).collect();
        let patience = self.lock.patience();
        if waits {
            let now = Instant::now();
            tenure.add(keys, lease_end(whole.min(SHORT_LEASE), now), lease, Some(now));
            (self.request.waits, self.request.replicas) = (false, self.replicas());
            self.request.patience = patience;
            let confirmed = tenure.renew_key(&mut self.request, None).await;
            // The short lease may be over before any reply.
            tenure.check()?;
            let deadline = confirmed?;
            tenure.change(|state| state.deadline = deadline);
        } else {
            tenure.add(keys, lease_end(whole, requested), lease, Some(requested));
            if whole != lease {
                tenure.renew(patience, false).await?;
            }
        }
        self.request.check_replicas()?;
        self.left.clear();
        self.request.may_have_run = false;
        Ok(tenure)
    }

    /// How many replicas must confirm a grant, and within which time.
    fn replicas(&self) -> Option<(usize, Duration)> {
        self.lock.replicas.map(|(count, within)| (count, within.min(until(self.limit))))
    }

    fn is_late(&self) -> bool {
        until(self.limit).is_zero()
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Self { lock, request, left, .. } = self;
        let names = if request.may_have_run { request.names.clone() } else { take(left) };
        if names.is_empty() {
            return;
        }
        // A named owner may soon acquire the lock again, and a late release would end the new tenure.
        let patience = lock.client.settings.patience;
        request.deadline = from_now(if lock.owner.is_some() { GIVE_UP_LIMIT } else { patience });
        if request.replicas.is_some() && request.may_have_run {
            // WAIT may delay the release on this connection, so the client also sends the release on the shared
            // connection.
            let mut beside = Request::new(&lock.client, Vec::new(), request.deadline);
            beside.release_in_background(&names, OwnedKey::give_up);
        } else if request.waits {
            // This line closes the connection, so the server notices that the waiter has left.
            request.connection = None;
        }
        request.release_in_background(&names, OwnedKey::give_up);
    }
}
