//! Acquires the first hold of an owner.
//!
//! | state | what happens | next |
//! | --- | --- | --- |
//! | `Try` | ACQUIRE on the shared connection, without a wait | granted: `Confirm`; busy: `WaitForPermit`, or the end |
//! | `WaitForPermit` | the caller waits until a connection may wait for it | a permit: `WaitInQueue`; after a pause: `Try` |
//! | `WaitInQueue` | ACQUIRE BLOCK on a connection of its own | granted: `Confirm`; busy: the end |
//! | `Confirm` | RENEW after a long wait, and WAIT for replicas | `Held` |
//! | `Held` | | the end |
//!
//! `Confirm` goes back to `Try` or `WaitInQueue` when the tenure has ended meanwhile. That grants nothing twice, as each
//! request names one hold.

use crate::attempts::{AttemptError, Attempts};
use crate::background::Task;
use crate::client_state::ClientState;
use crate::commands::{Block, Grant, Mode, OwnedKey, read_grant};
use crate::connections::{ConnectionKind, DedicatedConnection};
use crate::error::{Error, Loss};
use crate::lease::{Lease, UNKNOWN_LEASE, lease_end};
use crate::tenure::Tenure;
use crate::time::{Pauses, from_now, millis};
use crate::withdrawal::AbandonedAcquire;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{AcquireError, OwnedMutexGuard, SemaphorePermit};
use tokio::time::timeout_at;

/// An attempt that lasted more than this many response limits was waiting in the queue. If it fails, an outage begins then.
const QUEUED_AFTER: u32 = 3;

/// What the caller of an acquisition asks for.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) mode: Mode,
    pub(crate) lease: Option<Duration>,
    pub(crate) is_renewed: bool,
    pub(crate) hold_limit: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) replicas: Option<(usize, Duration)>,
}

impl AcquireRequest {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.mode.check()?;
        if self.lease.is_some_and(|lease| millis(lease) == 0) {
            return Err(Error::Invalid("a lease must be at least 1 millisecond"));
        }
        if self.hold_limit.is_some_and(|limit| millis(limit) == 0) {
            return Err(Error::Invalid("a hold limit must be at least 1 millisecond"));
        }
        self.lease.map_or(Ok(()), |lease| self.check_replicas(millis(lease)))
    }

    /// Checks the time for replicas against a lease in milliseconds.
    fn check_replicas(&self, lease: u64) -> Result<(), Error> {
        if self.replicas.is_some_and(|(_, within)| within >= Duration::from_millis(lease)) {
            return Err(Error::Invalid("the time for replicas must be shorter than the lease"));
        }
        Ok(())
    }

    /// The lease or the hold limit, whichever is shorter, in milliseconds.
    fn limit_lease(&self, lease: u64) -> u64 {
        self.hold_limit.map_or(lease, |limit| lease.min(millis(limit)))
    }

    /// The lease to request, in milliseconds. `None` is the server's default.
    fn named_lease(&self) -> Option<u64> {
        self.lease.map(|lease| self.limit_lease(millis(lease)))
    }
}

/// An acquisition that may leave a waiter or a grant at the server. If it is dropped before it is completed or cancelled,
/// the background task withdraws it.
struct PendingAcquire<'a> {
    client: &'a ClientState,
    key: &'a OwnedKey,
    /// Whether the server has granted the lock. The reply may still be of no use: the lease is over.
    may_be_granted: bool,
    may_be_queued: bool,
    /// After this time a grant has ended by itself.
    lease: Duration,
    owner_lock: Option<OwnedMutexGuard<Weak<Tenure>>>,
    /// Whether there is nothing to withdraw.
    is_over: bool,
}

impl PendingAcquire<'_> {
    /// Makes the tenure, and registers it for a named owner.
    fn complete(mut self, grant: Grant, mode: Mode, lease: Lease, deadline: Instant) -> Arc<Tenure> {
        self.is_over = true;
        let owner_mutex = self.owner_lock.as_ref().map(|lock| Arc::clone(OwnedMutexGuard::mutex(lock)));
        let tenure = Arc::new(Tenure::new(self.key.clone(), grant, mode, lease, deadline, owner_mutex));
        if let Some(lock) = &mut self.owner_lock {
            **lock = Arc::downgrade(&tenure);
        }
        tenure
    }

    fn cancel(&mut self) {
        self.is_over = true;
    }
}

impl Drop for PendingAcquire<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.client.enqueue(Task::Withdraw(AbandonedAcquire {
                key: self.key.clone(),
                may_be_queued: self.may_be_queued,
                lease: self.lease,
                owner_lock: self.owner_lock.take(),
            }));
        }
    }
}

enum State {
    Try,
    WaitForPermit { last_try: Instant },
    WaitInQueue,
    Confirm { grant: Grant, requested: Instant },
    Held { grant: Grant, lease: u64, deadline: Instant },
}

