//! Acquires locks: the states `try`, `wait`, `confirm` and `give up` of the clients' protocol.
//!
//! | state | request | next |
//! | --- | --- | --- |
//! | try | ACQUIRE, on the shared connection | granted: held; busy: wait, or the end |
//! | wait | ACQUIRE BLOCK with a short lease, slice by slice, on a connection of its own | granted: confirm; limit: the end |
//! | confirm | RENEW with the whole lease | token: held; denied: wait |
//! | give up | RELEASE HOLDS 0, in the background | the end |
//!
//! If no connection for a wait is free, a call that may wait repeats *try* from time to time until a connection is
//! free.

use crate::commands::{Kind, OwnedKey, read};
use crate::error::Error;
use crate::mutex::locked;
use crate::request::Request;
use crate::servers::Inner;
use crate::tenure::Tenure;
use crate::time::{FAR_FUTURE, from_now, lease_end, millis, pause_after, until};
use redis::Value;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

/// The lease of a grant that is not confirmed yet, in milliseconds. If the reply is lost, the server keeps the lock at
/// most for this time.
const SHORT_LEASE: u64 = 3_000;

/// The longest time that one request waits in the server's queue.
const SLICE: Duration = Duration::from_secs(10);

/// How long the server keeps the queue position of a waiter between two requests, in milliseconds.
const KEEP: u64 = 5_000;

/// How long after the wait limit a reply may still arrive.
pub(crate) const OVERTIME: Duration = Duration::from_millis(100);

/// How long the client repeats *give up* for a named owner, which may acquire the lock again. A call that fails also
/// waits for the reply to *give up*, at most for this time.
pub(crate) const GIVE_UP_LIMIT: Duration = Duration::from_millis(200);

/// The options of an acquisition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) kind: Kind,
    pub(crate) lease: Option<Duration>,
    pub(crate) without_renewal: bool,
    pub(crate) hold_limit: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) replicas: Option<(usize, Duration)>,
    pub(crate) owner: Option<Vec<u8>>,
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.kind.check()?;
        // The client subtracts a millisecond from each lease, so a lease of one millisecond would be over at once.
        let is_short = |duration: Option<Duration>| duration.is_some_and(|duration| millis(duration) < 2);
        let why = match self.owner.as_deref() {
            Some(b"*") => "an owner must not be *, which asks the server to make one up",
            Some(owner) if owner.is_empty() || owner.len() > 1_024 => "an owner must be 1 to 1,024 bytes",
            _ if is_short(self.lease) => "a lease must be at least 2 milliseconds",
            _ if is_short(self.hold_limit) => "a hold limit must be at least 2 milliseconds",
            _ if self.replicas.zip(self.lease).is_some_and(|((_, within), lease)| within >= lease) => {
                "the time for replicas must be shorter than the lease"
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(why))
    }

    pub(crate) fn waits_not(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_zero())
    }

    /// The lease or the hold limit, whichever is shorter, in milliseconds.
    fn limit_lease(&self, lease: u64) -> u64 {
        self.hold_limit.map_or(lease, |limit| lease.min(millis(limit)))
    }
}

/// The acquisition of one key. If this value is dropped before the acquisition has ended, the client sends *give up* in
/// the background.
pub(crate) struct Acquire<'a> {
    client: &'a Arc<Inner>,
    options: &'a Options,
    /// The end of the wait.
    limit: Instant,
    /// The lease to ask for, in milliseconds. `None` is the server's default.
    lease: Option<u64>,
    request: Request,
    /// The permit to wait in the server's queue on a connection of its own. `None` until the call gets this permit.
    permit: Option<SemaphorePermit<'a>>,
    /// Whether the last reply shows that the server keeps a queue position or a grant for this owner.
    leaves_something: bool,
}

impl<'a> Acquire<'a> {
    /// Acquires the key. If `only_tries` is true, the call does not wait for the key.
    pub(crate) async fn run(
        client: &'a Arc<Inner>,
        name: OwnedKey,
        options: &'a Options,
        limit: Instant,
        only_tries: bool,
    ) -> Result<Tenure, Error> {
        let patience = client.settings.patience;
        let end = if options.waits_not() { from_now(patience) } else { limit + OVERTIME };
        let mut request = Request::new(client, &Arc::new(name), end);
        request.patience = patience;
        // WAIT concerns only the commands before it on the same connection, so the client must send ACQUIRE and WAIT on
        // one connection. On the shared connection, WAIT would delay the commands of other calls.
        request.is_alone = options.replicas.is_some();
        let lease = options.lease.map(|lease| options.limit_lease(millis(lease)));
        let mut acquire =
            Self { client, options, limit, lease, request, permit: None, leaves_something: false };
        match acquire.acquire(only_tries).await {
            // A server has answered during the call, so the lock was busy until the wait limit.
            Err(Error::Unreachable { key, .. }) if acquire.request.is_answered && acquire.is_late() => {
                Err(Error::Busy { key })
            }
            acquired => acquired,
        }
    }

