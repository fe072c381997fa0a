//! Acquiring a lock.

use crate::client::{Client, Shared};
use crate::error::{Error, Loss};
use crate::guard::Guard;
use crate::keeper::{Abandoned, Errand};
use crate::lease::{Given, LEASE, Learnt, Terms, UNKNOWN, is_too_long, learn};
use crate::request::{Block, Claim, Grant, grant, millis};
use crate::servers::{Attempts, Lane, Line};
use crate::tenure::{FAR, Lease, Tenure, Turns};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedMutexGuard, SemaphorePermit};
use tokio::time::timeout_at;

/// A wait without limit bears an outage as long as the client's patience. An attempt that has lasted longer than so
/// many response limits was in the queue, and an outage begins when it ends.
const A_WAIT: u32 = 3;

/// How long who waits for a connection to wait on stands by before it tries again without: at first, and at most.
const TRIES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// A lock that may be acquired, and how.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(client: lockward_client::Client) -> Result<(), lockward_client::Error> {
/// let guard = client.lock("order:42").lease(Duration::from_secs(10)).wait(Duration::from_secs(60)).acquire().await?;
/// # guard.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock is not acquired until `acquire` is called"]
pub struct Lock {
    client: Client,
    key: Vec<u8>,
    owner: Option<Vec<u8>>,
    lease: Option<Duration>,
    is_renewed: bool,
    hold_limit: Option<Duration>,
    wait: Option<Duration>,
    replicas: Option<(usize, Duration)>,
}

impl Lock {
    pub(crate) const fn new(client: Client, key: Vec<u8>) -> Self {
        Self {
            client,
            key,
            owner: None,
            lease: None,
            is_renewed: true,
            hold_limit: None,
            wait: None,
            replicas: None,
        }
    }

    /// How long the lock stays held when this process is not heard of any more: at least 1 millisecond. While it is,
    /// the lease is renewed each time a third of it has passed. The server may have a longest lease, see
    /// `lock.max-lease` and `lock.quarantine`, and refuses a longer one. If that is made shorter while the lock is held, the
    /// lock goes on with half of what is refused, again and again, down to what the server takes.
    ///
    /// Without this it is the server's default: `lock.default-lease`, 30 seconds unless it is set, and no longer than
    /// the server's longest. The first acquisition asks for it by `LOCK.INFO`, and the client remembers the answer until
    /// the server refuses it: another default that is set later counts for new clients. Without permission to
    /// `LOCK.INFO` it is 30 seconds.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Does not renew the lease: the lock is lost when it is over.
    pub fn without_renewal(self) -> Self {
        Self { is_renewed: false, ..self }
    }

    /// Renews the lease no further than so long after the lock was acquired. A holder that is stuck does not keep the
    /// lock for ever.
    pub fn hold_limit(self, limit: Duration) -> Self {
        Self { hold_limit: Some(limit), ..self }
    }

    /// How long [`acquire`](Self::acquire) waits for the lock: without limit, unless this is called.
    pub fn wait(self, limit: Duration) -> Self {
        Self { wait: Some(limit), ..self }
    }

    /// The owner to acquire it as: any 1 to 1,024 bytes. Whoever names the same owner, anywhere, *is* the same owner,
    /// and has the lock when that has it; within one client, acquiring it again enters again, and each guard is one
    /// hold. Without this, each acquisition is an owner of its own.
    pub fn owner(self, owner: impl AsRef<[u8]>) -> Self {
        Self { owner: Some(owner.as_ref().to_vec()), ..self }
    }

