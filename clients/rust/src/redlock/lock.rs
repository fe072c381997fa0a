//! Acquires a lock on a majority of the servers, and then on the other servers.

use crate::error::Error;
use crate::guard::Guard as ServerGuard;
use crate::lock::Lock as ServerLock;
use crate::redlock::client::Redlock;
use crate::redlock::guard::Guard;
use crate::redlock::majority::Majority;
use crate::time::{FAR_FUTURE, from_now, pause_after, until};
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::{sleep_until, timeout, timeout_at};

/// The lease if the caller sets none. The servers' own defaults may differ from each other, so the client does not use
/// them.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The shortest time that a round waits for servers that did not answer the last request.
const MIN_GRACE: Duration = Duration::from_millis(10);

/// A request for a lock, with the options.
#[derive(Clone, Debug)]
#[must_use = "a lock is not acquired until `acquire` is called"]
pub struct Lock {
    redlock: Redlock,
    key: Vec<u8>,
    lease: Duration,
    is_renewed: bool,
    hold_limit: Option<Duration>,
    wait: Option<Duration>,
}

impl Redlock {
    /// A request for a lock: see [`Lock::acquire`]. The key may be any bytes.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        let (redlock, key) = (self.clone(), key.as_ref().to_vec());
        Lock { redlock, key, lease: DEFAULT_LEASE, is_renewed: true, hold_limit: None, wait: None }
    }
}

impl Lock {
    /// How long the lock lasts without renewal, for example after this process has died: at least 2 milliseconds.
    /// The default is 30 seconds, even if the servers have another default. If the lease is longer than the quarantine
    /// of a server, the lease at this server is the quarantine. At each server the client renews the lease each time a
    /// third of it has passed.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Switches the renewals off. The lock is lost when the lease is over.
    pub fn without_renewal(self) -> Self {
        Self { is_renewed: false, ..self }
    }

    /// Limits how long the lock is held. The lock is lost when this time has passed since the acquisition.
    pub fn hold_limit(self, limit: Duration) -> Self {
        Self { hold_limit: Some(limit), ..self }
    }

    /// How long [`acquire`](Self::acquire) tries to acquire the lock. By default there is no limit.
    pub fn wait(self, limit: Duration) -> Self {
        Self { wait: Some(limit), ..self }
    }

