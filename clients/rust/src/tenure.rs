//! A tenure as this process knows it.
//!
//! Two counts of holds are kept: how many guards there are, and how many the server has counted at most. Requests
//! about a tenure go one after the other, under one lock. A request that may have been carried out is taken for
//! carried out, and the difference is made up for by [`Tenure::settle`]: each of its requests names the count that it
//! leads to, so that it may be repeated.

use crate::error::{Error, Loss};
use crate::lease;
use crate::request::{Claim, Grant, read};
use crate::servers::{Attempts, Lane, Servers};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, watch};

/// Longer than any process lives, and short enough to be added to any instant.
pub(crate) const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Where those take turns who ask for a lock in the name of one owner, and what they last got.
pub(crate) type Turns = Mutex<Weak<Tenure>>;

pub(crate) struct Tenure {
    /// Which one it is in this process.
    pub(crate) id: u64,
    pub(crate) claim: Claim,
    pub(crate) token: u64,
    pub(crate) lease: Lease,
    /// How many guards there are.
    guards: AtomicU32,
    /// How many holds the server has counted, at most.
    counted: Mutex<u32>,
    standing: watch::Sender<Standing>,
    /// Where its owner takes turns, if the caller has named it: that is found for as long as there is a tenure.
    _turns: Option<Arc<Turns>>,
}

/// How long a tenure lasts.
#[derive(Debug)]
pub(crate) struct Lease {
    /// From one renewal to the next, at most. In milliseconds.
    millis: AtomicU64,
    pub(crate) is_renewed: bool,
    /// When it ends, renewed or not.
    pub(crate) last: Option<Instant>,
}

/// How a tenure stands.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// When the lease ends, unless it is renewed.
    pub(crate) until: Instant,
    pub(crate) end: Option<Loss>,
}

impl Lease {
    pub(crate) const fn new(millis: u64, is_renewed: bool, last: Option<Instant>) -> Self {
        Self { millis: AtomicU64::new(millis), is_renewed, last }
    }

    /// From one renewal to the next, at most.
    pub(crate) fn millis(&self) -> u64 {
        self.millis.load(Ordering::Relaxed)
    }

    /// Whether the server has refused so many milliseconds as too long, so that half of it is asked for from now on: its
    /// longest lease has been set anew, or another server is the primary.
    pub(crate) fn shortens(&self, refused: u64, error: &Error) -> bool {
        let is_too_long = refused > 1 && lease::is_too_long(error);
        if is_too_long {
            self.millis.fetch_min(refused / 2, Ordering::Relaxed);
        }
        is_too_long
    }

    /// The lease to ask for at `now`, in milliseconds, where there is one left.
    pub(crate) fn at(&self, now: Instant) -> Option<u64> {
        let left =
            self.last.map_or(u64::MAX, |last| crate::request::millis(last.saturating_duration_since(now)));
        Some(self.millis().min(left)).filter(|millis| *millis > 0)
    }

    /// When a lease of so many milliseconds ends that was asked for at `asked`. The server begins to count later than
    /// that; what its clock may be faster than ours, a thousandth and a millisecond, is left out.
    pub(crate) fn end(millis: u64, asked: Instant) -> Instant {
        let sure = Duration::from_millis(millis.saturating_sub(millis / 1_000 + 1));
        asked + sure.min(FAR)
    }
}

impl Standing {
    fn is_held(&self) -> bool {
        self.end.is_none() && Instant::now() < self.until
    }

    /// Why the tenure is over, if it is.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.end.clone().or_else(|| (!self.is_held()).then_some(Loss::LeaseOver))
    }
}

impl Tenure {
    /// A tenure with one guard. `turns` is where its owner takes turns, if the caller has named it.
    pub(crate) fn new(
        claim: Claim,
        grant: Grant,
        lease: Lease,
        until: Instant,
        turns: Option<Arc<Turns>>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            claim,
            token: grant.token,
            lease,
            guards: AtomicU32::new(1),
            counted: Mutex::new(grant.holds),
            standing: watch::Sender::new(Standing { until, end: None }),
            _turns: turns,
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.standing.borrow().is_held()
    }

