//! One decision on one lock. Every grant is decided here.
//!
//! A decision is made for a command, for the wake-up timer, for a key that was deleted, or for a client that disconnected. It
//! always begins the same way: tenures whose lease is over end, and the wait queue is served. Only then is the request decided.
//! So no request passes a waiter, and a lock is never free while a waiter could have it.
//!
//! | the owner | the lock | acquire | release | renew |
//! | --- | --- | --- | --- | --- |
//! | holds it | | one more hold, the lease is never shortened | one hold less; after the last one the next waiter is served | new lease |
//! | does not hold it | admits it, and nobody waits | new tenure | not held | not held |
//! | does not hold it | is held, or clients wait | busy | not held | not held |
//! | does not hold it | in quarantine | busy | not held | restored by its token |
//! | holds it by unconfirmed data | in quarantine | one more hold; busy if it asks for its first | as above | new lease, and its waits re-enter |
//!
//! A decision changes the lock in memory and records the changes in [`Effects`]. The caller carries the effects out before
//! anything else reads the lock.
//!
//! For speed, the usual path is inlined, and what is rare (a lease that is over, a wait queue) is kept out of it.

use crate::change::{Change, End};
use crate::counters::Counters;
use crate::effects::{Effects, Event, event_of};
use crate::holder::{Holder, Slots};
use crate::lock::Lock;
use crate::outcome::{Grant, NotHeld, Outcome, Refusal};
use crate::owner::Owner;
use crate::quarantine::{Quarantine, QuarantineMemory};
use crate::request::{AcquireRequest, HoldsLeft, ReleaseRequest, RenewRequest};
use crate::token::{FencingToken, TokenSource};
use crate::units::{Instant, Now};
use crate::wait_queues::{QueueId, WaitQueues};
use crate::waiter::{Completion, Waiter};
use std::hash::Hash;
use std::iter;

/// The answer to an acquisition that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The owner holds the lock.
    Granted(Grant),
    /// The owner does not hold it. It may wait.
    Busy,
}

/// A decision on one lock, and all that it depends on.
#[derive(Debug)]
pub struct Decision<'a, H> {
    /// The lock: as it is stored, or the dropped lock, or a free one.
    pub lock: &'a mut Lock,
    /// Its wait queue, if it has one.
    pub queue: Option<QueueId>,
    /// All wait queues.
    pub queues: &'a mut WaitQueues<H>,
    /// Where new tenures get their token.
    pub tokens: &'a mut TokenSource,
    /// Whether new tenures are withheld.
    pub quarantine: Quarantine,
    /// What this server has observed of the lock in this quarantine.
    pub quarantine_memory: QuarantineMemory,
    /// Where the effects are recorded.
    pub effects: &'a mut Effects<H>,
    /// Where results are counted.
    pub counters: &'a mut Counters,
    /// The time of the decision.
    pub now: Now,
}

