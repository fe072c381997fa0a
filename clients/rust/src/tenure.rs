//! A tenure of one key, or of several keys as one lock: its state in this process, and its renewals.
//!
//! No timer ends a lease: each check of a tenure compares the end of its first lease with the clock. So a lease ends on
//! time even if no task runs. Each tenure has a task that renews its leases. All renewals to a server share one
//! connection, so the client sends renewals together if they are due at the same time. A server that does not answer
//! delays only the renewals of its own locks.

use crate::commands::{Grant, Grants, Kind, OwnedKey, read_one};
use crate::error::{Error, Loss};
use crate::request::Request;
use crate::servers::Inner;
use crate::time::{FAR_FUTURE, from_now, lease_end, millis, until};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

/// The longest pause after any renewal.
const PAUSE_AFTER_RENEWAL: Duration = Duration::from_millis(50);

/// The errors that say that the owner does not hold the key.
pub(crate) const LOSSES: [&str; 3] = ["NOTHELD", "HOLDS", "WRONGTYPE"];

/// Leases have whole milliseconds. So a lease that ends this close to the hold limit counts as the last lease.
const TICK: Duration = Duration::from_millis(2);

pub(crate) struct Tenure {
    pub(crate) client: Arc<Inner>,
    pub(crate) state: watch::Sender<State>,
}

#[derive(Clone)]
pub(crate) struct State {
    /// The keys that the owner may still hold at the server.
    pub(crate) keys: Grants,
    /// When the first lease ends by this process's clock, if the client does not renew the leases again.
    pub(crate) deadline: Instant,
    /// When the last lease ends at the latest.
    pub(crate) last_deadline: Instant,
    /// The lease that each renewal asks for, in milliseconds.
    pub(crate) lease: u64,
    /// Whether the client renews the leases. This is always true while the client waits for further keys.
    pub(crate) is_renewed: bool,
    /// When the hold limit begins. This is when the client requested the last key. But if the client waited for this
    /// key, it is when the grant arrived.
    pub(crate) since: Option<Instant>,
    /// The end of the hold limit: no lease ends later.
    pub(crate) hold_end: Option<Instant>,
    /// The server's error, if the server has refused the last renewal.
    pub(crate) refusal: Option<String>,
    /// How the tenure was lost: [`Error::Lost`].
    pub(crate) end: Option<Error>,
}

impl State {
    /// # Errors
    /// [`Error::Lost`] if the tenure has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let first = || self.keys.keys().next().filter(|_| self.deadline <= Instant::now());
        let loss = || match &self.refusal {
            _ if self.is_last_lease() => Loss::HoldLimitOver,
            Some(refusal) => Loss::RenewalRefused(refusal.clone()),
            None => Loss::LeaseOver,
        };
        let end = self.end.clone().or_else(|| first().map(|name| name.lost_by(loss())));
        end.map_or(Ok(()), Err)
    }

    /// Whether the lease ends with the hold limit.
    fn is_last_lease(&self) -> bool {
        let tolerance = Duration::from_millis(self.lease) / 100 + TICK;
        self.hold_end.is_some_and(|end| self.deadline + tolerance >= end)
    }

    /// When to renew next: when a third of the lease has passed. If a renewal has failed, after a pause.
    fn next_renewal(&self) -> Option<Instant> {
        let lease = Duration::from_millis(self.lease);
        if self.keys.is_empty() || self.check().is_err() || self.is_last_lease() || !self.is_renewed {
            return None;
        }
        let pause = (lease / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let third = self.deadline.checked_sub(lease / 3 * 2).filter(|third| !until(*third).is_zero());
        Some(third.unwrap_or_else(|| from_now(pause)))
    }
}

impl Tenure {
    /// A tenure without keys. The caller adds the keys.
    pub(crate) fn new(client: &Arc<Inner>) -> Self {
        let state = State {
            keys: Grants::new(),
            deadline: from_now(FAR_FUTURE),
            last_deadline: Instant::now(),
            lease: u64::MAX,
            is_renewed: true,
            since: None,
            hold_end: None,
            refusal: None,
            end: None,
        };
        Self { client: Arc::clone(client), state: watch::Sender::new(state) }
    }

    /// Adds keys. `lease` is the lease that renewals ask for, in milliseconds. For `since` see [`State::since`].
    pub(crate) fn add(&self, keys: Grants, deadline: Instant, lease: u64, since: Option<Instant>) {
        self.state.send_modify(|state| {
            state.keys.extend(keys);
            state.deadline = state.deadline.min(deadline);
            state.last_deadline = state.last_deadline.max(deadline);
            (state.lease, state.since) = (state.lease.min(lease), state.since.max(since));
        });
    }

