//! A tenure as this process knows it: whether it is held, its renewals, and the requests of its holder.
//!
//! The deadline of the lease is only compared with the clock. So a lease ends even if no task runs. A task for each tenure
//! renews it. All renewals to a server share its connection, so those that are due together are sent together. A server that
//! does not answer delays only the renewals of its own locks.

use crate::commands::{Kind, Limit, OwnedKey, Terms, read};
use crate::error::{Error, Loss};
use crate::request::Request;
use crate::servers::Inner;
use crate::time::{FAR_FUTURE, from_now, lease_end, millis, until};
use redis::{Cmd, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::sleep_until;

/// The bounds of the pause after a renewal that the server has refused.
const RENEWAL_PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];

/// Leases have whole milliseconds.
const TICK: Duration = Duration::from_millis(2);

pub(crate) struct Tenure {
    pub(crate) client: Arc<Inner>,
    pub(crate) name: Arc<OwnedKey>,
    /// The latest time at which it may have begun.
    pub(crate) since: Instant,
    state: watch::Sender<State>,
    /// There is nothing to release any more.
    is_over: AtomicBool,
}

#[derive(Clone)]
struct State {
    terms: Terms,
    /// Changes when the connection to the server that has confirmed it last breaks.
    broken: watch::Receiver<()>,
    /// When the lease ends by this process's clock, unless it is renewed.
    deadline: Instant,
    /// No lease ends after this.
    hold_end: Option<Instant>,
    is_renewed: bool,
    end: Option<Loss>,
}

impl State {
    /// Why the tenure is over, if it is.
    fn loss(&self) -> Option<Loss> {
        self.end.clone().or_else(|| (Instant::now() >= self.deadline).then_some(Loss::LeaseOver))
    }
}

impl Tenure {
    /// The tenure that a request has started or continued.
    pub(crate) fn new(request: &Request<'_>, terms: Terms, since: Instant, deadline: Instant) -> Arc<Self> {
        let broken = request.broken();
        let state = State { terms, broken, deadline, hold_end: None, is_renewed: false, end: None };
        Arc::new(Self {
            client: Arc::clone(request.client),
            name: Arc::clone(&request.name),
            since,
            state: watch::Sender::new(state),
            is_over: AtomicBool::new(false),
        })
    }

    fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(crate) fn terms(&self) -> Terms {
        self.state.borrow().terms
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.state.borrow().loss()
    }

    pub(crate) fn lease_left(&self) -> Duration {
        let state = self.state.borrow();
        if state.end.is_some() { Duration::ZERO } else { until(state.deadline) }
    }