impl<H: Copy + Eq + Hash> Decision<'_, H> {
    /// Asks for the lock.
    ///
    /// # Errors
    /// [`Refusal::Holds`] when the named count cannot follow, [`Refusal::TooManyHolds`], [`Refusal::TokensUsedUp`].
    pub fn acquire(&mut self, request: &AcquireRequest) -> Result<Acquired, Refusal> {
        self.expire_and_serve();
        if self.re_enters(request) || (!self.has_waiters() && self.admits(request.slots)) {
            return self.admit(request).map(Acquired::Granted);
        }
        match request.holds {
            None | Some(1) => Ok(Acquired::Busy),
            Some(_) => {
                let has = self.lock.holder(&request.owner).map_or(0, |known| known.holds);
                Err(Refusal::Holds { has })
            }
        }
    }

    /// Releases one hold or all, and serves the wait queue. Returns the holds left.
    ///
    /// # Errors
    /// [`Refusal::NotHeld`], or [`Refusal::Holds`] when the named count cannot follow.
    pub fn release(&mut self, request: &ReleaseRequest) -> Result<u32, Refusal> {
        self.expire_and_serve();
        let before = self.effects.changed();
        let (left, ended) = self.release_holds(request)?;
        if !before {
            self.effects.replicate_verbatim();
        }
        self.count_release(ended);
        self.serve();
        Ok(left)
    }

    /// Releases as the primary did that sent the command. Ends no lease and serves nobody: the primary decides that.
    ///
    /// # Errors
    /// As [`Decision::release`].
    pub fn apply_release(&mut self, request: &ReleaseRequest) -> Result<u32, Refusal> {
        let (left, _) = self.release_holds(request)?;
        self.effects.replicate_verbatim();
        Ok(left)
    }

    /// Sets a new lease. In quarantine it also restores the tenure with the named token, or its count of holds.
    ///
    /// # Errors
    /// [`Refusal::NotHeld`], or [`Refusal::TokenFarAhead`].
    pub fn renew(&mut self, request: &RenewRequest) -> Result<FencingToken, Refusal> {
        self.expire_and_serve();
        let deadline = self.now.mono.after(request.lease);
        match (self.lock.holder(&request.owner), request.token) {
            (Some(known), named) if named.is_none_or(|named| named == known.token) => {
                let token = known.token;
                let was_confirmed = self.is_confirmed(known);
                // A promoted replica that missed a re-entry or a release knows another count.
                let named_holds = request.holds.filter(|_| named.is_some() && !self.holds_confirmed(known));
                let renewed =
                    Holder { deadline, holds: named_holds.unwrap_or(known.holds), ..known.cloned() };
                let change = Change::Put(renewed);
                let event = event_of(self.lock, &change);
                self.change(change, event);
                if named_holds.is_some() {
                    self.effects.see_holds_named(token);
                }
                if !was_confirmed {
                    self.effects.see_renewed(token);
                    self.serve_other_waits_of(&request.owner);
                }
                self.counters.renewed = self.counters.renewed.wrapping_add(1);
                Ok(token)
            }
            (_, Some(token)) if self.quarantine.in_force(self.now) => {
                self.restore(request, token, deadline)?;
                Ok(token)
            }
            _ => Err(Refusal::NotHeld(self.not_held(&request.owner))),
        }
    }

    /// Ends the tenures whose lease is over, and serves the wait queue.
    #[inline(always)]
    pub fn expire_and_serve(&mut self) {
        let now = self.now.mono;
        if self.lock.any_expired(now) {
            self.end_all(|holder| holder.is_over(now), End::LeaseOver, Event::LeaseOver);
        }
        self.serve();
    }

    /// Takes back a grant whose client disconnected before the reply was sent, and serves the wait queue. Does nothing if that
    /// tenure is over.
    pub fn pass_on(&mut self, owner: &Owner, token: FencingToken) {
        let undelivered =
            ReleaseRequest { owner: owner.clone(), left: HoldsLeft::OneLess, token: Some(token) };
        self.expire_and_serve();
        // An error means that the tenure has ended meanwhile.
        if let Ok((_, ended)) = self.release_holds(&undelivered) {
            self.count_release(ended);
            self.serve();
        }
    }

    /// Decides on a lock that may have changed without a decision, as by RENAME: like [`Decision::expire_and_serve`], and its
    /// holders re-enter with their own waits.
    pub fn recheck(&mut self) {
        self.expire_and_serve();
        if let Some(queue) = self.queue {
            let waits = |holder: &Holder<&Owner>| self.queues.first_of(queue, holder.owner).is_some();
            let holders = self.lock.holders().filter(waits).filter(|holder| self.is_confirmed(*holder));
            let owners: Vec<Owner> = holders.map(|holder| holder.owner.clone()).collect();
            owners.iter().for_each(|owner| self.serve_other_waits_of(owner));
        }
    }

    /// The instant of the next decision that the waiters need: the end of the first lease, or of the quarantine.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.lock.first_deadline().into_iter().chain(self.quarantine.ends(self.now.mono)).min()
    }

    #[inline]
    fn change(&mut self, change: Change, event: Event) {
        self.effects.change(self.lock, change, event, self.now);
    }

    #[inline(never)]
    fn end_all(&mut self, ends: impl Fn(Holder<&Owner>) -> bool, end: End, event: Event) {
        let ended = self.lock.holders().filter(|holder| ends(*holder));
        for holder in ended.clone() {
            match end {
                End::LeaseOver => self.counters.lease_ended(holder.since, holder.deadline),
                End::Released => self.counters.end(holder.since, self.now.mono),
            }
        }
        let changes: Vec<Change> = ended.map(|holder| Change::End(holder.token, end)).collect();
        self.effects.events.extend(iter::repeat_n(event, changes.len()));
        self.effects.change_all(self.lock, changes, self.now);
    }

    fn has_waiters(&self) -> bool {
        self.queue.is_some_and(|queue| !self.queues.is_empty(queue))
    }

    /// Whether the request is decided as a re-entry. Not while there are more holders than the request allows. And not if the
    /// owner asks for its first hold of an unconfirmed tenure: that tenure may have ended, and another one may have begun,
    /// without a trace on this server.
    #[inline(always)]
    fn re_enters(&self, request: &AcquireRequest) -> bool {
        let Some(known) = self.lock.holder(&request.owner) else { return false };
        request.slots.allows(self.lock.holders().len())
            && (request.holds != Some(1) || self.is_confirmed(known))
    }

    /// Whether a tenure is known to go on: it began in this quarantine or was renewed in it, or there is no quarantine.
    fn is_confirmed(&self, known: Holder<&Owner>) -> bool {
        !self.quarantine.in_force(self.now)
            || !self.quarantine.is_unconfirmed(known.since)
            || self.quarantine_memory.merge(self.effects.quarantine_memory()).renewed == Some(known.token)
    }

    /// Whether the count of holds is known to be right: the tenure began in this quarantine, or its owner has named the count in
    /// it, or there is no quarantine.
    fn holds_confirmed(&self, known: Holder<&Owner>) -> bool {
        !self.quarantine.in_force(self.now)
            || !self.quarantine.is_unconfirmed(known.since)
            || self.quarantine_memory.merge(self.effects.quarantine_memory()).holds_named == Some(known.token)
    }

    fn admits(&self, slots: Slots) -> bool {
        self.lock.admits(slots) && !self.quarantine.in_force(self.now)
    }

    /// Grants the lock to the first waiter for as long as it fits.
    #[inline]
    fn serve(&mut self) {
        if let Some(queue) = self.queue {
            self.serve_queue(queue);
        }
    }

    #[inline(never)]
    fn serve_queue(&mut self, queue: QueueId) {
        while let Some(first) = self.queues.front(queue) {
            let request = &first.wait_request.request;
            if !self.re_enters(request) && !self.admits(request.slots) {
                return;
            }
            if let Some((waiter, has_other_waits)) = self.queues.pop_front(queue) {
                let owner = has_other_waits.then(|| waiter.wait_request.request.owner.clone());
                self.complete(waiter);
                owner.iter().for_each(|owner| self.serve_other_waits_of(owner));
            }
        }
    }

    /// The owner of a new tenure re-enters with its other waits, up to one that allows fewer owners than there are holders.
    fn serve_other_waits_of(&mut self, owner: &Owner) {
        let Some(queue) = self.queue else { return };
        if self.lock.holder(owner).is_none() {
            return;
        }
        let holders = self.lock.holders().len();
        let fits = |first: &Waiter<H>| first.wait_request.request.slots.allows(holders);
        while self.queues.first_of(queue, owner).is_some_and(fits) {
            if let Some(waiter) = self.queues.pop_owner(queue, owner) {
                self.complete(waiter);
            }
        }
    }

    fn complete(&mut self, waiter: Waiter<H>) {
        let outcome = match self.admit(&waiter.wait_request.request) {
            Ok(grant) => {
                let is_new = grant.counted && grant.holds == 1;
                self.counters.handed_off = self.counters.handed_off.wrapping_add(is_new.into());
                self.counters.wait_durations.record(self.now.mono.micros_since(waiter.since));
                Outcome::Granted(grant)
            }
            Err(refusal) => Outcome::Refused(refusal),
        };
        self.effects.completions.push(Completion { waiter, outcome });
    }

    /// Grants a request that fits: a re-entry or a new tenure.
    #[inline(always)]
    fn admit(&mut self, request: &AcquireRequest) -> Result<Grant, Refusal> {
        let deadline = self.now.mono.after(request.lease);
        if let Some(known) = self.lock.holder(&request.owner) {
            let holds = match request.holds {
                None => known.holds.checked_add(1).ok_or(Refusal::TooManyHolds)?,
                Some(named) if named == known.holds || named.checked_sub(1) == Some(known.holds) => named,
                Some(_) => return Err(Refusal::Holds { has: known.holds }),
            };
            let re_entered = Holder {
                holds,
                deadline: known.deadline.max(deadline),
                slots: known.slots.min(request.slots),
                ..known.cloned()
            };
            let grant = Grant { token: re_entered.token, holds, counted: holds > known.holds };
            self.counters.re_entered = self.counters.re_entered.wrapping_add(grant.counted.into());
            let event = if grant.counted { Event::Acquired } else { Event::Renewed };
            if request.holds.is_some() && !self.holds_confirmed(known) {
                self.effects.see_holds_named(grant.token);
            }
            if re_entered.deadline != known.deadline || re_entered.slots != known.slots {
                self.change(Change::Put(re_entered), event);
            } else if grant.counted {
                self.change(Change::Count(grant.token, holds), event);
            }
            return Ok(grant);
        }
        if request.holds.is_some_and(|named| named != 1) {
            return Err(Refusal::Holds { has: 0 });
        }
        let token = self.tokens.next(self.now.wall).ok_or(Refusal::TokensUsedUp)?;
        let owner = request.owner.clone();
        let (slots, since) = (request.slots, self.now.mono);
        let tenure = Holder { owner, holds: 1, slots, token, deadline, since };
        self.change(Change::Put(tenure), Event::Acquired);
        self.counters.acquired = self.counters.acquired.wrapping_add(1);
        Ok(Grant { token, holds: 1, counted: true })
    }

    fn count_release(&mut self, ended: Option<Instant>) {
        if let Some(since) = ended {
            self.counters.release(since, self.now.mono);
        }
    }

    /// Returns the holds left and, if this ended the tenure, the instant at which it began.
    #[inline(always)]
    fn release_holds(&mut self, request: &ReleaseRequest) -> Result<(u32, Option<Instant>), Refusal> {
        let Some(known) = self.lock.holder(&request.owner) else {
            // The release that ended the tenure is repeated: no holds are left, as it asked for.
            return match request.left {
                HoldsLeft::Exactly(0) => Ok((0, None)),
                HoldsLeft::Exactly(_) | HoldsLeft::OneLess | HoldsLeft::None => {
                    Err(Refusal::NotHeld(self.not_held(&request.owner)))
                }
            };
        };
        if request.token.is_some_and(|named| named != known.token) {
            return Err(Refusal::NotHeld(self.not_held(&request.owner)));
        }
        let one_less = known.holds.saturating_sub(1);
        let left = match request.left {
            HoldsLeft::OneLess => one_less,
            HoldsLeft::None => 0,
            HoldsLeft::Exactly(named) if named == one_less || named == known.holds => named,
            HoldsLeft::Exactly(_) => return Err(Refusal::Holds { has: known.holds }),
        };
        let (token, since) = (known.token, known.since);
        let unchanged = left == known.holds;
        if matches!(request.left, HoldsLeft::Exactly(_)) && !self.holds_confirmed(known) {
            self.effects.see_holds_named(token);
        }
        if unchanged {
            return Ok((left, None));
        }
        let change = if left == 0 { Change::End(token, End::Released) } else { Change::Count(token, left) };
        self.change(change, Event::Released);
        Ok((left, (left == 0).then_some(since)))
    }

    /// Restores a tenure that this server has lost. Of two claims the larger token wins, as it was granted later.
    fn restore(
        &mut self,
        request: &RenewRequest,
        token: FencingToken,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        if self.tokens.is_far_ahead(token, self.now.wall) {
            return Err(Refusal::TokenFarAhead);
        }
        let ended = self.quarantine_memory.merge(self.effects.quarantine_memory()).ended;
        let held = self.lock.holders().map(|holder| holder.token).max();
        if ended.max(held) >= Some(token) {
            return Err(Refusal::NotHeld(self.not_held(&request.owner)));
        }
        self.end_all(|_| true, End::Released, Event::Released);
        self.tokens.observe(token);
        let (owner, holds, since) = (request.owner.clone(), request.holds.unwrap_or(1), self.now.mono);
        let restored = Holder { owner, holds, slots: Slots::EXCLUSIVE, token, deadline, since };
        self.change(Change::Put(restored), Event::Acquired);
        self.counters.restored = self.counters.restored.wrapping_add(1);
        self.serve_other_waits_of(&request.owner);
        Ok(())
    }

    fn not_held(&self, owner: &Owner) -> NotHeld {
        match (self.lock.holder(owner), self.lock.holders().map(|holder| holder.token).max()) {
            (Some(own), _) => NotHeld::OtherToken(own.token),
            (None, Some(latest)) => NotHeld::ByAnother(latest),
            (None, None) => NotHeld::Free,
        }
    }
}
