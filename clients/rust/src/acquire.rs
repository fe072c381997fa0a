//! Acquires locks: the states `try`, `wait`, `confirm` and `give up` of the clients' protocol.
//!
//! | state | request | next |
//! | --- | --- | --- |
//! | try | ACQUIRE, on the shared connection | granted: held; busy: wait, or the end |
//! | wait | ACQUIRE BLOCK with a short lease, slice by slice, on a connection of its own | granted: confirm; limit: the end |
//! | confirm | RENEW with the whole lease | token: held; denied: wait |
//! | give up | RELEASE HOLDS 0, in the background | the end |
//!
//! Whoever may wait, but finds no connection to wait on, polls with try.

use crate::commands::{Grant, Kind, OwnedKey, read, read_grant};
use crate::error::Error;
use crate::guard::{Guard, Hold};
use crate::request::{Request, Via};
use crate::servers::{Inner, OwnConnection};
use crate::tenure::{Tenure, Terms};
use crate::time::{FAR_FUTURE, Pauses, from_now, lease_end, millis, until};
use futures_util::future::join_all;
use redis::{Cmd, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

/// The lease of a grant that is not confirmed yet, in milliseconds. If its reply is lost, at most this is left behind.
const SHORT_LEASE: u64 = 3_000;

/// The longest wait that one request asks for.
const SLICE: Duration = Duration::from_secs(10);

/// How long a reply may come after the wait limit.
const OVERTIME: Duration = Duration::from_millis(100);

/// How long to wait for the reply to a request that gives up.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(200);

/// How a lock is to be acquired.
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
    fn check(&self) -> Result<(), Error> {
        self.kind.check()?;
        let is_zero = |duration: Option<Duration>| duration.is_some_and(|duration| millis(duration) == 0);
        let why = match self.owner.as_deref() {
            Some(b"*") => "an owner must not be *, which asks the server to make one up",
            Some(owner) if owner.is_empty() || owner.len() > 1_024 => "an owner must be 1 to 1,024 bytes",
            _ if is_zero(self.lease) => "a lease must be at least 1 millisecond",
            _ if is_zero(self.hold_limit) => "a hold limit must be at least 1 millisecond",
            _ => return self.lease.map_or(Ok(()), |lease| self.check_replicas(millis(lease))),
        };
        Err(Error::invalid(why))
    }

    fn waits_not(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_zero())
    }

    /// Checks the time for replicas against a lease in milliseconds.
    fn check_replicas(&self, lease: u64) -> Result<(), Error> {
        if self.replicas.is_some_and(|(_, within)| within >= Duration::from_millis(lease)) {
            return Err(Error::invalid("the time for replicas must be shorter than the lease"));
        }
        Ok(())
    }

    /// The lease or the hold limit, whichever is shorter, in milliseconds.
    fn limit_lease(&self, lease: u64) -> u64 {
        self.hold_limit.map_or(lease, |limit| lease.min(millis(limit)))
    }
}