/// The first acquisition of an owner, in progress.
pub(crate) struct Acquisition<'a> {
    client: &'a ClientState,
    key: &'a OwnedKey,
    request: &'a AcquireRequest,
    /// The end of the wait.
    limit: Option<Instant>,
    /// Requests are repeated until then, even if the wait is over.
    patience_end: Instant,
    pauses: Pauses,
    attempts: Attempts<'a>,
    permit: Option<SemaphorePermit<'a>>,
    /// It closes before `pending` is withdrawn.
    connection: Option<DedicatedConnection>,
    pending: PendingAcquire<'a>,
}

impl<'a> Acquisition<'a> {
    /// `limit` is the end of the wait.
    pub(crate) fn new(
        client: &'a ClientState,
        key: &'a OwnedKey,
        request: &'a AcquireRequest,
        limit: Option<Instant>,
        owner_lock: Option<OwnedMutexGuard<Weak<Tenure>>>,
    ) -> Self {
        let patience_end = Instant::now() + client.servers.settings.patience;
        Self {
            client,
            key,
            request,
            limit,
            patience_end,
            pauses: Pauses::new(50, 1_000),
            attempts: client.servers.attempts(&key.key, limit.unwrap_or(patience_end).max(patience_end)),
            permit: None,
            connection: None,
            pending: PendingAcquire {
                client,
                key,
                may_be_granted: false,
                may_be_queued: false,
                lease: request.named_lease().map_or(UNKNOWN_LEASE, Duration::from_millis),
                owner_lock,
                is_over: false,
            },
        }
    }

    /// Acquires the lock as an owner that holds nothing, as far as this process knows.
    ///
    /// If the future is dropped, the background task withdraws the acquisition.
    pub(crate) async fn acquire_first_hold(mut self) -> Result<Arc<Tenure>, Error> {
        let mut permit = pin!(self.client.wait_permits.acquire());
        let mut state = State::Try;
        loop {
            state = match state {
                State::Try => self.try_once().await?,
                State::WaitForPermit { last_try } => self.wait_for_permit(last_try, permit.as_mut()).await?,
                State::WaitInQueue => self.wait_in_queue().await?,
                State::Confirm { grant, requested } => self.confirm(grant, requested).await?,
                State::Held { grant, lease, deadline } => return Ok(self.complete(grant, lease, deadline)),
            }
        }
    }

    /// Asks once, as a free lock needs no connection of its own.
    async fn try_once(&mut self) -> Result<State, Error> {
        let requested = Instant::now();
        match self.send_acquire(Block::No, requested).await? {
            Some(state) => Ok(state),
            None if self.limit.is_some_and(|limit| limit <= requested) => Err(self.busy()),
            None => Ok(State::WaitForPermit { last_try: requested }),
        }
    }

    /// Waits for a permit, and tries the lock now and then: all permits may be taken by callers that wait for a lock that
    /// this caller holds.
    async fn wait_for_permit(
        &mut self,
        last_try: Instant,
        permit: Pin<&mut impl Future<Output = Result<SemaphorePermit<'a>, AcquireError>>>,
    ) -> Result<State, Error> {
        let next_try = last_try + self.pauses.next_pause();
        let until = self.limit.map_or(next_try, |limit| limit.min(next_try));
        let state = match timeout_at(until.into(), permit).await {
            Ok(Ok(permit)) => {
                self.permit = Some(permit);
                State::WaitInQueue
            }
            Err(_) if self.limit.is_none_or(|limit| Instant::now() < limit) => State::Try,
            Ok(Err(_)) | Err(_) => return Err(self.busy()),
        };
        if self.limit.is_none() {
            self.attempts.deadline = Instant::now() + self.attempts.settings().patience;
        }
        Ok(state)
    }

    /// Waits in the server's queue, on a connection of its own.
    async fn wait_in_queue(&mut self) -> Result<State, Error> {
        let requested = Instant::now();
        let block = match self.limit {
            Some(limit) => Block::For(limit.saturating_duration_since(requested)),
            None => Block::WithoutLimit,
        };
        self.pending.may_be_queued = true;
        match self.send_acquire(block, requested).await? {
            Some(state) => Ok(state),
            None => Err(self.busy()),
        }
    }

