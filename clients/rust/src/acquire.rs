//! Acquires locks: the states `try`, `wait`, `confirm` and `give up` of the clients' protocol.
//!
//! | state | request | next |
//! | --- | --- | --- |
//! | try | ACQUIRE, on the shared connection | granted: held; busy: wait, or the end |
//! | wait | ACQUIRE BLOCK with a short lease, slice by slice, on a connection of its own | granted: confirm; limit: the end |
//! | confirm | RENEW with the whole lease | token: held; denied: wait |
//! | give up | RELEASE HOLDS 0, in the background | the end |
//!
//! A call that may wait, but finds no free connection to wait on, repeats *try* from time to time.

use crate::commands::{Kind, OwnedKey, Slice, Terms, read};
use crate::error::Error;
use crate::guard::Guard;
use crate::request::{Request, Via};
use crate::servers::Inner;
use crate::tenure::Tenure;
use crate::time::{FAR_FUTURE, Pauses, from_now, lease_end, millis, until};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

/// The lease of a grant that is not confirmed yet, in milliseconds. If the reply is lost, the lock stays at most this long at
/// the server.
const SHORT_LEASE: u64 = 3_000;

/// The longest wait that one request asks for.
const SLICE: Duration = Duration::from_secs(10);

/// How long after the wait limit a reply may still come.
const OVERTIME: Duration = Duration::from_millis(100);

/// How long to repeat *give up* for an owner that may acquire the lock again.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(200);

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
        let is_zero = |duration: Option<Duration>| duration.is_some_and(|duration| millis(duration) == 0);
        let why = match self.owner.as_deref() {
            Some(b"*") => "an owner must not be *, which asks the server to make one up",
            Some(owner) if owner.is_empty() || owner.len() > 1_024 => "an owner must be 1 to 1,024 bytes",
            _ if is_zero(self.lease) => "a lease must be at least 1 millisecond",
            _ if is_zero(self.hold_limit) => "a hold limit must be at least 1 millisecond",
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

/// The acquisition of one key. If it is dropped before it has ended, it gives up in the background.
pub(crate) struct Acquire<'a> {
    options: &'a Options,
    /// The end of the wait.
    limit: Instant,
    /// The lease to ask for, in milliseconds. `None` is the server's default.
    lease: Option<u64>,
    /// The server has refused a longer lease.
    is_lease_shortened: bool,
    request: Request<'a>,
    /// The call may wait in the server's queue, on a connection of its own.
    permit: Option<SemaphorePermit<'a>>,
    /// The server may keep a queue position or a grant for this owner, even if no reply was lost.
    leaves_something: bool,
}

/// The server has granted the lock.
struct Grant {
    token: u64,
    /// How much of the lease was left when the lock was granted, in milliseconds.
    lease: u64,
    /// The latest time at which the lease may have begun.
    since: Instant,
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(
        client: &'a Arc<Inner>,
        key: &[u8],
        owner: &[u8],
        options: &'a Options,
        limit: Instant,
    ) -> Self {
        let name = OwnedKey { key: key.to_vec(), owner: owner.to_vec() };
        let mut request = Request::new(client, &Arc::new(name));
        request.deadline = limit + OVERTIME;
        // A call that does not wait ends within the patience.
        request.restarts_patience = !options.waits_not();
        if options.replicas.is_some() {
            // WAIT is about the commands before it on the same connection. On the shared connection it would delay those of
            // other calls.
            request.via = Via::Own(None);
        }
        Self {
            options,
            limit,
            lease: options.lease.map(|lease| options.limit_lease(millis(lease))),
            is_lease_shortened: false,
            request,
            permit: None,
            leaves_something: false,
        }
    }

    /// Acquires the key, or only tries.
    pub(crate) async fn run(mut self, only_tries: bool) -> Result<Guard, Error> {
        match self.acquire(only_tries).await {
            Ok(tenure) => Ok(Guard::of(tenure, !self.options.without_renewal)),
            // A server has answered during the call, so the wait limit was reached.
            Err(Error::Unreachable { key, .. }) if self.request.is_answered && self.is_late() => {
                Err(Error::Busy { key })
            }
            Err(error) => Err(error),
        }
    }

    async fn acquire(&mut self, only_tries: bool) -> Result<Arc<Tenure>, Error> {
        if self.options.owner.is_some() {
            self.let_releases_end().await?;
        }
        let mut polls = Pauses::new(50, 1_000);
        loop {
            let waits = self.permit.is_some();
            let granted = self.ask(waits).await?;
            let is_over = only_tries || self.is_late() || (waits && granted.is_none());
            if let Some(grant) = granted
                && let Some(tenure) = self.hold(grant, waits, is_over).await?
            {
                return Ok(tenure);
            }
            if is_over {
                return Err(Error::Busy { key: self.request.name.shown() });
            }
            // From here on the call waits until its wait limit, even if no server answers or no connection is free.
            self.request.restarts_patience = false;
            self.request.patience_end = from_now(FAR_FUTURE);
            self.request.deadline = self.limit + OVERTIME;
            if !waits {
                let pause = polls.next_pause().min(until(self.limit));
                let permit = timeout(pause, self.request.client.wait_permits.acquire()).await;
                self.permit = permit.ok().and_then(Result::ok);
            }
        }
    }