    /// Sends ACQUIRE until the lock is granted or the wait is over. The first request does not wait, because a call
    /// needs no connection of its own to acquire a free lock. If the lock is held, the call waits slice by slice until
    /// the wait limit.
    async fn acquire(&mut self, only_tries: bool) -> Result<Tenure, Error> {
        let (client, options, limit) = (self.client, self.options, self.limit);
        let name = Arc::clone(&self.request.name);
        // The client may still repeat an earlier release of a named owner. After the acquisition this release would end
        // the new tenure.
        let is_named = options.owner.is_some();
        if is_named && !client.releases_end(self.request.end(), |other| *other == *name).await {
            let cause = "an earlier release of this owner has had no reply".to_owned();
            return Err(Error::Unreachable { key: name.shown(), cause });
        }
        let mut polls = 0;
        // While this call polls, this future keeps the call's place among the callers that want a permit.
        let mut permit = pin!(client.wait_permits.acquire());
        loop {
            let waits = self.permit.is_some();
            if waits && !self.request.is_alone {
                // The try used the shared connection. A wait needs a connection of its own.
                (self.request.is_alone, self.request.connection) = (true, None);
            }
            self.request.replicas = options.replicas.filter(|_| !waits);
            let (mut requested, mut is_last) = (Instant::now(), true);
            let lease = &mut self.lease;
            let asked = self.request.ask(|longest_lease| {
                requested = Instant::now();
                *lease = lease.map(|lease| lease.min(longest_lease));
                let response_limit = client.settings.response_limit;
                if !waits {
                    return Ok((name.acquire(*lease, None, options.kind), response_limit));
                }
                let left = until(limit);
                if left.is_zero() {
                    return Err(Error::Busy { key: name.shown() });
                }
                is_last = left <= SLICE;
                // The last slice is rounded up, because `BLOCK 0` has no limit.
                let millis = millis(left.min(SLICE)) + u64::from(is_last);
                let short = lease.map(|lease| lease.min(SHORT_LEASE));
                let keep = (!is_last).then_some(KEEP);
                let cmd = name.acquire(short, Some((millis, keep)), options.kind);
                Ok((cmd, response_limit.saturating_add(Duration::from_millis(millis))))
            });
            let reply = asked.await?;
            self.leaves_something = reply != Value::Nil || !is_last;
            let is_over = only_tries || self.is_late() || (waits && is_last && reply == Value::Nil);
            if let Some((token, _, lease)) = read::<Option<(u64, u32, u64)>>(reply)? {
                match self.hold(token, lease, if waits { Instant::now() } else { requested }).await {
                    Err(Error::Lost { .. }) => {}
                    Err(Error::Unreachable { .. }) if !is_over => {}
                    held => return held,
                }
            }
            if is_over {
                return Err(Error::Busy { key: name.shown() });
            }
            // From here on the call waits until its wait limit, even if no server answers or no connection is free.
            self.request.patience = FAR_FUTURE;
            self.request.deadline = limit + OVERTIME;
            if !waits {
                polls += 1;
                let pause = pause_after(polls, 50, 1_000).min(until(limit));
                self.permit = timeout(pause, &mut permit).await.ok().and_then(Result::ok);
            }
        }
    }

    /// Turns a grant into a tenure. If the grant ends a wait, or if the granted lease differs from the wanted lease,
    /// the client first renews the grant.
    ///
    /// # Errors
    /// [`Error::Lost`] if the grant has ended before this renewal.
    async fn hold(&mut self, token: u64, granted: u64, since: Instant) -> Result<Tenure, Error> {
        let waits = self.permit.is_some();
        let whole = self.lease.unwrap_or(granted);
        let lease = self.options.limit_lease(whole);
        let granted = if waits { whole.min(SHORT_LEASE) } else { whole };
        let tenure = Tenure::new(self.client, self.options.kind);
        tenure.add(&self.request, token, lease, since, lease_end(granted, since));
        if waits || granted != lease {
            self.request.replicas = self.options.replicas;
            self.request.patience = self.client.settings.patience;
            tenure.renew_key(token, &mut self.request, 1).await?;
        }
        let reached = self.request.confirmed_by;
        if let Some((wanted, _)) = self.options.replicas
            && reached < wanted
        {
            return Err(Error::Unreplicated { key: self.request.name.shown(), reached, wanted });
        }
        self.leaves_something = false;
        self.request.may_have_run = false;
        Ok(tenure)
    }

    fn is_late(&self) -> bool {
        until(self.limit).is_zero()
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if self.leaves_something || self.request.may_have_run {
            // A named owner may soon acquire the lock again, and a late release would end the new tenure.
            let is_named = self.options.owner.is_some();
            let limit = if is_named { GIVE_UP_LIMIT } else { self.client.settings.patience };
            self.request.deadline = from_now(limit);
            let give_up = self.request.name.give_up();
            if self.permit.is_some() {
                // This line closes the connection, so the server notices that the waiter has left.
                self.request.connection = None;
            } else if self.request.is_alone && self.request.may_have_run {
                // WAIT may delay the release on this connection, so the client also sends the release on the shared
                // connection.
                let mut beside = Request::new(self.client, &self.request.name, self.request.deadline);
                beside.release_in_background(give_up.clone());
            }
            self.request.release_in_background(give_up);
        } else if let Some((node, connection)) = self.request.connection.take()
            && self.request.is_alone
            && matches!(connection.peek(), Some(Ok(_)))
        {
            locked(&node.idle).push((Instant::now(), connection));
        }
    }
}