    /// Sends ACQUIRE once. Returns the next state, or `None` if the lock is busy.
    async fn send_acquire(&mut self, block: Block, requested: Instant) -> Result<Option<State>, Error> {
        let cmd = self.key.acquire(self.request.named_lease(), 1, self.request.mode, block);
        let response_limit = self.attempts.settings().response_limit;
        let (mut kind, limit) = match block {
            Block::No => (ConnectionKind::Shared, Some(response_limit)),
            Block::For(wait) => {
                (ConnectionKind::Dedicated(&mut self.connection), Some(wait.saturating_add(response_limit)))
            }
            Block::WithoutLimit => (ConnectionKind::Dedicated(&mut self.connection), None),
        };
        let reply = match self.attempts.send(&mut kind, &cmd, limit).await {
            Ok(reply) => read_grant(reply)?,
            Err(error) => {
                self.wait_to_retry(error, requested).await?;
                return Ok(Some(self.ask_again()));
            }
        };
        let Some(grant) = reply else { return Ok(None) };
        self.pending.may_be_queued = false;
        self.pending.may_be_granted = true;
        // What follows has the client's patience, even if the wait was longer.
        let patience_end = Instant::now() + self.attempts.settings().patience;
        self.attempts.deadline = self.attempts.deadline.max(patience_end);
        Ok(Some(State::Confirm { grant, requested }))
    }

    /// Waits until ACQUIRE may be sent again.
    async fn wait_to_retry(&mut self, error: AttemptError, requested: Instant) -> Result<(), Error> {
        let settings = self.attempts.settings();
        if self.limit.is_none() && requested.elapsed() > settings.response_limit * QUEUED_AFTER {
            self.attempts.deadline = Instant::now() + settings.patience;
        }
        let Err(error) = self.attempts.wait_to_retry(error).await else { return Ok(()) };
        if !self.attempts.may_have_run && !self.pending.may_be_granted {
            self.pending.cancel();
        }
        Err(error)
    }

    async fn confirm(&mut self, grant: Grant, requested: Instant) -> Result<State, Error> {
        let named = self.request.named_lease();
        let mut lease = named.unwrap_or_else(|| self.request.limit_lease(grant.lease));
        self.request.check_replicas(lease)?;
        self.pending.lease = Duration::from_millis(grant.lease);
        loop {
            match self.confirmed_deadline(grant, lease, requested).await {
                Ok(deadline) => return Ok(State::Held { grant, lease, deadline }),
                Err(Error::Lost(_)) => return self.ask_again_after_loss(),
                // The server's limit was lowered during the wait.
                Err(error) => match error.longest_lease().filter(|longest| *longest < lease) {
                    Some(longest) if named.is_none() => lease = longest,
                    _ => return Err(error),
                },
            }
        }
    }

    /// Makes sure that the grant is held with its whole lease, in milliseconds, and that enough replicas have it. Returns the
    /// end of the lease by this process's clock.
    async fn confirmed_deadline(
        &mut self,
        grant: Grant,
        lease: u64,
        requested: Instant,
    ) -> Result<Instant, Error> {
        let is_set = self.request.lease.is_some() || lease == grant.lease;
        // After a short wait most of the lease is left, counted from the request. After a long one it may be over, as the
        // client does not know when the server began to count.
        let is_fresh = requested.elapsed() < Duration::from_millis(lease / 3);
        if is_set && is_fresh && self.request.replicas.is_none() {
            return Ok(lease_end(lease, requested));
        }
        let cmd = self.key.renew(lease, grant.token, grant.holds, self.request.mode);
        let Some((wanted, within)) = self.request.replicas else {
            let (requested, _) = self.attempts.timed_request(&cmd).await?;
            return Ok(lease_end(lease, requested));
        };
        loop {
            let requested = Instant::now();
            let mut kind = ConnectionKind::Dedicated(&mut self.connection);
            let reply = self.attempts.attempt(&mut kind, &cmd).await?;
            // WAIT is about the commands before it on the same connection.
            if let (Some(_), Some(connection)) = (reply, &mut self.connection) {
                let response_limit = self.attempts.settings().response_limit;
                let reached = connection.wait_for_replicas(wanted, within, response_limit).await?;
                if reached < wanted {
                    return Err(Error::Unreplicated { reached, wanted });
                }
                return Ok(lease_end(lease, requested));
            }
        }
    }

    /// The request again, in its last form.
    fn ask_again(&self) -> State {
        if self.permit.is_some() { State::WaitInQueue } else { State::Try }
    }

    /// Asks again when a granted lease has ended before the client could confirm it. That happens if replies take longer than the
    /// lease.
    fn ask_again_after_loss(&mut self) -> Result<State, Error> {
        if self.limit.is_some_and(|limit| limit.max(self.patience_end) <= Instant::now()) {
            self.pending.cancel();
            return Err(Error::Lost(Loss::LeaseOver));
        }
        self.pending.may_be_granted = false;
        Ok(self.ask_again())
    }

    fn busy(&mut self) -> Error {
        if let Some(connection) = self.connection.take() {
            connection.keep_idle();
        }
        self.pending.cancel();
        Error::Busy
    }

    fn complete(self, grant: Grant, lease: u64, deadline: Instant) -> Arc<Tenure> {
        if let Some(connection) = self.connection {
            connection.keep_idle();
        }
        let lease = Lease::new(lease, self.request.is_renewed, self.request.hold_limit.map(from_now));
        self.pending.complete(grant, self.request.mode, lease, deadline)
    }
}