    /// Resolves when the tenure is over. The lease is watched here, by the clock alone.
    pub(crate) fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let mut states = self.state.subscribe();
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
                    () = sleep_until(state.deadline.into()) => {}
                }
            }
        }
    }

    /// # Errors
    /// [`Error::Lost`] when the tenure is over.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.loss().map_or(Ok(()), |loss| Err(self.lost_by(loss)))
    }

    fn lost_by(&self, loss: Loss) -> Error {
        Error::Lost { key: self.name.shown(), loss }
    }

    /// Ends the tenure in this process. Returns how it was lost, if it had ended before.
    fn end(&self, loss: Loss) -> Option<Loss> {
        let mut earlier = None;
        self.state.send_if_modified(|state| {
            earlier = state.loss();
            let is_first = state.end.is_none();
            if is_first {
                state.end = Some(earlier.clone().unwrap_or(loss));
            }
            is_first
        });
        earlier
    }

    /// The error of a request of the holder. Some errors of the server mean that the tenure is lost. They end it.
    fn judge(&self, error: Error, losses: &[&str]) -> Error {
        let Error::Refused { code, message, .. } = &error else { return error };
        if !losses.contains(&&**code) {
            return error;
        }
        let loss = Loss::NotHeld(message.clone());
        self.end(loss.clone());
        self.lost_by(loss)
    }

    /// Changes a tenure that is not over.
    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_if_modified(|state| {
            let is_held = state.loss().is_none();
            if is_held {
                change(state);
            }
            is_held
        });
    }

    /// Lets no lease end after this.
    pub(crate) fn limit(&self, hold_end: Instant) {
        self.change(|state| {
            state.hold_end = Some(hold_end);
            state.deadline = state.deadline.min(hold_end);
        });
    }

    /// Renews the lease in the background until the tenure is over.
    pub(crate) fn keep_renewed(self: &Arc<Self>) {
        self.change(|state| state.is_renewed = true);
        let tenure = Arc::clone(self);
        // Most tenures have ended by then, and need no task.
        self.client.begin_soon(move || {
            if tenure.next_renewal().is_some() {
                tenure.client.runtime.spawn(Arc::clone(&tenure).renew_until_over());
            }
        });
    }

    pub(crate) fn stop_renewing(&self) {
        self.change(|state| state.is_renewed = false);
    }

    async fn renew_until_over(self: Arc<Self>) {
        let mut changes = self.state.subscribe();
        loop {
            changes.mark_unchanged();
            let Some(next) = self.next_renewal() else { return };
            let mut broken = self.state().broken;
            tokio::select! {
                () = sleep_until(next.into()) => {}
                Ok(()) = broken.changed() => self.change(|state| state.broken.mark_unchanged()),
                _ = changes.changed() => continue,
            }
            // An error that ends the tenure is in its state. After any other error it is renewed again.
            tokio::select! {
                _ = self.renew(FAR_FUTURE) => {}
                _ = changes.wait_for(|state| !state.is_renewed || state.end.is_some()) => {}
            }
        }
    }

    /// When to renew next: when a third of the lease has passed. If that failed, after a pause.
    fn next_renewal(&self) -> Option<Instant> {
        let State { terms, deadline, hold_end, is_renewed, end, .. } = self.state();
        let lease = Duration::from_millis(terms.lease);
        let now = Instant::now();
        // The last lease before the hold limit is not renewed.
        let is_last = hold_end.is_some_and(|end| deadline + lease / 100 + TICK >= end);
        if !is_renewed || end.is_some() || now >= deadline || is_last {
            return None;
        }
        let [shortest, longest] = RENEWAL_PAUSE;
        let third = deadline.checked_sub(lease / 3 * 2).filter(|third| *third > now);
        Some(third.unwrap_or_else(|| now + (lease / 20).clamp(shortest, longest)))
    }

    /// Sets a new lease, within the client's patience or a shorter one.
    ///
    /// # Errors
    /// As [`renew_by`](Self::renew_by).
    pub(crate) async fn renew(&self, patience: Duration) -> Result<(), Error> {
        let mut request = Request::new(&self.client, &self.name);
        request.patience_end = from_now(patience);
        self.renew_by(&mut request, 6).await
    }

    /// Sets a new lease. Each attempt may take this `part` of the lease, such as a 6th. The attempts end with the lease, and
    /// with the limits of the request.
    ///
    /// # Errors
    /// [`Error::Lost`] when the tenure is over; otherwise the error of the last attempt.
    pub(crate) async fn renew_by(&self, request: &mut Request<'_>, part: u64) -> Result<(), Error> {
        request.deadline = request.deadline.min(self.state.borrow().deadline);
        loop {
            self.check()?;
            let State { mut terms, hold_end, .. } = self.state();
            let since = Instant::now();
            terms.lease = hold_end.map_or(terms.lease, |end| terms.lease.min(millis(until(end))));
            if terms.lease == 0 {
                return Err(self.lost_by(Loss::LeaseOver));
            }
            // A shorter lease than the one that is left counts from now on: the server may set it even if its reply is lost.
            let deadline = lease_end(terms.lease, since);
            self.change(|state| state.deadline = state.deadline.min(deadline));
            let limit = Duration::from_millis(terms.lease / part + 1);
            let limit = limit.min(self.client.settings.response_limit);
            match request.send(&self.name.renew(terms), limit).await {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    let _: u64 = read(reply)?;
                    self.change(|state| (state.deadline, state.broken) = (deadline, request.broken()));
                    return self.check();
                }
                Err(error) => match error.longest_lease().filter(|longest| *longest < terms.lease) {
                    Some(longest) => self.change(|state| state.terms.lease = longest),
                    None => return Err(self.judge(error, &["NOTHELD", "HOLDS", "WRONGTYPE"])),
                },
            }
        }
    }

    /// Raises the limit, so that others can hold the lock too.
    ///
    /// # Errors
    /// As [`renew`](Self::renew). After [`Error::Unreachable`] the next renewal downgrades it.
    pub(crate) async fn downgrade(&self, limit: Limit) -> Result<(), Error> {
        let before = self.terms().kind;
        let kind = Kind { limit, weight: before.weight.filter(|_| limit != Limit::Shared) };
        kind.check()?;
        self.change(|state| state.terms.kind = kind);
        self.renew(self.client.settings.patience).await.inspect_err(|error| {
            if error.code().is_some() {
                self.change(|state| state.terms.kind = before);
            }
        })
    }

    /// Runs a command while the server has this tenure. It is not sent again if a server may have carried it out. If the
    /// server denies the tenure, it is renewed once: a server in quarantine restores it.
    ///
    /// # Errors
    /// [`Error::Lost`] when the tenure is over; otherwise the error of the command or of the last attempt.
    pub(crate) async fn guarded(&self, inner: &Cmd) -> Result<Value, Error> {
        let cmd = self.name.guard(self.terms().token, inner);
        let mut request = Request::new(&self.client, &self.name);
        request.runs_once = true;
        let mut is_renewed = false;
        loop {
            self.check()?;
            match request.send(&cmd, self.client.settings.response_limit).await {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(error) if error.code() == Some("FENCED") && !is_renewed => {
                    is_renewed = true;
                    self.renew(self.client.settings.patience).await?;
                }
                Err(error) => return Err(self.judge(error, &["FENCED"])),
            }
        }
    }

    /// Releases the tenure. It tries for the client's patience, or until the lease is over if that is earlier.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was lost before; otherwise the error of the last attempt.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        // From here on the server may end the tenure, so it must no longer count as held.
        if let Some(loss) = self.end(Loss::Released) {
            self.is_over.store(true, Ordering::Relaxed);
            return Err(self.lost_by(loss));
        }
        let mut request = Request::new(&self.client, &self.name);
        request.deadline = self.state.borrow().deadline;
        let released = match request.repeat(&self.name.release(self.terms().token)).await {
            Ok(_) => Ok(()),
            // An earlier attempt has released it.
            Err(error) if error.code() == Some("NOTHELD") && request.may_have_run => Ok(()),
            Err(error @ Error::Unreachable { .. }) => return Err(error),
            Err(error) => Err(self.judge(error, &["NOTHELD", "HOLDS", "WRONGTYPE"])),
        };
        self.is_over.store(true, Ordering::Relaxed);
        released
    }

    /// Leaves the tenure to another process: it is neither renewed nor released here.
    pub(crate) fn hand_over(&self) {
        self.stop_renewing();
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Releases what is not released yet in the background, until the lease is over.
    pub(crate) fn abandon(&self) {
        let earlier = self.end(Loss::Released);
        if self.is_over.load(Ordering::Relaxed) || earlier.is_some_and(|loss| loss != Loss::Released) {
            return;
        }
        let release = self.name.release(self.terms().token);
        Request::new(&self.client, &self.name).release_in_background(release, self.state.borrow().deadline);
    }
}
