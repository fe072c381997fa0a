//! Acquiring a lock, and keeping as many servers as there are.

use super::guard::Guard;
use super::held::Held;
use super::{PAUSES, Redlock};
use crate::error::Error;
use crate::guard::Guard as Tenure;
use crate::tenure::FAR;
use futures_util::future::{FutureExt, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::{sleep_until, timeout, timeout_at};

/// The lease where none is named.
const LEASE: Duration = Duration::from_secs(30);
/// What those who were silent have at least.
const AS_LONG_AGAIN: Duration = Duration::from_millis(10);

/// A lock that may be acquired, and how.
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

impl Lock {
    pub(super) const fn new(redlock: Redlock, key: Vec<u8>) -> Self {
        Self { redlock, key, lease: LEASE, is_renewed: true, hold_limit: None, wait: None }
    }

    /// How long the lock stays held when this process is not heard of any more: 30 seconds, whatever the servers'
    /// default is. They refuse what is longer than their quarantine, so name one where that is shorter. At each server it
    /// is renewed each time a third of it has passed.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Does not renew the lease: the lock is lost when it is over.
    pub fn without_renewal(self) -> Self {
        Self { is_renewed: false, ..self }
    }

    /// Renews the lease no further than so long after the lock was acquired.
    pub fn hold_limit(self, limit: Duration) -> Self {
        Self { hold_limit: Some(limit), ..self }
    }

    /// How long [`acquire`](Self::acquire) tries: without limit, unless this is called.
    pub fn wait(self, limit: Duration) -> Self {
        Self { wait: Some(limit), ..self }
    }

    /// Tries once to acquire the lock.
    ///
    /// # Errors
    /// [`Error::Busy`] if others hold too many of the servers; two who try at once may both be told so. Otherwise
    /// as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Guard, Error> {
        self.wait(Duration::ZERO).acquire().await
    }

    /// Acquires the lock, and tries again and again, at random intervals of a quarter of a second at most, while
    /// it is held. All servers are asked at once; what was granted without a majority is given back before the
    /// next try. Nobody waits in a server's queue: two owners that each have some of the servers, and wait for the
    /// rest, would wait for each other.
    ///
    /// **If the future is dropped**, all that has been granted, or may be, is given back in the background.
    ///
    /// # Errors
    /// [`Error::Busy`] when the wait limit is reached, [`Error::NoMajority`] when it is reached and too few
    /// servers answer, or when too few have answered for as long as the client's patience where there is no limit,
    /// [`Error::Server`] and such when so many servers refuse that no majority is left.
    pub async fn acquire(self) -> Result<Guard, Error> {
        let limit = self.wait.map(|wait| Instant::now() + wait.min(FAR));
        let patience = self.redlock.patience;
        let mut bears_until = Instant::now() + patience;
        let [mut pause, longest] = PAUSES;
        // The first try is worth its time whatever the limit is.
        let mut told = self.round().await;
        loop {
            let error = match told {
                Ok(guard) => return Ok(guard),
                Err(error) => error,
            };
            match (&error, limit) {
                (Error::Busy, _) => bears_until = Instant::now() + patience,
                (Error::NoMajority(_), Some(_)) => {}
                (Error::NoMajority(_), None) if Instant::now() < bears_until => {}
                _ => return Err(error),
            }
            let next = Instant::now() + pause.mul_f64(0.5 + fastrand::f64());
            pause = (pause * 2).min(longest);
            sleep_until(limit.map_or(next, |limit| limit.min(next)).into()).await;
            told = match limit {
                Some(limit) if limit <= next => return Err(error),
                Some(limit) => timeout_at(limit.into(), self.round()).await.unwrap_or(Err(error)),
                None => self.round().await,
            };
        }
    }

    /// Asks all servers at once. What is granted without a majority is given back.
    async fn round(&self) -> Result<Guard, Error> {
        let last = self.hold_limit.map(|limit| Instant::now() + limit.min(FAR));
        let count = self.redlock.servers.len();
        let needed = self.redlock.needed();
        let begun = Instant::now();
        let mut tries: FuturesUnordered<_> = (0..count).map(|at| self.clone().ask(at, last)).collect();
        let mut hopeful: Vec<_> = (0..count).filter(|at| !self.redlock.was_silent(*at)).collect();
        let mut seats: Vec<Option<Arc<Tenure>>> = vec![None; count];
        let mut busy = 0;
        let mut failures = Vec::new();
        let mut until = begun + FAR;
        while let Ok(Some((at, told))) = timeout_at(until.into(), tries.next()).await {
            hopeful.retain(|hopeful| *hopeful != at);
            match told {
                Ok(tenure) => {
                    if let Some(seat) = seats.get_mut(at) {
                        *seat = Some(Arc::new(tenure));
                    }
                }
                Err(Error::Busy) => busy += 1,
                Err(error) => failures.push(error),
            }
            if seats.iter().flatten().count() == needed {
                let held = Arc::new(Held::new(needed, seats));
                // The others are seated as they answer.
                let kept = keep_seated(self.clone(), Arc::clone(&held), tries, last);
                let _ = self.redlock.errands.send(kept.boxed());
                let guard = Guard::new(held, self.key.clone());
                // What has taken longer than the lease is no grant.
                return if guard.is_held() { Ok(guard) } else { Err(Error::Busy) };
            }
            if busy + failures.len() > count - needed {
                break;
            }
            // With others at it, votes are not kept from them for the sake of servers that will hardly answer:
            // these have as long again as the others took.
            if busy > 0 && seats.iter().flatten().count() + hopeful.len() < needed {
                until = until.min(Instant::now() + begun.elapsed().max(AS_LONG_AGAIN));
            }
        }
        drop(tries);
        // Not to meet ourselves at the next try.
        let granted = seats.into_iter().flatten().filter_map(Arc::into_inner);
        join_all(granted.map(Tenure::release)).await;
        Err(self.redlock.verdict(failures))
    }

    /// Asks one server.
    async fn ask(self, at: usize, last: Option<Instant>) -> (usize, Result<Tenure, Error>) {
        let Some(server) = self.redlock.servers.get(at) else { return (at, Err(Error::Busy)) };
        let mut lock = server.lock(&self.key).lease(self.lease);
        if !self.is_renewed {
            lock = lock.without_renewal();
        }
        if let Some(last) = last {
            lock = lock.hold_limit(last.saturating_duration_since(Instant::now()));
        }
        let told = lock.try_acquire().await;
        if let Some(silent) = self.redlock.silent.get(at) {
            silent.store(matches!(told, Err(Error::Unreachable(_))), Ordering::Relaxed);
        }
        (at, told)
    }
}
/// Seats the servers that have not answered yet, and those that have lost their tenure, for as long as a majority
/// is held.
async fn keep_seated(
    lock: Lock,
    held: Arc<Held>,
    mut tries: FuturesUnordered<impl Future<Output = (usize, Result<Tenure, Error>)>>,
    last: Option<Instant>,
) {
    while let Some((at, told)) = tries.next().await {
        if let Ok(tenure) = told {
            held.seat(at, tenure);
        }
    }
    loop {
        let change = held.change();
        let Ok(vacant) = held.vacant() else { return };
        let is_last = last.is_some_and(|last| last <= Instant::now());
        if vacant.is_empty() || !lock.is_renewed || is_last {
            change.await;
            continue;
        }
        if timeout((lock.lease / 3).mul_f64(0.75 + fastrand::f64() / 2.0), held.over()).await.is_ok() {
            return;
        }
        let mut tries: FuturesUnordered<_> =
            vacant.into_iter().map(|at| lock.clone().ask(at, last)).collect();
        while let Some((at, told)) = tries.next().await {
            if let Ok(tenure) = told {
                held.seat(at, tenure);
            }
        }
    }
}