    /// Tries once to acquire the lock.
    ///
    /// # Errors
    /// [`Error::Busy`] if other owners hold the lock on too many servers. If two callers try at the same time, both may
    /// get this error. The other errors are the errors of [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Guard, Error> {
        self.wait(Duration::ZERO).acquire().await
    }

    /// Acquires the lock. The client asks all servers at once. If no majority grants the lock, the client releases the
    /// tenures that the servers have granted, pauses for a random time below 0.4 seconds, and tries again. The client
    /// does not wait in the queues of servers, because two owners that each hold the lock on some servers would
    /// deadlock.
    ///
    /// **If the future is dropped**, the client releases in the background all tenures that the servers have granted or
    /// may grant.
    ///
    /// # Errors
    /// - [`Error::Busy`] when the wait limit is reached.
    /// - [`Error::NoMajority`] when the wait limit is reached and too few servers answer. If there is no wait limit,
    ///   the call fails with this error when too few servers have answered for the client's patience.
    /// - [`Error::Refused`] and other errors when too many servers refuse the request: the remaining servers are not a
    ///   majority.
    pub async fn acquire(self) -> Result<Guard, Error> {
        let limit = from_now(self.wait.unwrap_or(FAR_FUTURE));
        let patience = self.redlock.patience;
        let mut patience_end = from_now(patience);
        let mut failures = 0;
        // The wait limit does not apply to the first round, so a call with a short limit still asks all servers once.
        let mut outcome = self.round().await;
        loop {
            let error = match outcome {
                Ok(guard) => return Ok(guard),
                Err(error) => error,
            };
            if matches!(error, Error::Busy { .. }) {
                patience_end = from_now(patience);
            } else if !matches!(error, Error::NoMajority(_))
                || self.wait.is_none() && patience_end <= Instant::now()
            {
                return Err(error);
            }
            failures += 1;
            // A random factor of 0.5 to 1.5 changes the pause. So callers that have split the votes ask again at
            // different times.
            let next = Instant::now() + pause_after(failures, 8, 256).mul_f64(0.5 + fastrand::f64());
            sleep_until(limit.min(next).into()).await;
            if limit <= next {
                return Err(error);
            }
            outcome = timeout_at(limit.into(), self.round()).await.unwrap_or(Err(error));
        }
    }

    /// Asks all servers once. If no majority grants the lock, releases all tenures that the servers have granted.
    async fn round(&self) -> Result<Guard, Error> {
        let hold_deadline = self.hold_limit.map(from_now);
        let (count, needed) = (self.redlock.voters.len(), self.redlock.majority());
        let begun = Instant::now();
        let mut requests: FuturesUnordered<_> =
            (0..count).map(|server| self.clone().ask(server, hold_deadline)).collect();
        let voters = self.redlock.voters.iter().enumerate();
        let reached = voters.filter(|(_, voter)| !voter.is_unreachable.load(Ordering::Relaxed));
        let mut expected: Vec<usize> = reached.map(|(server, _)| server).collect();
        let mut granted: Vec<Option<Arc<ServerGuard>>> = vec![None; count];
        let mut busy = 0;
        let mut failures = Vec::new();
        let mut deadline = begun + FAR_FUTURE;
        while let Ok(Some((server, reply))) = timeout_at(deadline.into(), requests.next()).await {
            expected.retain(|other| *other != server);
            match reply {
                Ok(guard) => {
                    if let Some(vote) = granted.get_mut(server) {
                        *vote = Some(Arc::new(guard));
                    }
                }
                Err(Error::Busy { .. }) => busy += 1,
                Err(error) => failures.push(error),
            }
            let votes = granted.iter().flatten().count();
            if votes == needed {
                let majority = Arc::new(Majority::new(self.key.clone(), needed, granted));
                let collecting = collect_votes(self.clone(), Arc::clone(&majority), requests, hold_deadline);
                self.redlock.runtime.spawn(collecting);
                let guard = Guard { majority };
                // A round can take longer than the lease. Then the lock is already lost.
                return if guard.is_held() { Ok(guard) } else { Err(self.busy()) };
            }
            if busy + failures.len() > self.redlock.spare() {
                break;
            }
            // Another owner competes for the lock, and this round needs the votes of servers that did not answer the
            // last request. This loop waits for these servers as long again as the round has taken so far, but at least
            // `MIN_GRACE`. Then the code below releases the votes of this round, so that the other owner can get these
            // votes.
            if busy > 0 && votes + expected.len() < needed {
                deadline = deadline.min(Instant::now() + begun.elapsed().max(MIN_GRACE));
            }
        }
        drop(requests);
        // Wait for the releases, so that the servers can grant the lock in the next round.
        let granted = granted.into_iter().flatten().filter_map(Arc::into_inner);
        join_all(granted.map(ServerGuard::release)).await;
        Err(self.redlock.error_without_majority(failures).unwrap_or_else(|| self.busy()))
    }

    fn busy(&self) -> Error {
        Error::Busy { key: String::from_utf8_lossy(&self.key).into_owned() }
    }

    /// Asks one server.
    async fn ask(self, server: usize, hold_deadline: Option<Instant>) -> (usize, Result<ServerGuard, Error>) {
        let Some(voter) = self.redlock.voters.get(server) else { return (server, Err(self.busy())) };
        let (lease, hold_limit) = (Some(self.lease), hold_deadline.map(until));
        let lock =
            ServerLock { lease, hold_limit, is_renewed: self.is_renewed, ..voter.client.lock(&self.key) };
        let reply = lock.try_acquire().await;
        let is_unreachable = matches!(reply, Err(Error::Unreachable { .. }));
        voter.is_unreachable.store(is_unreachable, Ordering::Relaxed);
        (server, reply)
    }
}

/// Adds the votes of servers that answer after a majority is reached. Then repeatedly asks the servers that have not
/// granted the lock, until the majority ends.
async fn collect_votes(
    lock: Lock,
    majority: Arc<Majority>,
    requests: FuturesUnordered<impl Future<Output = (usize, Result<ServerGuard, Error>)>>,
    hold_deadline: Option<Instant>,
) {
    add_votes(&majority, requests).await;
    loop {
        let change = majority.next_change();
        if majority.check().is_err() {
            return;
        }
        let missing = majority.missing_servers();
        let is_last_lease = hold_deadline.is_some_and(|end| end <= Instant::now());
        if missing.is_empty() || !lock.is_renewed || is_last_lease {
            change.await;
            continue;
        }
        let pause = (lock.lease / 3).mul_f64(0.75 + fastrand::f64() / 2.0);
        if timeout(pause, majority.ended()).await.is_ok() {
            return;
        }
        let requests = missing.into_iter().map(|server| lock.clone().ask(server, hold_deadline));
        add_votes(&majority, requests.collect()).await;
    }
}

async fn add_votes(
    majority: &Majority,
    mut requests: FuturesUnordered<impl Future<Output = (usize, Result<ServerGuard, Error>)>>,
) {
    while let Some((server, reply)) = requests.next().await {
        if let Ok(guard) = reply {
            majority.add_vote(server, guard);
        }
    }
}