    /// Waits until no release by this owner is in progress in the background. Such a release may be sent again. If it arrived after
    /// the acquisition, it would end the new tenure: the token is the same if the earlier requests were lost.
    async fn let_releases_end(&self) -> Result<(), Error> {
        let Request { client, name, deadline, patience_end, .. } = &self.request;
        let mut releases = client.releases.subscribe();
        let ended = releases.wait_for(|releases| !releases.contains(name));
        timeout(until(*deadline.min(patience_end)), ended).await.map(drop).map_err(|_| Error::Unreachable {
            key: name.shown(),
            cause: "an earlier release of this owner has had no reply".to_owned(),
        })
    }

    /// Sends ACQUIRE until the lock is granted or the server says that it is busy. It first sends it without waiting, because
    /// a free lock needs no connection of its own. Otherwise it waits slice by slice until the wait limit.
    async fn ask(&mut self, waits: bool) -> Result<Option<Grant>, Error> {
        if waits && matches!(self.request.via, Via::Shared) {
            self.request.via = Via::Own(None);
        }
        self.request.replicas = self.options.replicas.filter(|_| !waits);
        loop {
            if waits && self.is_late() {
                return Ok(None);
            }
            let left = until(self.limit);
            let is_last = !waits || left <= SLICE;
            // The last slice is rounded up, because 0 would mean no limit.
            let millis = millis(left.min(SLICE)) + u64::from(is_last);
            let slice = waits.then_some(Slice { millis, is_last });
            let lease = if waits { self.lease.map(|lease| lease.min(SHORT_LEASE)) } else { self.lease };
            let cmd = self.request.name.acquire(lease, slice, self.options.kind);
            let wait = slice.map_or(Duration::ZERO, |slice| Duration::from_millis(slice.millis));
            let requested = Instant::now();
            let left_something = self.leaves_something;
            self.leaves_something |= waits;
            let limit = self.request.client.settings.response_limit.saturating_add(wait);
            match self.request.send(&cmd, limit).await {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    let grant: Option<(u64, u32, u64)> = read(reply)?;
                    self.leaves_something = grant.is_some() || !is_last;
                    if let Some((token, _, lease)) = grant {
                        let since = if waits { Instant::now() } else { requested };
                        return Ok(Some(Grant { token, lease, since }));
                    }
                    if is_last {
                        return Ok(None);
                    }
                }
                Err(error) => {
                    self.leaves_something = left_something;
                    self.shorten_lease(error)?;
                }
            }
        }
    }

    /// Takes the longest lease that the server accepts, if it has refused a longer one.
    fn shorten_lease(&mut self, error: Error) -> Result<(), Error> {
        match (error.longest_lease(), self.lease) {
            (Some(longest), Some(lease)) if longest < lease && !self.is_lease_shortened => {
                (self.lease, self.is_lease_shortened) = (Some(longest), true);
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Makes a tenure of a grant. If the lease of the grant differs from the wanted lease, this sets the wanted one. `None`
    /// means that the grant has ended meanwhile.
    async fn hold(&mut self, grant: Grant, waits: bool, is_over: bool) -> Result<Option<Arc<Tenure>>, Error> {
        let whole = self.lease.unwrap_or(grant.lease);
        let lease = self.options.limit_lease(whole);
        let granted = if waits { whole.min(SHORT_LEASE) } else { whole };
        let terms = Terms { token: grant.token, holds: 1, kind: self.options.kind, lease };
        let tenure = Tenure::new(&self.request, terms, grant.since, lease_end(granted, grant.since));
        if waits || granted != lease {
            self.request.replicas = self.options.replicas;
            self.request.patience_end = from_now(self.request.client.settings.patience);
            self.request.restarts_patience = !self.options.waits_not();
            match tenure.renew_by(&mut self.request, 1).await {
                Ok(()) => {}
                Err(Error::Lost { .. }) => return Ok(None),
                Err(Error::Unreachable { .. }) if !is_over => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let reached = self.request.confirmed_by;
        if let Some((wanted, _)) = self.options.replicas
            && reached < wanted
        {
            return Err(Error::Unreplicated { key: self.request.name.shown(), reached, wanted });
        }
        self.leaves_something = false;
        self.request.may_have_run = false;
        Ok(Some(tenure))
    }

    fn is_late(&self) -> bool {
        until(self.limit).is_zero()
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if self.leaves_something || self.request.may_have_run {
            // A named owner may soon have the lock again, and a late release would end that new tenure.
            let is_named = self.options.owner.is_some();
            let limit = if is_named { GIVE_UP_LIMIT } else { self.request.client.settings.patience };
            let give_up = self.request.name.give_up();
            self.request.release_in_background(give_up, from_now(limit));
        } else if let Via::Own(Some(own)) = std::mem::replace(&mut self.request.via, Via::Shared) {
            own.keep_idle();
        }
    }
}
