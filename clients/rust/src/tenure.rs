//! A tenure as this process knows it.
//!
//! It keeps two counts: the guards in this process, and the holds that the server counts at most. Requests that change the
//! holds go one after the other, under one mutex. A request whose reply was lost counts as carried out, and
//! [`Tenure::release_surplus`] then releases the difference. Each request names the number of holds that it leads to, so
//! it can be repeated.

use crate::attempts::Attempts;
use crate::commands::{Block, Grant, Mode, OwnedKey, read, read_grant};
use crate::connections::ConnectionKind;
use crate::error::{Error, Loss};
use crate::lease::{Lease, lease_end};
use crate::servers::Servers;
use redis::{Cmd, Value};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, watch};

/// One acquisition at a time for an owner that the caller has named, and the tenure that the last one got.
pub(crate) type OwnerMutex = Mutex<Weak<Tenure>>;

pub(crate) struct Tenure {
    /// Unique in this process.
    pub(crate) id: u64,
    pub(crate) key: OwnedKey,
    pub(crate) token: u64,
    mode: Mode,
    pub(crate) lease: Lease,
    guards: AtomicU32,
    /// How many holds the server counts, at most.
    server_holds: Mutex<u32>,
    state: watch::Sender<TenureState>,
    /// Keeps the mutex of a named owner alive, so that the next acquisition finds this tenure.
    _owner_mutex: Option<Arc<OwnerMutex>>,
}

/// Whether a tenure is held.
#[derive(Clone, Debug)]
pub(crate) struct TenureState {
    /// When the lease ends, unless it is renewed.
    pub(crate) deadline: Instant,
    pub(crate) end: Option<Loss>,
}

impl TenureState {
    fn is_held(&self) -> bool {
        self.end.is_none() && Instant::now() < self.deadline
    }

    /// Why the tenure is over, if it is.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.end.clone().or_else(|| (!self.is_held()).then_some(Loss::LeaseOver))
    }
}