    /// Acquires it only if so many replicas have heard of it within a time; else it is given back, and the error is
    /// [`Error::Unreplicated`]. A replica that has heard of a grant has it when it is promoted. The time has to be
    /// shorter than the lease; where the lease is not known yet, that is seen once it is granted.
    pub fn replicas(self, count: usize, within: Duration) -> Self {
        Self { replicas: Some((count, within)), ..self }
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is not. Otherwise as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Guard, Error> {
        self.wait(Duration::ZERO).acquire().await
    }

    /// Acquires the lock, and waits for it in the server's queue if it is held: first come, first served.
    ///
    /// It may be repeated, and is, as often as a reply is lost: nothing is counted twice, and a place in the queue is
    /// kept. If the server dies, hands over to another one or sends the request elsewhere meanwhile, it is sent
    /// there, and waits on at the end of that queue.
    ///
    /// **If the future is dropped**, the place in the queue is given up, and so is what may have been granted
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Busy`] when the wait limit is reached, [`Error::Unreachable`] when no server has answered for longer
    /// than the wait limit and the client's patience, [`Error::Lost`] when for so long the lease was over each time before
    /// this process heard of the grant, [`Error::Server`] with what the server says, such as
    /// `MAXWAITERS` or `OOM`.
    pub async fn acquire(self) -> Result<Guard, Error> {
        self.check()?;
        let limit = self.wait.map(|wait| Instant::now() + wait.min(FAR));
        let Some(owner) = &self.owner else {
            let claim = Claim { key: self.key.clone(), owner: self.client.shared.fresh_owner() };
            return self.take(claim, limit, None).await.map(|tenure| self.guard(tenure));
        };
        let claim = Claim { key: self.key.clone(), owner: owner.clone() };
        let turns = self.client.shared.turns(&claim);
        let turn = turns.lock_owned();
        let mut turn = match limit {
            Some(limit) => timeout_at(limit.into(), turn).await.map_err(|_| Error::Busy)?,
            None => turn.await,
        };
        if let Some(tenure) = turn.upgrade() {
            match Guard::enter(&self.client.shared, &tenure).await {
                // It has ended: this is the next one.
                Err(Error::Lost(_)) => *turn = Weak::new(),
                entered => return entered,
            }
        }
        let tenure = self.take(claim, limit, Some(turn)).await?;
        Ok(self.guard(tenure))
    }

    fn check(&self) -> Result<(), Error> {
        if self.lease.is_some_and(|lease| millis(lease) == 0) {
            return Err(Error::Invalid("a lease lasts a millisecond at least"));
        }
        if self.owner.as_ref().is_some_and(|owner| owner.is_empty() || owner.len() > 1_024) {
            return Err(Error::Invalid("an owner is 1 to 1,024 bytes"));
        }
        if self.owner.as_ref().is_some_and(|owner| owner == b"*") {
            return Err(Error::Invalid("the owner * stands for one that the server makes up"));
        }
        if self.hold_limit.is_some_and(|limit| millis(limit) == 0) {
            return Err(Error::Invalid("a hold limit lasts a millisecond at least"));
        }
        self.terms().named().map_or(Ok(()), |lease| self.check_replicas(lease))
    }

    /// With a lease of so many milliseconds.
    fn check_replicas(&self, lease: u64) -> Result<(), Error> {
        if self.replicas.is_some_and(|(_, within)| within >= Duration::from_millis(lease)) {
            return Err(Error::Invalid("replicas have less time than a lease lasts"));
        }
        Ok(())
    }

    fn terms(&self) -> Terms {
        let known = || self.client.shared.lease().map_or(Terms::Default, Terms::Known);
        self.lease.map_or_else(known, |lease| Terms::Named(millis(lease)))
    }

    fn guard(self, tenure: Arc<Tenure>) -> Guard {
        if tenure.lease.is_renewed {
            self.client.shared.leave(Errand::Keep(Arc::clone(&tenure)));
        }
        Guard::new(self.client.shared, tenure)
    }

    /// Acquires it as an owner that does not hold it, as far as this process knows.
    async fn take(
        &self,
        claim: Claim,
        limit: Option<Instant>,
        turn: Option<OwnedMutexGuard<Weak<Tenure>>>,
    ) -> Result<Arc<Tenure>, Error> {
        let shared = &self.client.shared;
        let servers = &shared.servers;
        let mut terms = self.terms();
        let lease = terms.named().map_or(UNKNOWN, Duration::from_millis);
        let abandoned = Abandoned { claim: claim.clone(), waited: false, lease, turn };
        let mut stake = Stake { shared, abandoned: Some(abandoned) };
        let begun = Instant::now();
        let patience = begun + servers.settings.patience;
        let mut attempts = servers.attempts(&claim.key, limit.unwrap_or(patience).max(patience));
        // A lease may be shorter than replies take.
        let is_late = || limit.is_some_and(|limit| limit.max(patience) <= Instant::now());
        let mut line: Option<Line> = None;
        let mut permit: Option<SemaphorePermit<'_>> = None;
        let mut standing_by = pin!(shared.waiting.acquire());
        let [mut pause, longest] = TRIES;
        // Whether the server has granted it already, though not as it is to be.
        let mut is_granted = false;
        // Whether what the server has granted is to be replaced by a whole lease.
        let mut is_anew = false;
        loop {
            let asked = Instant::now();
            let wait = limit.map(|limit| limit.saturating_duration_since(asked));
            // The first time it is only tried: whoever finds the lock free needs no connection of its own.
            let waits = permit.is_some();
            let block = match wait {
                _ if !waits => Block::No,
                Some(wait) => Block::For(wait),
                None => Block::WithoutLimit,
            };
            let cmd = claim.acquire(terms.named().map(|lease| self.cut(lease)), 1, block);
            let response = servers.settings.response_limit;
            if waits {
                stake.waits(true);
            }
            let sent = if waits {
                let within = wait.map(|wait| wait.saturating_add(response));
                attempts.send(&mut Lane::Own(&mut line), &cmd, within).await
            } else {
                attempts.send(&mut Lane::Shared, &cmd, Some(response)).await
            };
            let granted = match sent {
                Ok(reply) => grant(reply)?,
                Err(setback) => {
                    if limit.is_none() && asked.elapsed() > response * A_WAIT {
                        attempts.until = Instant::now() + servers.settings.patience;
                    }
                    if let Err(error) = attempts.after(setback).await {
                        if let Terms::Known(lease) = terms
                            && is_too_long(&error)
                        {
                            shared.forget_lease(lease);
                            // An earlier one may have been granted.
                            (terms, is_anew) = (Terms::Default, attempts.is_uncertain);
                            continue;
                        }
                        // Nothing is granted: the server has said so, or has not been sent anything.
                        if !attempts.is_uncertain && !is_granted {
                            stake.lost();
                        }
                        return Err(error);
                    }
                    continue;
                }
            };
            match granted {
                Some(grant) => {
                    stake.waits(false);
                    is_granted = true;
                    // It may have been waited for longer than that.
                    attempts.until = attempts.until.max(Instant::now() + servers.settings.patience);
                    let learnt = match terms.named() {
                        Some(lease) => Learnt::Lease(Given { lease, counts_from: asked, is_named: true }),
                        None => learn(shared, &mut attempts, &claim, grant, is_anew, begun).await?,
                    };
                    let given = match learnt {
                        Learnt::Lease(given) => given,
                        Learnt::Gone if is_late() => return stake.gone_again(),
                        Learnt::Gone => {
                            is_granted = false;
                            continue;
                        }
                        Learnt::Stale => {
                            is_anew = true;
                            continue;
                        }
                        Learnt::Refused => {
                            terms = Terms::Named(millis(LEASE));
                            continue;
                        }
                    };
                    self.check_replicas(given.lease)?;
                    stake.lasts(given.lease);
                    let until = match self.confirm(&mut attempts, &claim, grant, given, &mut line).await {
                        Ok(Some(until)) => until,
                        Ok(None) if is_late() => return stake.gone_again(),
                        Ok(None) => {
                            is_granted = false;
                            continue;
                        }
                        // The setting has been changed while it was waited for.
                        Err(error) if terms.may_change() && is_too_long(&error) => {
                            shared.forget_lease(given.lease);
                            (terms, is_anew) = (Terms::Default, true);
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    if let Some(line) = line {
                        servers.put_back(line);
                    }
                    let last = self.hold_limit.map(|limit| Instant::now() + limit.min(FAR));
                    let lease = Lease::new(self.cut(given.lease), self.is_renewed, last);
                    return Ok(stake.won(|turns| Tenure::new(claim, grant, lease, until, turns)));
                }
                None if wait.is_some_and(|wait| wait.is_zero()) || waits => {
                    if let Some(line) = line {
                        servers.put_back(line);
                    }
                    stake.lost();
                    return Err(Error::Busy);
                }
                None => {
                    // Who waits for a connection tries now and then: all may be taken by those who wait for a lock that the
                    // caller holds.
                    let next = limit.map_or(asked + pause, |limit| limit.min(asked + pause));
                    pause = (pause * 2).min(longest);
                    match timeout_at(next.into(), standing_by.as_mut()).await {
                        Ok(Ok(found)) => permit = Some(found),
                        Err(_) if limit.is_none_or(|limit| Instant::now() < limit) => {}
                        Ok(Err(_)) | Err(_) => {
                            stake.lost();
                            return Err(Error::Busy);
                        }
                    }
                    if limit.is_none() {
                        attempts.until = Instant::now() + servers.settings.patience;
                    }
                }
            }
        }
    }

    /// Makes certain of a grant: when its lease ends, by this process's clock, or `None` where it has ended.
    async fn confirm(
        &self,
        attempts: &mut Attempts<'_>,
        claim: &Claim,
        grant: Grant,
        given: Given,
        line: &mut Option<Line>,
    ) -> Result<Option<Instant>, Error> {
        let lease = self.cut(given.lease);
        // The server's default may be longer than what is to be held.
        let is_right = given.is_named || lease == given.lease;
        // After a short wait it is near enough to count from before it was asked for. After a long one, nobody knows
        // when the server began to count.
        if is_right
            && self.replicas.is_none()
            && given.counts_from.elapsed() < Duration::from_millis(lease / 3)
        {
            return Ok(Some(Lease::end(lease, given.counts_from)));
        }
        loop {
            let asked = Instant::now();
            let cmd = claim.renew(Some(lease), grant.token, grant.holds);
            let response = attempts.settings().response_limit;
            let sent = match self.replicas {
                // WAIT asks for what was written before the last command on the same connection.
                Some(_) => attempts.send(&mut Lane::Own(line), &cmd, Some(response)).await,
                None => attempts.send(&mut Lane::Shared, &cmd, Some(response)).await,
            };
            let setback = match (sent, self.replicas, line.as_mut()) {
                (Ok(_), Some((wanted, within)), Some(line)) => {
                    match line.wait(wanted, within, response).await {
                        Ok(reached) if reached >= wanted => return Ok(Some(Lease::end(lease, asked))),
                        Ok(reached) => return Err(Error::Unreplicated { reached, wanted }),
                        Err(error) => return Err(error),
                    }
                }
                (Ok(_), ..) => return Ok(Some(Lease::end(lease, asked))),
                (Err(setback), ..) => setback,
            };
            match attempts.after(setback).await {
                Ok(()) => {}
                Err(Error::Lost(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// No longer than it is to be held.
    fn cut(&self, lease: u64) -> u64 {
        self.hold_limit.map_or(lease, |limit| lease.min(millis(limit)))
    }
}

/// What an acquisition may leave behind at the server, unless it is won or lost: if its caller goes, this gives it
/// back.
struct Stake<'a> {
    shared: &'a Shared,
    abandoned: Option<Abandoned>,
}

impl Stake<'_> {
    fn won(mut self, tenure: impl FnOnce(Option<Arc<Turns>>) -> Tenure) -> Arc<Tenure> {
        let turn = self.abandoned.take().and_then(|abandoned| abandoned.turn);
        let turns = turn.as_ref().map(|turn| Arc::clone(OwnedMutexGuard::mutex(turn)));
        let tenure = Arc::new(tenure(turns));
        if let Some(mut turn) = turn {
            *turn = Arc::downgrade(&tenure);
        }
        tenure
    }

    fn lost(&mut self) {
        self.abandoned = None;
    }

    /// It was won, and lost before anybody has heard of it.
    fn gone_again<T>(&mut self) -> Result<T, Error> {
        self.lost();
        Err(Error::Lost(Loss::LeaseOver))
    }

    /// For so many milliseconds, if it is not given back.
    fn lasts(&mut self, lease: u64) {
        if let Some(abandoned) = &mut self.abandoned {
            abandoned.lease = Duration::from_millis(lease);
        }
    }

    /// Whether it may stand in the server's queue.
    fn waits(&mut self, waits: bool) {
        if let Some(abandoned) = &mut self.abandoned {
            abandoned.waited = waits;
        }
    }
}

impl Drop for Stake<'_> {
    fn drop(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            self.shared.leave(Errand::GiveBack(abandoned));
        }
    }
}
