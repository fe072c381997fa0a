//! A tenure as this process knows it: whether it is held, and the requests of its holder.

use crate::commands::{Kind, Limit, OwnedKey, read};
use crate::error::{Error, Loss};
use crate::mutex::locked;
use crate::renewals::Renewable;
use crate::request::{Request, Via};
use crate::servers::Inner;
use crate::time::{from_now, lease_end, millis, until};
use redis::{Cmd, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;

/// The bounds of the pause after a renewal that the server has refused.
const RENEWAL_PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];

/// Leases have whole milliseconds.
const TICK: Duration = Duration::from_millis(2);

pub(crate) struct Tenure {
    pub(crate) client: Arc<Inner>,
    id: u64,
    pub(crate) name: Arc<OwnedKey>,
    slot: u16,
    /// What it began with.
    pub(crate) terms: Terms,
    kind: Mutex<Kind>,
    /// The lease that each renewal asks for, in milliseconds.
    lease: AtomicU64,
    state: watch::Sender<State>,
    is_renewed: AtomicBool,
    renewal_due: Mutex<Option<Instant>>,
    /// There is nothing to release any more.
    is_over: AtomicBool,
}

/// Whether a tenure is held.
#[derive(Clone)]
struct State {
    /// When the lease ends by this process's clock, unless it is renewed.
    deadline: Instant,
    end: Option<Loss>,
}

impl State {
    /// Why the tenure is over, if it is.
    fn loss(&self) -> Option<Loss> {
        self.end.clone().or_else(|| (Instant::now() >= self.deadline).then_some(Loss::LeaseOver))
    }
}

/// What a tenure begins with.
pub(crate) struct Terms {
    pub(crate) token: u64,
    pub(crate) holds: u32,
    pub(crate) kind: Kind,
    /// In milliseconds.
    pub(crate) lease: u64,
    pub(crate) deadline: Instant,
    pub(crate) is_renewed: bool,
    /// No lease ends after this.
    pub(crate) hold_end: Option<Instant>,
}