impl Tenure {
    /// A tenure with one guard.
    pub(crate) fn new(
        key: OwnedKey,
        grant: Grant,
        mode: Mode,
        lease: Lease,
        deadline: Instant,
        owner_mutex: Option<Arc<OwnerMutex>>,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            key,
            token: grant.token,
            mode,
            lease,
            guards: AtomicU32::new(1),
            server_holds: Mutex::new(grant.holds),
            state: watch::Sender::new(TenureState { deadline, end: None }),
            _owner_mutex: owner_mutex,
        }
    }

    pub(crate) fn state(&self) -> TenureState {
        self.state.borrow().clone()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state.borrow().is_held()
    }

    pub(crate) fn watch_state(&self) -> watch::Receiver<TenureState> {
        self.state.subscribe()
    }

    pub(crate) fn guards(&self) -> u32 {
        self.guards.load(Ordering::Acquire)
    }

    /// Counts one guard less. The server still counts its hold, until [`release_surplus`](Self::release_surplus).
    pub(crate) fn remove_guard(&self) {
        self.guards.fetch_sub(1, Ordering::AcqRel);
    }

    /// Ends the tenure in this process. The first reason stays.
    pub(crate) fn end(&self, loss: Loss) {
        self.state.send_if_modified(|state| {
            let is_first = state.end.is_none();
            if is_first {
                state.end = Some(state.loss().unwrap_or(loss));
            }
            is_first
        });
    }

    /// Notes a lease that the server has given, longer or shorter than before. A tenure that is over stays over.
    fn note_lease(&self, deadline: Instant) {
        self.state.send_if_modified(|state| {
            let is_held = state.is_held();
            if is_held {
                state.deadline = deadline;
            }
            is_held
        });
    }

    /// Notes a lease that is about to be requested. If it is shorter than what is left, it counts from now on: the server
    /// may set it although its reply is lost.
    fn note_lease_request(&self, millis: u64, requested: Instant) {
        let deadline = lease_end(millis, requested);
        self.state.send_if_modified(|state| {
            let is_shorter = deadline < state.deadline;
            if is_shorter {
                state.deadline = deadline;
            }
            is_shorter
        });
    }

    /// Ends the tenure if the server has denied it.
    fn note_error(&self, error: &Error) {
        if let Error::Lost(loss) = error {
            self.end(loss.clone());
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.state().loss().map_or(Ok(()), |loss| Err(Error::Lost(loss)))
    }

    /// The lease to request now, in milliseconds, and the present instant.
    fn lease_to_request(&self) -> Result<(u64, Instant), Error> {
        let now = Instant::now();
        let lease = self.lease.to_request_at(now).filter(|_| now < self.state().deadline);
        lease.map(|millis| (millis, now)).ok_or(Error::Lost(Loss::LeaseOver))
    }

    /// Sets a new lease. Repeats the request until the lease is over, or `limit` has passed.
    ///
    /// # Errors
    /// [`Error::Lost`] when the tenure is over; otherwise the error of the last attempt.
    pub(crate) async fn renew(&self, servers: &Servers, limit: Option<Duration>) -> Result<(), Error> {
        let limit = limit.map(|limit| Instant::now() + limit);
        let deadline = self.state().deadline;
        let mut attempts = servers.attempts(&self.key.key, limit.unwrap_or(deadline).min(deadline));
        loop {
            // Locked for one attempt only, so that a guard can enter or leave while no server answers.
            let server_holds = self.server_holds.lock().await;
            self.check()?;
            let (millis, requested) = self.lease_to_request()?;
            let holds = self.guards();
            if holds == 0 {
                return Ok(());
            }
            self.note_lease_request(millis, requested);
            let cmd = self.key.renew(millis, self.token, holds, self.mode);
            let third = Duration::from_millis(millis / 3 + 1);
            let limit = servers.settings.response_limit.min(third);
            let sent = attempts.send(&mut ConnectionKind::Shared, &cmd, Some(limit)).await;
            drop(server_holds);
            match sent {
                Ok(reply) => {
                    let _: u64 = read(reply)?;
                    self.note_lease(lease_end(millis, requested));
                    return self.check();
                }
                Err(error) => {
                    if let Err(error) = attempts.wait_to_retry(error).await
                        && !self.lease.shorten_if_too_long(millis, &error)
                    {
                        self.note_error(&error);
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Runs a command while the server has this tenure. It is not sent again when a server may have carried it out. If the server
    /// denies the tenure, it is renewed first: a server in quarantine restores it.
    ///
    /// # Errors
    /// [`Error::Lost`] when the tenure is over; otherwise the error of the command or of the last attempt.
    pub(crate) async fn guarded(&self, servers: &Servers, inner: &Cmd) -> Result<Value, Error> {
        let cmd = self.key.guard(self.token, inner);
        let mut attempts = servers.attempts(&self.key.key, Instant::now() + servers.settings.patience);
        let mut is_renewed = false;
        loop {
            self.check()?;
            let limit = Some(servers.settings.response_limit);
            let failed = match attempts.send(&mut ConnectionKind::Shared, &cmd, limit).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            match attempts.wait_to_retry_unless_run(failed).await {
                Ok(()) => {}
                Err(Error::Lost(_)) if !is_renewed => {
                    self.renew(servers, Some(servers.settings.patience)).await?;
                    is_renewed = true;
                }
                Err(error) => {
                    self.note_error(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Adds a hold and a guard.
    ///
    /// If the future is dropped, the server may count the hold; call [`release_surplus`](Self::release_surplus) then.
    pub(crate) async fn reenter(&self, servers: &Servers) -> Result<(), Error> {
        let mut server_holds = self.server_holds.lock().await;
        let limit = Instant::now() + servers.settings.patience;
        self.release_surplus_of(servers, &mut server_holds, Some(limit)).await?;
        self.check()?;
        let guards = self.guards();
        let mut attempts = servers.attempts(&self.key.key, limit.min(self.state().deadline));
        *server_holds = guards + 1;
        if self.acquire_hold(&mut attempts, guards + 1).await?.is_some() {
            self.restore(&mut attempts, guards).await?;
            if let Some(denial) = self.acquire_hold(&mut attempts, guards + 1).await? {
                self.note_error(&denial);
                return Err(denial);
            }
        }
        self.guards.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Requests the hold that leads to `holds`. Returns an error as a value if the server denies the tenure, or counts
    /// other holds: it may have forgotten them.
    async fn acquire_hold(&self, attempts: &mut Attempts<'_>, holds: u32) -> Result<Option<Error>, Error> {
        loop {
            self.check()?;
            let (millis, requested) = self.lease_to_request()?;
            let cmd = self.key.acquire(Some(millis), holds, self.mode, Block::No);
            match attempts.attempt(&mut ConnectionKind::Shared, &cmd).await {
                Ok(Some(reply)) => {
                    // No grant, or a grant of a new tenure.
                    if read_grant(reply)?.is_none_or(|grant| grant.token != self.token) {
                        let loss = Loss::NotHeld("the lock is held by another owner".to_owned());
                        return Ok(Some(Error::Lost(loss)));
                    }
                    let deadline = lease_end(millis, requested);
                    if deadline > self.state().deadline {
                        self.note_lease(deadline);
                    }
                    return self.check().map(|()| None);
                }
                Ok(None) => {}
                Err(error) if self.lease.shorten_if_too_long(millis, &error) => {}
                Err(error) if error.code() == Some("HOLDS") => return Ok(Some(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the tenure with its token and holds to a server that denies it or counts other holds. A server in quarantine
    /// restores a tenure that it has forgotten.
    ///
    /// # Errors
    /// [`Error::Lost`] when the server still denies the tenure, or the lease is over.
    async fn restore(&self, attempts: &mut Attempts<'_>, holds: u32) -> Result<(), Error> {
        loop {
            let (millis, requested) = self.lease_to_request()?;
            self.note_lease_request(millis, requested);
            let cmd = self.key.renew(millis, self.token, holds.max(1), self.mode);
            match attempts.attempt(&mut ConnectionKind::Shared, &cmd).await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => {}
                Err(error) if self.lease.shorten_if_too_long(millis, &error) => {}
                Err(error) => {
                    self.note_error(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Releases the holds that the server counts beyond the guards. Tries until `limit`, or until the lease is over.
    /// Anybody may call it at any time.
    pub(crate) async fn release_surplus(
        &self,
        servers: &Servers,
        limit: Option<Instant>,
    ) -> Result<(), Error> {
        let mut server_holds = self.server_holds.lock().await;
        self.release_surplus_of(servers, &mut server_holds, limit).await
    }

    async fn release_surplus_of(
        &self,
        servers: &Servers,
        server_holds: &mut u32,
        limit: Option<Instant>,
    ) -> Result<(), Error> {
        while *server_holds > self.guards() {
            let is_last = self.guards() == 0;
            let loss = self.state().loss().filter(|loss| *loss != Loss::Released);
            // The server may end the tenure from here on, so nobody may take it for held.
            if is_last {
                self.end(Loss::Released);
            }
            if let Some(loss) = loss {
                return Err(Error::Lost(loss));
            }
            let left = if is_last { 0 } else { *server_holds - 1 };
            let deadline = self.state().deadline;
            let mut attempts = servers.attempts(&self.key.key, limit.unwrap_or(deadline).min(deadline));
            self.release_to(&mut attempts, *server_holds, left).await?;
            *server_holds = left;
        }
        Ok(())
    }

    /// Releases one of `holds`, so that `left` are left, or all of them.
    async fn release_to(&self, attempts: &mut Attempts<'_>, holds: u32, left: u32) -> Result<(), Error> {
        let is_last = left == 0;
        let cmd = match is_last {
            true => self.key.release_all(self.token),
            false => self.key.release(left, self.token),
        };
        let mut is_restored = false;
        loop {
            match attempts.request(&cmd).await {
                Ok(_) => return Ok(()),
                // An earlier attempt may have released it.
                Err(Error::Lost(_)) if is_last && attempts.may_have_run => return Ok(()),
                Err(Error::Lost(_)) if !is_restored => {
                    self.restore(attempts, holds).await?;
                    is_restored = true;
                }
                // The server has forgotten some of the holds. The last release ends those that are left.
                Err(error) if error.code() == Some("HOLDS") => return Ok(()),
                Err(error) => {
                    self.note_error(&error);
                    return Err(error);
                }
            }
        }
    }
}