    /// Adds the keys of another tenure. The first call begins the renewals in the background.
    pub(crate) fn join(self: &Arc<Self>, other: &Self) {
        let is_first = self.state.borrow().keys.is_empty();
        let State { keys, deadline, lease, since, .. } = other.state();
        self.add(keys, deadline, lease, since);
        if is_first {
            self.client.runtime.spawn(Arc::clone(self).renew_until_over());
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// # Errors
    /// [`Error::Lost`] if the tenure has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.state.borrow().check()
    }

    /// Ends the tenure in this process, if it has not ended before.
    ///
    /// # Errors
    /// [`Error::Lost`] if the tenure had ended before.
    pub(crate) fn end(&self, lost: Error) -> Result<(), Error> {
        let mut earlier = Ok(());
        self.state.send_modify(|state| {
            earlier = state.check();
            state.end.get_or_insert_with(|| earlier.clone().err().unwrap_or(lost));
        });
        earlier
    }

    /// Returns the error that the caller of a failed request gets. If the error's code is one of `losses`, the tenure
    /// ends, and the caller gets [`Error::Lost`].
    pub(crate) fn judge(&self, name: &Arc<OwnedKey>, error: Error, losses: &[&str]) -> Error {
        let Error::Refused { code, message, .. } = &error else { return error };
        if !losses.contains(&&**code) {
            return error;
        }
        let lost = name.lost_by(Loss::NotHeld(message.clone()));
        let _ = self.end(lost.clone());
        self.forget(name);
        lost
    }

    /// Removes a key that the server does not hold for the owner any more.
    pub(crate) fn forget(&self, name: &Arc<OwnedKey>) {
        self.state.send_modify(|state| _ = state.keys.remove(name));
    }

    /// Changes a tenure that is not over.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_if_modified(|state| {
            let is_held = state.check().is_ok();
            if is_held {
                change(state);
            }
            is_held
        });
    }

    fn change_grant(&self, name: &OwnedKey, change: impl FnOnce(&mut Grant)) {
        self.change(|state| _ = state.keys.get_mut(name).map(change));
    }

    /// Renews the leases until the tenure is over.
    async fn renew_until_over(self: Arc<Self>) {
        let (mut changes, mut breaks) = (self.state.subscribe(), self.client.broken.subscribe());
        loop {
            changes.mark_unchanged();
            let next = self.state.borrow().next_renewal();
            let Some(next) = next else { return };
            tokio::select! {
                () = sleep_until(next.into()) => {}
                Ok(()) = breaks.changed() => {}
                _ = changes.changed() => continue,
            }
            // If the renewal finds a loss, the tenure's state has the error. After any other error this loop renews the
            // tenure again.
            let refusal = match self.renew(FAR_FUTURE, false).await {
                Err(Error::Refused { code, message, .. }) => Some(format!("{code} {message}")),
                _ => None,
            };
            self.change(|state| state.refusal = refusal);
            // A server may close the connection after each reply. Without this pause the client would then send renewals
            // without a break.
            let lease = Duration::from_millis(self.state.borrow().lease);
            sleep((lease / 20).min(PAUSE_AFTER_RENEWAL)).await;
        }
    }

    /// Sets new leases, within `patience`. For `is_downgrade` see [`renew_key`](Self::renew_key).
    ///
    /// # Errors
    /// The errors of [`renew_key`](Self::renew_key).
    pub(crate) async fn renew(&self, patience: Duration, is_downgrade: bool) -> Result<(), Error> {
        self.check()?;
        let keys = self.state().keys;
        let renewals = keys.iter().map(async |(name, grant)| {
            let mut request = Request::new(&self.client, vec![Arc::clone(name)], from_now(patience));
            self.renew_key(&mut request, is_downgrade.then(|| grant.kind())).await
        });
        let renewed: Result<Vec<_>, _> = join_all(renewals).await.into_iter().collect();
        self.check()?;
        let ends = renewed?;
        self.change(|state| {
            // If the client has acquired a further key during the renewals, its lease may end earlier.
            if ends.len() == state.keys.len() {
                state.deadline = ends.into_iter().chain(state.hold_end).min().unwrap_or(state.deadline);
            }
        });
        self.check()
    }

    /// Sets a new lease for the only key of a request, and returns when this lease ends. The time limit of each attempt
    /// is a sixth of the lease. The attempts end when the tenure's first lease ends, or when a limit of the request is
    /// reached. If the renewal is a downgrade, it names the kind `downgrade`. If not, it names the kinds that the lock
    /// may have, until the server accepts one of them.
    ///
    /// # Errors
    /// [`Error::Lost`] if the tenure has ended. If the tenure is not over, the error of the last attempt.
    pub(crate) async fn renew_key(
        &self,
        request: &mut Request,
        downgrade: Option<Kind>,
    ) -> Result<Instant, Error> {
        let Some(name) = &request.names.first().cloned() else { return Ok(self.state.borrow().deadline) };
        request.deadline = request.deadline.min(self.state.borrow().deadline);
        let response_limit = self.client.settings.response_limit;
        let (mut deadline, mut kind) = (Instant::now(), Kind::default());
        loop {
            let renewed = request.ask(|longest_lease| {
                self.check()?;
                self.change(|state| state.lease = state.lease.min(longest_lease));
                let State { lease, hold_end, .. } = *self.state.borrow();
                let grant = self.state.borrow().keys.get(name).cloned();
                let grant = grant.ok_or_else(|| name.lost_by(Loss::Released))?;
                kind = downgrade.unwrap_or_else(|| grant.kind());
                let lease = hold_end.map_or(lease, |end| lease.min(millis(until(end)).max(1)));
                deadline = lease_end(lease, Instant::now());
                // If the new lease ends before the old lease, the new end applies from now on, because the server may
                // set the new lease even if its reply is lost.
                self.change(|state| state.deadline = state.deadline.min(deadline));
                let limit = Duration::from_millis((lease / 6).saturating_add(1)).min(response_limit);
                Ok((vec![name.renew(grant.token, lease, kind)], limit))
            });
            let Err(error) = renewed.await.and_then(read_one::<u64>) else { break };
            let is_wrong_kind = matches!(error.code(), Some("LIMIT" | "ERR"));
            let mut names_another_kind = false;
            if is_wrong_kind || downgrade.is_some() && error.code().is_some() {
                let may_have_run = !is_wrong_kind && request.may_have_run;
                self.change_grant(name, |grant| names_another_kind = grant.reject(kind, may_have_run));
            }
            if downgrade.is_some() || !names_another_kind {
                return Err(self.judge(name, error, &LOSSES));
            }
        }
        self.change(|state| state.last_deadline = state.last_deadline.max(deadline));
        self.change_grant(name, |grant| {
            if grant.kind() == kind {
                grant.kinds.truncate(1);
            }
        });
        Ok(deadline)
    }
}