impl Tenure {
    pub(crate) fn new(client: &Arc<Inner>, name: Arc<OwnedKey>, terms: Terms) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            client: Arc::clone(client),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            slot: client.slot(&name.key),
            name,
            kind: Mutex::new(terms.kind),
            lease: AtomicU64::new(terms.lease),
            state: watch::Sender::new(State { deadline: terms.deadline, end: None }),
            is_renewed: AtomicBool::new(terms.is_renewed),
            terms,
            renewal_due: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        *locked(&self.kind)
    }

    /// In milliseconds.
    pub(crate) fn lease(&self) -> u64 {
        self.lease.load(Ordering::Relaxed)
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
                    () = tokio::time::sleep_until(state.deadline.into()) => {}
                }
            }
        }
    }

    /// Ends the tenure in this process. Returns how it was lost, if it was over before.
    pub(crate) fn end(&self, loss: Loss) -> Option<Loss> {
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

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.loss().map_or(Ok(()), |loss| Err(self.lost_by(loss)))
    }

    fn lost_by(&self, loss: Loss) -> Error {
        Error::Lost { key: self.name.shown(), loss }
    }

    /// The error of a request of the holder. Some errors of the server are the loss of the tenure, which ends then.
    fn judge(&self, error: Error, losses: &[&str]) -> Error {
        let Error::Refused { code, message, .. } = &error else { return error };
        if !losses.contains(&&**code) {
            return error;
        }
        let loss = Loss::NotHeld(message.clone());
        self.end(loss.clone());
        self.lost_by(loss)
    }

    /// Sets a new lease. Each attempt has a sixth of the lease. They end with the lease, and with `patience` if there is one.
    ///
    /// # Errors
    /// [`Error::Lost`] when the tenure is over; otherwise the error of the last attempt.
    pub(crate) async fn renew(&self, patience: Option<Duration>) -> Result<(), Error> {
        let mut request = Request::new(&self.client, &self.name);
        request.deadline = self.state.borrow().deadline;
        request.patience_end = patience.map_or(request.deadline, from_now);
        loop {
            self.check()?;
            let requested = Instant::now();
            let left = self.terms.hold_end.map_or(u64::MAX, |end| millis(until(end)));
            let lease = self.lease().min(left);
            if lease == 0 {
                return Err(self.lost_by(Loss::LeaseOver));
            }
            // A lease that is shorter than what is left counts from now on: the server may set it although its reply is lost.
            let deadline = lease_end(lease, requested);
            self.set_deadline(|present| deadline < present, deadline);
            let cmd = self.name.renew(lease, self.terms.token, self.terms.holds, self.kind());
            let limit = self.client.settings.response_limit.min(Duration::from_millis(lease / 6 + 1));
            match request.send(&mut Via::Shared, &cmd, limit).await {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    let _: u64 = read(reply)?;
                    self.set_deadline(|_| true, deadline);
                    return self.check();
                }
                Err(error) => match error.longest_lease().filter(|longest| *longest < lease) {
                    Some(longest) => drop(self.lease.fetch_min(longest, Ordering::Relaxed)),
                    None => return Err(self.judge(error, &["NOTHELD", "HOLDS", "WRONGTYPE"])),
                },
            }
        }
    }

    /// A tenure that is over stays over.
    fn set_deadline(&self, is_wanted: impl Fn(Instant) -> bool, deadline: Instant) {
        self.state.send_if_modified(|state| {
            let is_set = state.loss().is_none() && is_wanted(state.deadline);
            if is_set {
                state.deadline = deadline;
            }
            is_set
        });
    }

    /// Lets others hold the lock, too.
    ///
    /// # Errors
    /// As [`renew`](Self::renew). After [`Error::Unreachable`] the next renewal downgrades it.
    pub(crate) async fn downgrade(&self, limit: Limit) -> Result<(), Error> {
        let before = self.kind();
        let kind = Kind { limit, weight: before.weight.filter(|_| limit != Limit::Shared) };
        kind.check()?;
        *locked(&self.kind) = kind;
        self.renew(Some(self.client.settings.patience)).await.inspect_err(|error| {
            if error.code().is_some() {
                *locked(&self.kind) = before;
            }
        })
    }

    /// Runs a command while the server has this tenure. It is not sent again when a server may have carried it out. If the
    /// server denies the tenure, it is renewed once: a server in quarantine restores it.
    ///
    /// # Errors
    /// [`Error::Lost`] when the tenure is over; otherwise the error of the command or of the last attempt.
    pub(crate) async fn guarded(&self, inner: &Cmd) -> Result<Value, Error> {
        let cmd = self.name.guard(self.terms.token, inner);
        let mut request = Request::new(&self.client, &self.name);
        request.runs_once = true;
        let mut is_renewed = false;
        loop {
            self.check()?;
            match request.send(&mut Via::Shared, &cmd, self.client.settings.response_limit).await {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(error) if error.code() == Some("FENCED") && !is_renewed => {
                    is_renewed = true;
                    self.renew(Some(self.client.settings.patience)).await?;
                }
                Err(error) => return Err(self.judge(error, &["FENCED"])),
            }
        }
    }

    /// Releases the tenure. Tries for the client's patience, or until the lease is over if that is earlier.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was lost before; otherwise the error of the last attempt.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        // The server may end the tenure from here on, so nobody may take it for held.
        let earlier = self.end(Loss::Released);
        // Last, so that a renewal that ends now does not plan another.
        self.client.renewals.remove(self);
        if let Some(loss) = earlier {
            self.is_over.store(true, Ordering::Relaxed);
            return Err(self.lost_by(loss));
        }
        let mut request = Request::new(&self.client, &self.name);
        request.deadline = self.state.borrow().deadline;
        self.release_with(&mut request).await
    }

    async fn release_with(&self, request: &mut Request<'_>) -> Result<(), Error> {
        let released = match request.repeat(&self.name.release(self.terms.token)).await {
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

    pub(crate) fn stop_renewing(&self) {
        self.is_renewed.store(false, Ordering::Relaxed);
        self.client.renewals.remove(self);
    }

    /// Releases in the background what is not released yet, until the lease is over.
    pub(crate) fn abandon(self: &Arc<Self>) {
        let earlier = self.end(Loss::Released);
        self.client.renewals.remove(&**self);
        let deadline = self.state.borrow().deadline;
        if self.is_over.load(Ordering::Relaxed) || earlier.is_some_and(|loss| loss != Loss::Released) {
            return;
        }
        let started = self.client.send_now(self.slot, None, self.name.release(self.terms.token));
        let tenure = Arc::clone(self);
        self.client.spawn_job(async move {
            let limit = tenure.client.settings.response_limit.min(until(deadline));
            if let Some(started) = started
                && let Ok(Ok(Value::Int(_))) = timeout(limit, started).await
            {
                return;
            }
            let mut request = Request::new(&tenure.client, &tenure.name);
            (request.deadline, request.patience_end) = (deadline, deadline);
            let _ = tenure.release_with(&mut request).await;
        });
    }
}

impl Renewable for Tenure {
    fn id(&self) -> u64 {
        self.id
    }

    fn slot(&self) -> u16 {
        self.slot
    }

    fn due(&self) -> &Mutex<Option<Instant>> {
        &self.renewal_due
    }

    /// When to renew next: when a third of the lease has passed. If that was in vain, after a pause.
    fn next_renewal(&self) -> Option<Instant> {
        let State { deadline, end } = self.state.borrow().clone();
        let lease = Duration::from_millis(self.lease());
        let now = Instant::now();
        // The last lease before the hold limit is not renewed.
        let is_last = self.terms.hold_end.is_some_and(|end| deadline + lease / 100 + TICK >= end);
        if end.is_some() || now >= deadline || is_last || !self.is_renewed.load(Ordering::Relaxed) {
            return None;
        }
        let [shortest, longest] = RENEWAL_PAUSE;
        let third = deadline.checked_sub(lease / 3 * 2).filter(|third| *third > now);
        Some(third.unwrap_or_else(|| now + (lease / 20).clamp(shortest, longest)))
    }

    fn start_renewal(self: Arc<Self>) {
        let client = Arc::clone(&self.client);
        client.runtime.clone().spawn(async move {
            // After an error the state of the tenure tells whether it is lost. If not, it is renewed again.
            let _ = self.renew(None).await;
            client.renewals.add(self);
        });
    }
}