/// Acquires all keys under one wait limit: first all together without waiting, then one after the other.
pub(crate) async fn acquire(
    client: &Arc<Inner>,
    keys: &[Vec<u8>],
    options: &Options,
) -> Result<Guard, Error> {
    options.check()?;
    let limit = options.wait.filter(|wait| !wait.is_zero()).map(from_now);
    let new_owner = || options.owner.clone().unwrap_or_else(|| client.unique_owner());
    let begin = |key, owner: &Vec<u8>, now| {
        let mut acquire = Acquire::new(client, key, owner.clone(), now, limit);
        acquire.waits = !options.waits_not();
        acquire.run()
    };
    let owner = new_owner();
    if let [key] = keys {
        return Ok(Guard::new(begin(key, &owner, options).await?, Vec::new()));
    }
    let at_once = Options { wait: Some(Duration::ZERO), ..options.clone() };
    let (mut holds, mut busy) = (Vec::new(), None);
    for tried in join_all(keys.iter().map(|key| begin(key, &owner, &at_once))).await {
        match tried {
            Ok(hold) => holds.push(hold),
            Err(error @ Error::Busy { .. }) => busy = busy.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    if let Some(busy) = busy {
        // Whoever waits for one key must not hold another that the next one in its queue needs.
        let bound = limit.map_or(client.settings.patience, until);
        let _ = timeout(bound, join_all(holds.iter().map(Hold::release))).await;
        holds.clear();
        if options.waits_not() {
            return Err(busy);
        }
        // Another owner: a release without a reply must not end what is acquired from here on.
        let owner = new_owner();
        for key in keys {
            holds.push(begin(key, &owner, options).await?);
        }
    }
    holds.iter().try_for_each(Hold::check)?;
    let mut holds = holds.into_iter();
    let first = holds.next().ok_or_else(|| Error::invalid("no key is named"))?;
    Ok(Guard::new(first, holds.collect()))
}

/// One acquisition in progress. If it is dropped before it has ended, it gives up in the background.
struct Acquire<'a> {
    client: &'a Arc<Inner>,
    options: &'a Options,
    /// The end of the wait. `None`: no limit.
    limit: Option<Instant>,
    /// The lease to ask for, in milliseconds. `None` is the server's default.
    lease: Option<u64>,
    request: Request<'a>,
    permit: Option<SemaphorePermit<'a>>,
    connection: Option<OwnConnection>,
    /// The call waits, even if this part of it does not.
    waits: bool,
    /// The server has refused a longer lease.
    is_lease_shortened: bool,
    /// The server may keep a queue position or a grant for this owner, even if no reply was lost.
    leaves_something: bool,
}

impl<'a> Acquire<'a> {
    fn new(
        client: &'a Arc<Inner>,
        key: &[u8],
        owner: Vec<u8>,
        options: &'a Options,
        limit: Option<Instant>,
    ) -> Self {
        let name = Arc::new(OwnedKey { key: key.to_vec(), owner });
        let mut request = Request::new(client, &name);
        request.deadline = limit.map_or(request.deadline, |limit| limit + OVERTIME);
        let lease = options.lease.map(|lease| options.limit_lease(millis(lease)));
        Self {
            client,
            options,
            limit,
            lease,
            request,
            permit: None,
            connection: None,
            waits: !options.waits_not(),
            is_lease_shortened: false,
            leaves_something: false,
        }
    }

    async fn run(mut self) -> Result<Hold, Error> {
        match self.acquire().await {
            Ok(tenure) => Ok(Hold::new(tenure)),
            // A server has answered during the call, so the call has only waited for too long.
            Err(Error::Unreachable { key, .. }) if self.request.is_answered && self.time_left().is_zero() => {
                Err(Error::Busy { key })
            }
            Err(error) => Err(error),
        }
    }

    async fn acquire(&mut self) -> Result<Arc<Tenure>, Error> {
        // A call that does not wait ends within the patience.
        self.request.restarts_patience = self.waits;
        let mut polls = Pauses::new(50, 1_000);
        loop {
            if let Some(tenure) = self.try_once().await? {
                return Ok(tenure);
            }
            if self.is_over() {
                return Err(self.busy());
            }
            // From here on the call waits, if only for a connection.
            (self.request.patience_end, self.request.restarts_patience) = (from_now(FAR_FUTURE), false);
            let pause = polls.next_pause().min(self.time_left());
            if let Ok(Ok(permit)) = timeout(pause, self.client.wait_permits.acquire()).await {
                self.permit = Some(permit);
                break;
            }
        }
        loop {
            let grant = self.wait().await?;
            if let Some(tenure) = self.confirm(grant).await? {
                return Ok(tenure);
            }
        }
    }

    /// Asks once, as a free lock needs no connection of its own. `None`: the lock is busy.
    async fn try_once(&mut self) -> Result<Option<Arc<Tenure>>, Error> {
        loop {
            let cmd = self.request.name.acquire(self.lease, None, self.options.kind);
            let requested = Instant::now();
            match self.send_grant(&cmd).await {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    let Some(grant) = read_grant(reply)? else { return Ok(None) };
                    self.leaves_something = true;
                    let lease = self.lease.unwrap_or(grant.lease);
                    // The hold limit may be shorter than the server's default.
                    if self.options.limit_lease(lease) < lease {
                        return self.confirm(grant).await;
                    }
                    self.check_replicas(lease)?;
                    return self.complete(grant, lease, requested).map(Some);
                }
                Err(error) => self.shorten_lease(error)?,
            }
        }
    }

    /// Waits in the server's queue until the lock is granted.
    async fn wait(&mut self) -> Result<Grant, Error> {
        self.request.patience_end = from_now(FAR_FUTURE);
        self.request.restarts_patience = false;
        loop {
            if self.is_over() {
                return Err(self.busy());
            }
            let slice = self.time_left().min(SLICE);
            let is_last = self.limit.is_some_and(|_| self.time_left() <= SLICE);
            // Rounded up, as 0 waits without limit.
            let millis = if is_last { millis(slice) + 1 } else { millis(slice) };
            let short = self.lease.map(|lease| lease.min(SHORT_LEASE));
            let cmd = self.request.name.acquire(short, Some((millis, is_last)), self.options.kind);
            let limit = Duration::from_millis(millis) + self.client.settings.response_limit;
            let is_place_kept = std::mem::replace(&mut self.leaves_something, true);
            match self.request.send(&mut Via::Own(&mut self.connection), &cmd, limit).await {
                Ok(None) => {}
                Ok(Some(reply)) => match read_grant(reply)? {
                    Some(grant) => return Ok(grant),
                    None if is_last => {
                        self.leaves_something = false;
                        return Err(self.busy());
                    }
                    None => {}
                },
                Err(error) => {
                    self.leaves_something = is_place_kept;
                    self.shorten_lease(error)?;
                }
            }
        }
    }

    /// Sets the whole lease. `None`: the grant has ended meanwhile.
    async fn confirm(&mut self, grant: Grant) -> Result<Option<Arc<Tenure>>, Error> {
        self.request.patience_end = from_now(self.client.settings.patience);
        self.request.restarts_patience = self.waits;
        let short_lease = self.lease.unwrap_or(grant.lease).min(SHORT_LEASE);
        let confirmed_until = lease_end(short_lease, Instant::now());
        loop {
            let lease = self.options.limit_lease(self.lease.unwrap_or(grant.lease));
            let cmd = self.request.name.renew(lease, grant.token, 1, self.options.kind);
            let requested = Instant::now();
            match self.send_grant(&cmd).await {
                Ok(None) if self.waits && Instant::now() >= confirmed_until => return Ok(None),
                Ok(None) => {}
                Ok(Some(_)) => {
                    self.check_replicas(lease)?;
                    return self.complete(grant, lease, requested).map(Some);
                }
                Err(error) if error.code() == Some("NOTHELD") => return Ok(None),
                // The grant has ended by now, and the wait goes on.
                Err(Error::Unreachable { .. }) if self.waits && !self.is_over() => return Ok(None),
                Err(error) => {
                    self.lease = Some(lease);
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

    /// Sends a request for a grant, and WAIT behind it if replicas are to confirm it.
    async fn send_grant(&mut self, cmd: &Cmd) -> Result<Option<Value>, Error> {
        let limit = self.client.settings.response_limit;
        let Some((count, within)) = self.options.replicas else {
            return self.request.send(&mut Via::Shared, cmd, limit).await;
        };
        // 0 would wait without limit.
        let wait = redis::cmd("WAIT").arg(count).arg(millis(within).max(1)).to_owned();
        self.request.then = Some((wait, within));
        // WAIT is about the commands before it on the same connection, and would hold up those of others.
        let mut via = Via::Own(&mut self.connection);
        let reply = self.request.send(&mut via, cmd, limit).await;
        self.request.then = None;
        reply
    }

    /// Checks that enough replicas have confirmed the grant, if the caller wants that.
    fn check_replicas(&mut self, lease: u64) -> Result<(), Error> {
        let Some((wanted, _)) = self.options.replicas else { return Ok(()) };
        self.options.check_replicas(lease)?;
        let reached = self.request.then_reply.take().and_then(|reply| read(reply).ok()).unwrap_or(0);
        if reached < wanted {
            return Err(Error::Unreplicated { key: self.request.name.shown(), reached, wanted });
        }
        Ok(())
    }

    fn complete(&mut self, grant: Grant, lease: u64, requested: Instant) -> Result<Arc<Tenure>, Error> {
        let terms = Terms {
            token: grant.token,
            holds: 1,
            kind: self.options.kind,
            lease,
            deadline: lease_end(lease, requested),
            is_renewed: !self.options.without_renewal,
            hold_end: self.options.hold_limit.map(|limit| requested + limit.min(FAR_FUTURE)),
        };
        self.leaves_something = false;
        self.request.may_have_run = false;
        self.keep_connection();
        Ok(Tenure::new(self.client, Arc::clone(&self.request.name), terms))
    }

    fn time_left(&self) -> Duration {
        self.limit.map_or(FAR_FUTURE, until)
    }

    fn is_over(&self) -> bool {
        self.options.waits_not() || self.time_left().is_zero()
    }

    fn busy(&mut self) -> Error {
        self.keep_connection();
        Error::Busy { key: self.request.name.shown() }
    }

    /// Keeps the connection for the next waiter.
    fn keep_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.client.keep_idle(connection);
        }
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if !self.leaves_something && !self.request.may_have_run {
            return;
        }
        // It closes before the server reads the release.
        self.connection = None;
        let name = Arc::clone(&self.request.name);
        // On the connection of a request without a reply the server reads it after that request, even if it was stopped.
        let started = self.client.send_now(
            self.client.slot(&name.key),
            self.request.shared.take().filter(|_| self.request.may_have_run),
            name.give_up(),
        );
        let client = Arc::clone(self.client);
        let giving_up = async move {
            if let Some(started) = started
                && started.await.is_ok_and(|reply| matches!(reply, Value::Int(_)))
            {
                return;
            }
            let _ = Request::new(&client, &name).repeat(&name.give_up()).await;
        };
        // The timer is made in the job: there may be no runtime here.
        self.client.spawn_job(async move {
            let _ = timeout(GIVE_UP_LIMIT, giving_up).await;
        });
    }
}