    pub(crate) fn news(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    pub(crate) fn guards(&self) -> u32 {
        self.guards.load(Ordering::Acquire)
    }

    /// A guard is gone. What the server has counted for it is to be settled.
    pub(crate) fn leave(&self) {
        self.guards.fetch_sub(1, Ordering::AcqRel);
    }

    /// Ends it as far as this process is concerned. The first reason stays.
    pub(crate) fn end(&self, loss: Loss) {
        self.standing.send_if_modified(|standing| {
            let is_news = standing.end.is_none();
            if is_news {
                standing.end = Some(standing.loss().unwrap_or(loss));
            }
            is_news
        });
    }

    /// A longer lease, or a shorter one. A tenure that is over stays over.
    fn extend(&self, until: Instant) {
        self.standing.send_if_modified(|standing| {
            let is_held = standing.is_held();
            if is_held {
                standing.until = until;
            }
            is_held
        });
    }

    /// Notes that a lease is about to be asked for: it may be shorter than what is left, and be given though no reply comes.
    fn asks_for(&self, millis: u64, asked: Instant) {
        let end = Lease::end(millis, asked);
        self.standing.send_if_modified(|standing| {
            let is_shorter = end < standing.until;
            if is_shorter {
                standing.until = end;
            }
            is_shorter
        });
    }

    fn check(&self) -> Result<(), Error> {
        self.standing().loss().map_or(Ok(()), |loss| Err(Error::Lost(loss)))
    }

    /// Sets a new lease.
    ///
    /// # Errors
    /// [`Error::Lost`] when it is lost. Whatever else keeps it from being renewed is repeated until then, or until
    /// `limit`.
    pub(crate) async fn renew(&self, servers: &Servers, limit: Option<Duration>) -> Result<(), Error> {
        let limit = limit.map(|limit| Instant::now() + limit);
        let until = self.standing().until;
        let mut attempts = servers.attempts(&self.claim.key, limit.unwrap_or(until).min(until));
        loop {
            // Not beyond the attempt: who enters or leaves does not wait until a server answers.
            let turn = self.counted.lock().await;
            self.check()?;
            let asked = Instant::now();
            let Some(millis) = self.lease.at(asked) else { return Err(Error::Lost(Loss::LeaseOver)) };
            // A holder that nobody guards any more settles, and renews nothing.
            let holds = self.guards();
            if holds == 0 {
                return Ok(());
            }
            self.asks_for(millis, asked);
            let cmd = self.claim.renew(Some(millis), self.token, holds);
            let third = Duration::from_millis(millis / 3 + 1);
            let limit = servers.settings.response_limit.min(third);
            let sent = attempts.send(&mut Lane::Shared, &cmd, Some(limit)).await;
            drop(turn);
            match sent {
                Ok(reply) => {
                    let _: u64 = read(reply)?;
                    // Of two renewals at a time, each is right.
                    self.extend(Lease::end(millis, asked));
                    return self.check();
                }
                Err(setback) => {
                    if let Err(error) = attempts.after(setback).await
                        && !self.lease.shortens(millis, &error)
                    {
                        self.lost(&error);
                        return Err(error);
                    }
                }
            }
        }
    }

    /// One hold more, and one guard.
    pub(crate) async fn enter(&self, servers: &Servers) -> Result<(), Error> {
        let mut counted = self.counted.lock().await;
        let limit = Instant::now() + servers.settings.patience;
        self.settle_counted(servers, &mut counted, Some(limit)).await?;
        self.check()?;
        let holds = self.guards() + 1;
        let mut attempts = servers.attempts(&self.claim.key, limit.min(self.standing().until));
        // Until the server denies it.
        *counted = holds;
        let mut is_restored = false;
        loop {
            self.check()?;
            let asked = Instant::now();
            let Some(millis) = self.lease.at(asked) else { return Err(Error::Lost(Loss::LeaseOver)) };
            let cmd = self.claim.acquire(Some(millis), holds, crate::request::Block::No);
            match attempts.send(&mut Lane::Shared, &cmd, Some(servers.settings.response_limit)).await {
                Ok(reply) => {
                    let grant = crate::request::grant(reply)?;
                    // Another owner has it, or it was taken anew: what was is lost. Or the server has forgotten it.
                    if grant.is_none_or(|grant| grant.token != self.token) {
                        if !is_restored {
                            self.restore(&mut attempts, holds - 1).await?;
                            is_restored = true;
                            continue;
                        }
                        let loss = Loss::NotHeld("the lock is held by another owner".to_owned());
                        self.end(loss.clone());
                        return Err(Error::Lost(loss));
                    }
                    let until = Lease::end(millis, asked);
                    if until > self.standing().until {
                        self.extend(until);
                    }
                    self.check()?;
                    self.guards.fetch_add(1, Ordering::AcqRel);
                    return Ok(());
                }
                Err(setback) => match attempts.after(setback).await {
                    Ok(()) => {}
                    Err(error) if self.lease.shortens(millis, &error) => {}
                    Err(error) if error.code() == Some("HOLDS") && !is_restored => {
                        self.restore(&mut attempts, holds - 1).await?;
                        is_restored = true;
                    }
                    Err(error) => return Err(error),
                },
            }
        }
    }

    /// Lets a server that has denied the tenure, or counts otherwise, take it back: in quarantine it does, if it has
    /// forgotten it.
    ///
    /// # Errors
    /// [`Error::Lost`] when it does not, or the lease is over.
    async fn restore(&self, attempts: &mut Attempts<'_>, holds: u32) -> Result<(), Error> {
        loop {
            let asked = Instant::now();
            let millis = self.lease.at(asked).filter(|_| asked < self.standing().until);
            let Some(millis) = millis else { return Err(Error::Lost(Loss::LeaseOver)) };
            self.asks_for(millis, asked);
            let cmd = self.claim.renew(Some(millis), self.token, holds.max(1));
            let limit = attempts.settings().response_limit;
            let Err(setback) = attempts.send(&mut Lane::Shared, &cmd, Some(limit)).await else {
                return Ok(());
            };
            if let Err(error) = attempts.after(setback).await
                && !self.lease.shortens(millis, &error)
            {
                self.lost(&error);
                return Err(error);
            }
        }
    }

    /// Gives back what the server has counted beyond the guards that there are; tries until `limit`, or until the
    /// lease is over. Safe to call at any time, by anybody.
    pub(crate) async fn settle(&self, servers: &Servers, limit: Option<Instant>) -> Result<(), Error> {
        let mut counted = self.counted.lock().await;
        self.settle_counted(servers, &mut counted, limit).await
    }

    async fn settle_counted(
        &self,
        servers: &Servers,
        counted: &mut u32,
        limit: Option<Instant>,
    ) -> Result<(), Error> {
        while *counted > self.guards() {
            let is_last = self.guards() == 0;
            let left = if is_last { 0 } else { *counted - 1 };
            let loss = self.standing().loss().filter(|loss| *loss != Loss::Released);
            // Once its end is asked for, nobody is to believe that it is held.
            if is_last {
                self.end(Loss::Released);
            }
            if let Some(loss) = loss {
                return Err(Error::Lost(loss));
            }
            let until = self.standing().until;
            let mut attempts = servers.attempts(&self.claim.key, limit.unwrap_or(until).min(until));
            let mut is_restored = false;
            loop {
                let is_repeat = attempts.is_uncertain;
                let cmd = match is_last {
                    true => self.claim.end(self.token),
                    false => self.claim.release(left, Some(self.token)),
                };
                match attempts.send(&mut Lane::Shared, &cmd, Some(servers.settings.response_limit)).await {
                    Ok(_) => break,
                    Err(setback) => {
                        match attempts.after(setback).await {
                            Ok(()) => {}
                            // The one before may be what has ended it.
                            Err(Error::Lost(_)) if is_last && is_repeat => break,
                            Err(Error::Lost(_)) if !is_restored => {
                                self.restore(&mut attempts, *counted).await?;
                                is_restored = true;
                            }
                            // A server that has forgotten some of the holds has less to give back. The last release
                            // ends them all.
                            Err(error) if error.code() == Some("HOLDS") => break,
                            Err(error) => {
                                self.lost(&error);
                                return Err(error);
                            }
                        }
                    }
                }
            }
            *counted = left;
        }
        Ok(())
    }

    /// Notes what the server has denied.
    fn lost(&self, error: &Error) {
        if let Error::Lost(loss) = error {
            self.end(loss.clone());
        }
    }
}
