//! One decision on one lock. This file decides every grant.
//!
//! The module makes a decision for a command, for the wake-up timer, for a key that was deleted, or for a client that
//! disconnected. A decision always begins with two steps: it ends the tenures whose leases are over, and it serves the
//! wait queue. The decision on the request comes after these two steps. So no new owner overtakes a waiter, and a lock
//! is never free while a waiter could get it. (A release on a replica skips both steps, because the primary decides
//! about leases and waiters.)
//!
//! | the owner | the lock | acquire | release | renew |
//! | --- | --- | --- | --- | --- |
//! | holds it | | one more hold, the lease is never shortened | one hold less; after the last hold, waiters are served | new lease; with a larger limit, waiters are served |
//! | does not hold it | admits it, and nobody waits | new tenure | not held | not held |
//! | does not hold it | does not admit it, or clients wait | busy | not held | not held |
//! | does not hold it | in quarantine | busy | not held | restored by its token |
//! | holds it, unconfirmed | in quarantine | one more hold; busy for `HOLDS 1` | as in the first row | new lease and mode, and the owner's waits re-enter |
//!
//! In quarantine, a tenure is *unconfirmed* if it is from before the quarantine or from loaded data, and its owner has
//! not renewed it since. The server does not know whether such a tenure still lasts. [`Load::admits`] is the one rule
//! for all kinds of lock. Only [`Decision::admission`] says what happens to a request, both when the request arrives
//! and while its client waits.
//!
//! A decision changes the lock in memory and records the changes in [`Effects`]. The caller carries the effects out
//! before anything else reads the lock.
//!
//! For speed, the usual path is inlined. Rare work (a lease that is over, a re-entry, a wait queue) is in separate
//! functions.

use crate::change::{Change, End};
use crate::counters::Counters;
use crate::effects::{Effects, Event, event_of};
use crate::holder::{Holder, Load, Mode, Slots, Weight};
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

/// One decision ends at most this many expired tenures one by one. This work takes about 5 ms. The remaining expired
/// tenures hold the lock until the next decision. If clients wait, the next decision is due at once.
const MOST_ENDED: usize = 4_096;

/// The answer to an acquisition that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The owner holds the lock.
    Granted(Grant),
    /// The owner does not hold the lock, and may wait.
    Busy,
}

/// A decision on one lock, and all that the decision depends on.
#[derive(Debug)]
pub struct Decision<'a, H> {
    /// The stored lock, the dropped lock, or a free lock if the key has neither.
    pub lock: &'a mut Lock,
    /// The wait queue of the lock, if there is one.
    pub queue: Option<QueueId>,
    /// All wait queues.
    pub queues: &'a mut WaitQueues<H>,
    /// Where new tenures get their token.
    pub tokens: &'a mut TokenSource,
    /// The quarantine, in which no new tenure is granted.
    pub quarantine: Quarantine,
    /// What this server has observed of the lock in this quarantine; `None` when there is no quarantine.
    pub quarantine_memory: Option<&'a mut QuarantineMemory>,
    /// Where the effects are recorded.
    pub effects: &'a mut Effects<H>,
    /// Where results are counted.
    pub counters: &'a mut Counters,
    /// The time of the decision.
    pub now: Now,
}

/// What happens to a request.
enum Admission {
    /// The owner holds the lock. The request adds a hold or repeats an earlier request.
    ReEnter {
        /// The owner's tenure.
        known: Holder<()>,
        /// The count of holds after the request.
        holds: u32,
    },
    /// A new tenure.
    New,
    /// The request has to wait.
    Wait,
    /// The request gets an error.
    Refuse(Refusal),
}

impl<H: Copy + Eq + Hash> Decision<'_, H> {
    /// Decides on a request for the lock: grants a hold, or replies that the lock is busy.
    ///
    /// # Errors
    /// [`Refusal::Mode`] when the request names a smaller limit or another weight than the owner has,
    /// [`Refusal::Holds`] when the named count is neither the owner's count nor one more, [`Refusal::TooManyHolds`],
    /// [`Refusal::TokensUsedUp`].
    pub fn acquire(&mut self, request: &AcquireRequest) -> Result<Acquired, Refusal> {
        self.expire_and_serve();
        match self.admission(request) {
            Admission::ReEnter { known, holds } => {
                Ok(Acquired::Granted(self.re_enter(request, known, holds)))
            }
            Admission::New if !self.is_behind(request) => {
                let grant = self.begin_tenure(request)?;
                if let Some(queue) = self.queue {
                    self.end_own_places(queue, request);
                }
                Ok(Acquired::Granted(grant))
            }
            Admission::New | Admission::Wait => Ok(Acquired::Busy),
            Admission::Refuse(refusal) => Err(refusal),
        }
    }

    /// What happens to a request. No other function makes this decision. The caller checks whether other requests wait
    /// before this request.
    #[inline(always)]
    fn admission(&self, request: &AcquireRequest) -> Admission {
        if let Some(known) = self.lock.holder(&request.owner) {
            return self.re_entry(request, known);
        }
        if request.holds.is_some_and(|named| named != 1) {
            return Admission::Refuse(Refusal::Holds { has: 0 });
        }
        let fits = self.quarantine_memory.is_none() && self.lock.load().admits(request.mode());
        if fits { Admission::New } else { Admission::Wait }
    }

    /// What happens to a request of a holder.
    #[inline(never)]
    fn re_entry(&self, request: &AcquireRequest, known: Holder<&Owner>) -> Admission {
        // The request asks for the first hold, but the owner's tenure is unconfirmed. This server may have missed that
        // the tenure ended, and that another tenure began.
        if request.holds == Some(1) && !self.is_confirmed(known) {
            return Admission::Wait;
        }
        if request.slots < known.mode.slots
            || request.weight.is_some_and(|weight| weight != known.mode.weight)
        {
            return Admission::Refuse(Refusal::Mode { has: known.mode });
        }
        let re_enter = |holds| Admission::ReEnter { known: known.map_owner(|_| ()), holds };
        match request.holds {
            None => known.holds.checked_add(1).map_or(Admission::Refuse(Refusal::TooManyHolds), re_enter),
            Some(named) if named == known.holds || named.checked_sub(1) == Some(known.holds) => {
                re_enter(named)
            }
            Some(_) => Admission::Refuse(Refusal::Holds { has: known.holds }),
        }
    }

    /// Whether other requests wait before this request.
    #[inline]
    fn is_behind(&self, request: &AcquireRequest) -> bool {
        self.queue.is_some_and(|queue| self.queues.is_behind(queue, request))
    }

    /// Ends all queue places of an owner that was granted the lock without a wait. If the request names its count of
    /// holds, a wait in the owner's first place ends as superseded. The owner's other waits re-enter. Last, the wait
    /// queue is served, because the waiters behind these places may fit now.
    #[inline(never)]
    fn end_own_places(&mut self, queue: QueueId, request: &AcquireRequest) {
        if request.holds.is_some()
            && let Some(waiter) = self.queues.pop_first_place(queue, &request.owner)
        {
            self.effects.completions.push(Completion { waiter, outcome: Outcome::Superseded });
        }
        self.serve_other_waits_of(&request.owner);
        self.serve();
    }

    /// Releases one hold or all, and serves the wait queue. Returns the holds left. If the request names the count to
    /// be left and no token, the release also ends the owner's waits and kept places that name a larger count. In this
    /// way a client that stops waiting cancels its earlier requests.
    ///
    /// # Errors
    /// [`Refusal::NotHeld`], or [`Refusal::Holds`] when the named count is neither the owner's count nor one less.
    pub fn release(&mut self, request: &ReleaseRequest) -> Result<u32, Refusal> {
        self.expire_and_serve();
        let is_first = !self.effects.changed();
        if is_first && self.queue.is_none() {
            // This release is the only change, because nobody waits.
            self.effects.skip_encoding();
        }
        let (left, ended) = self.release_holds(request)?;
        if is_first {
            self.effects.replicate_verbatim();
        }
        self.count_release(ended);
        if let Some(queue) = self.queue {
            self.cancel_requests(queue, request);
            self.serve_queue(queue);
        }
        Ok(left)
    }

    /// Ends the waits and kept places that a release cancels.
    #[inline(never)]
    fn cancel_requests(&mut self, queue: QueueId, request: &ReleaseRequest) {
        if let (HoldsLeft::Exactly(left), None) = (request.left, request.token) {
            while let Some(waiter) = self.queues.pop_naming_more(queue, &request.owner, left) {
                self.effects.completions.push(Completion { waiter, outcome: Outcome::Superseded });
            }
        }
    }

    /// Carries out a release that the primary has replicated. Ends no lease and serves no waiter, because the primary
    /// decides about leases and waiters.
    ///
    /// # Errors
    /// As [`Decision::release`].
    pub fn apply_release(&mut self, request: &ReleaseRequest) -> Result<u32, Refusal> {
        self.effects.skip_encoding();
        let (left, _) = self.release_holds(request)?;
        Ok(left)
    }

    /// Sets a new lease, and a larger limit if the request names one. In quarantine, a renewal can also restore the
    /// tenure with the named token, or correct the count of holds and the mode of a stored tenure.
    ///
    /// # Errors
    /// [`Refusal::NotHeld`], [`Refusal::Mode`] for a smaller limit or another weight, or [`Refusal::TokenFarAhead`].
    pub fn renew(&mut self, request: &RenewRequest) -> Result<FencingToken, Refusal> {
        self.expire_and_serve();
        match (self.lock.holder(&request.owner), request.token) {
            (Some(known), named) if named.is_none_or(|named| named == known.token) => {
                let token = known.token;
                self.renew_known(request, known.cloned())?;
                self.counters.renewed = self.counters.renewed.wrapping_add(1);
                Ok(token)
            }
            (_, Some(token)) if self.quarantine_memory.is_some() => {
                self.restore(request, token)?;
                Ok(token)
            }
            _ => Err(Refusal::NotHeld(self.not_held(&request.owner))),
        }
    }

    fn renew_known(&mut self, request: &RenewRequest, known: Holder) -> Result<(), Refusal> {
        let was_confirmed = self.is_confirmed(known.as_ref());
        let is_claim = !was_confirmed && request.token.is_some();
        let mode =
            if is_claim { self.claimed_mode(request, &known)? } else { renewed_mode(request, &known)? };
        let (is_downgrade, token) = (mode.slots > known.mode.slots, known.token);
        let holds = self.claimed_holds(request, &known);
        let deadline = self.now.mono.after(request.lease);
        let change = Change::Put(Holder { deadline, holds, mode, ..known });
        let event = event_of(self.lock, &change);
        self.change(change, event);
        if let Some(memory) = self.quarantine_memory.as_mut().filter(|_| !was_confirmed) {
            memory.see_renewed(token);
            self.serve_other_waits_of(&request.owner);
        }
        if is_downgrade {
            self.serve();
        }
        Ok(())
    }

    /// The mode of a claimed tenure. A claim is a renewal of an unconfirmed tenure by its token. A claim sets the mode
    /// that the request names, because this server may have missed a change of the mode.
    fn claimed_mode(&mut self, request: &RenewRequest, known: &Holder) -> Result<Mode, Refusal> {
        let Some(slots) = request.slots else { return Ok(known.mode) };
        let claimed = Mode { slots, weight: request.weight.unwrap_or(Weight::ONE) };
        self.make_room(&known.owner, known.token, claimed)?;
        Ok(claimed)
    }

    /// The count of holds of a renewed tenure. If the stored count is unconfirmed and the request names a token, the
    /// count that the request names replaces the stored count, because a promoted replica may have missed a re-entry or
    /// a release.
    fn claimed_holds(&mut self, request: &RenewRequest, known: &Holder) -> u32 {
        match request.holds.filter(|_| request.token.is_some() && !self.holds_confirmed(known.as_ref())) {
            Some(named) => {
                self.see_holds_named(known.token);
                named
            }
            None => known.holds,
        }
    }

    /// Ends the tenures whose lease is over, and serves the wait queue.
    #[inline(always)]
    pub fn expire_and_serve(&mut self) {
        if self.lock.any_expired(self.now.mono) {
            self.end_expired();
        }
        self.serve();
    }

    #[inline(never)]
    fn end_expired(&mut self) {
        let now = self.now.mono;
        if self.lock.holders().len() > MOST_ENDED && self.lock.last_deadline() <= Some(now) {
            if let Some(memory) = &mut self.quarantine_memory {
                let holders = self.lock.holders();
                holders.for_each(|holder| memory.see_ended(holder.token, holder.mode, End::LeaseOver));
            }
            return self.effects.all_over(self.lock, self.now);
        }
        for token in self.lock.expired(now, MOST_ENDED) {
            if let Some(holder) = self.lock.of_token(token) {
                let (since, deadline, mode) = (holder.since, holder.deadline, holder.mode);
                self.counters.lease_ended(since, deadline);
                self.see_ended(token, mode, End::LeaseOver);
                self.change(Change::End(token, End::LeaseOver), Event::LeaseOver);
            }
        }
    }

    /// Takes back a grant whose client disconnected before the reply was sent, and serves the wait queue. Takes nothing
    /// back if the tenure with this token has already ended. Returns whether this call has ended the tenure.
    pub fn pass_on(&mut self, owner: &Owner, token: FencingToken) -> bool {
        let undelivered =
            ReleaseRequest { owner: owner.clone(), left: HoldsLeft::OneLess, token: Some(token) };
        self.expire_and_serve();
        // An error means that the tenure has ended meanwhile.
        let Ok((left, ended)) = self.release_holds(&undelivered) else { return false };
        self.count_release(ended);
        self.serve();
        left == 0
    }

    /// Decides on a lock that may have changed without a decision, for example by RENAME. First this function
    /// does the same as [`Decision::expire_and_serve`]. Then confirmed holders that also wait for the lock
    /// re-enter, and their kept places end. Last, the queue is served again, because the waiters behind these
    /// holders may fit.
    pub fn recheck(&mut self) {
        self.expire_and_serve();
        if let Some(queue) = self.queue {
            let waiting = self.queues.waiters_in(queue).map(|waiter| &waiter.wait_request.request.owner);
            let absent = self.queues.places_in(queue).map(|(owner, _)| owner);
            let holds =
                |owner: &&Owner| self.lock.holder(owner).is_some_and(|known| self.is_confirmed(known));
            let owners: Vec<Owner> = waiting.chain(absent).filter(holds).cloned().collect();
            owners.iter().for_each(|owner| self.serve_other_waits_of(owner));
            self.serve();
        }
    }

    /// The instant of the next decision that the waiters need: the end of the first lease or the end of the quarantine.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.lock.first_deadline().into_iter().chain(self.quarantine.ends(self.now.mono)).min()
    }

    #[inline]
    fn change(&mut self, change: Change, event: Event) {
        self.effects.change(self.lock, change, event, self.now);
    }

    /// Whether the server knows that a tenure still lasts. The server knows this if the tenure began or was renewed in
    /// this quarantine, or if there is no quarantine.
    fn is_confirmed<O>(&self, known: Holder<O>) -> bool {
        self.quarantine_memory.as_ref().is_none_or(|memory| {
            !self.quarantine.is_unconfirmed(known.since) || memory.has_renewed(known.token)
        })
    }

    /// Whether the server knows that the count of holds is right. Without a quarantine, the server always knows this.
    /// In a quarantine, the server knows this if the tenure began, or its owner named the count, in this quarantine.
    fn holds_confirmed<O>(&self, known: Holder<O>) -> bool {
        self.quarantine_memory.as_ref().is_none_or(|memory| {
            !self.quarantine.is_unconfirmed(known.since) || memory.has_named_holds(known.token)
        })
    }

    fn see_holds_named(&mut self, token: FencingToken) {
        if let Some(memory) = &mut self.quarantine_memory {
            memory.see_holds_named(token);
        }
    }

    #[inline]
    fn see_ended(&mut self, token: FencingToken, mode: Mode, end: End) {
        if let Some(memory) = &mut self.quarantine_memory {
            memory.see_ended(token, mode, end);
        }
    }

    /// Serves the waiters in order, until one has to wait.
    #[inline]
    fn serve(&mut self) {
        if let Some(queue) = self.queue {
            self.serve_queue(queue);
        }
    }

    #[inline(never)]
    fn serve_queue(&mut self, queue: QueueId) {
        while let Some(first) = self.queues.front(queue) {
            let admission = self.admission(&first.wait_request.request);
            if matches!(admission, Admission::Wait) {
                return;
            }
            if let Some((waiter, has_other_places)) = self.queues.pop_front(queue) {
                let owner = has_other_places.then(|| waiter.wait_request.request.owner.clone());
                self.complete(waiter, admission);
                owner.iter().for_each(|owner| self.serve_other_waits_of(owner));
            }
        }
    }

    /// Ends the waits of an owner that holds the lock: each wait is granted as a re-entry, or gets an error, for
    /// example for a smaller limit or another weight. After these waits, the owner's kept places end. While the tenure
    /// is unconfirmed, the owner's waits with HOLDS 1 and its kept places remain in the queue.
    fn serve_other_waits_of(&mut self, owner: &Owner) {
        let Some(queue) = self.queue else { return };
        if self.lock.holder(owner).is_none() {
            return;
        }
        while let Some(first) = self.queues.first_of(queue, owner) {
            let admission = self.admission(&first.wait_request.request);
            if matches!(admission, Admission::Wait) {
                return;
            }
            if let Some(waiter) = self.queues.pop_owner(queue, owner) {
                self.complete(waiter, admission);
            }
        }
        self.queues.end_places_of(queue, owner, self.now.mono);
    }

    fn complete(&mut self, waiter: Waiter<H>, admission: Admission) {
        let request = &waiter.wait_request.request;
        let decided = match admission {
            Admission::ReEnter { known, holds } => Ok(self.re_enter(request, known, holds)),
            Admission::New => self.begin_tenure(request).inspect(|_| {
                self.counters.handed_off = self.counters.handed_off.wrapping_add(1);
            }),
            Admission::Wait => return,
            Admission::Refuse(refusal) => Err(refusal),
        };
        let outcome = match decided {
            Ok(grant) => {
                self.counters.wait_durations.record(self.now.mono.micros_since(waiter.since));
                Outcome::Granted(grant)
            }
            Err(refusal) => Outcome::Refused(refusal),
        };
        self.effects.completions.push(Completion { waiter, outcome });
    }

    /// Sets the holder's count to `holds`. The lease may get longer, but never shorter.
    #[inline(never)]
    fn re_enter(&mut self, request: &AcquireRequest, known: Holder<()>, holds: u32) -> Grant {
        let deadline = known.deadline.max(self.now.mono.after(request.lease));
        let counted = holds > known.holds;
        self.counters.re_entered = self.counters.re_entered.wrapping_add(counted.into());
        let event = if counted { Event::Acquired } else { Event::Renewed };
        if request.holds.is_some() && !self.holds_confirmed(known) {
            self.see_holds_named(known.token);
        }
        if deadline != known.deadline {
            let re_entered = Holder { holds, deadline, ..known };
            self.change(Change::Put(re_entered.map_owner(|()| request.owner.clone())), event);
        } else if counted {
            self.change(Change::Count(known.token, holds), event);
        }
        Grant { token: known.token, holds, counted, lease: deadline.since(self.now.mono) }
    }

    /// Begins a new tenure for a request that fits.
    #[inline(always)]
    fn begin_tenure(&mut self, request: &AcquireRequest) -> Result<Grant, Refusal> {
        let token = self.tokens.next(self.now.wall).ok_or(Refusal::TokensUsedUp)?;
        let (owner, mode, since) = (request.owner.clone(), request.mode(), self.now.mono);
        let deadline = since.after(request.lease);
        let tenure = Holder { owner, holds: 1, mode, token, deadline, since };
        self.change(Change::Put(tenure), Event::Acquired);
        self.counters.acquired = self.counters.acquired.wrapping_add(1);
        Ok(Grant { token, holds: 1, counted: true, lease: request.lease })
    }

    fn count_release(&mut self, ended: Option<Instant>) {
        if let Some(since) = ended {
            self.counters.release(since, self.now.mono);
        }
    }

    /// Returns the holds left and, if this call ended the tenure, the instant at which the tenure began.
    #[inline(always)]
    fn release_holds(&mut self, request: &ReleaseRequest) -> Result<(u32, Option<Instant>), Refusal> {
        let Some(known) = self.lock.holder(&request.owner) else {
            return match request.left {
                // The request may repeat the release that ended the tenure.
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
        let (token, since, mode) = (known.token, known.since, known.mode);
        let unchanged = left == known.holds;
        if matches!(request.left, HoldsLeft::Exactly(_)) && !self.holds_confirmed(known) {
            self.see_holds_named(token);
        }
        if unchanged {
            return Ok((left, None));
        }
        let change = if left == 0 {
            self.see_ended(token, mode, End::Released);
            Change::End(token, End::Released)
        } else {
            Change::Count(token, left)
        };
        self.change(change, Event::Released);
        Ok((left, (left == 0).then_some(since)))
    }

    /// Restores a tenure that this server has lost.
    fn restore(&mut self, request: &RenewRequest, token: FencingToken) -> Result<(), Refusal> {
        if self.tokens.is_far_ahead(token, self.now.wall) {
            return Err(Refusal::TokenFarAhead);
        }
        let (owner, slots) = (&request.owner, request.slots.unwrap_or(Slots::EXCLUSIVE));
        let mode = Mode { slots, weight: request.weight.unwrap_or(Weight::ONE) };
        let own = self.lock.holder(owner).map(|own| (own.token, own.since));
        let went_on = own.is_some_and(|(own, _)| own > token) || self.lock.of_token(token).is_some();
        let has_ended =
            self.quarantine_memory.as_ref().is_some_and(|memory| !memory.may_restore(token, mode));
        if went_on || has_ended {
            return Err(Refusal::NotHeld(self.not_held(owner)));
        }
        self.make_room(owner, token, mode)?;
        if let Some((own, since)) = own {
            self.counters.end(since, self.now.mono);
            self.change(Change::End(own, End::Released), Event::Released);
        }
        self.tokens.observe(token);
        let (holds, since) = (request.holds.unwrap_or(1), self.now.mono);
        let deadline = since.after(request.lease);
        let restored = Holder { owner: owner.clone(), holds, mode, token, deadline, since };
        self.change(Change::Put(restored), Event::Acquired);
        self.counters.restored = self.counters.restored.wrapping_add(1);
        self.serve_other_waits_of(owner);
        Ok(())
    }

    /// Ends tenures of other owners if a claimed tenure does not fit beside them. If the claim and these tenures do not
    /// all fit together, this function tries them in this order: first the confirmed tenures and the claim, from the
    /// largest token to the smallest, then the unconfirmed tenures. A tenure stays if it fits beside all tenures that
    /// stay already. Each other tenure ends, and its owner may claim it again.
    ///
    /// # Errors
    /// [`Refusal::NotHeld`] when the claim does not fit. In this case no tenure ends.
    fn make_room(&mut self, owner: &Owner, token: FencingToken, mode: Mode) -> Result<(), Refusal> {
        let own = self.lock.holder(owner).map(|own| own.token);
        let others = || self.lock.holders().rev().filter(|holder| Some(holder.token) != own);
        if self.lock.load_without(own).admits(mode) {
            return Ok(());
        }
        let mut stays = Load::NONE;
        for holder in
            others().take_while(|holder| holder.token > token).filter(|holder| self.is_confirmed(*holder))
        {
            stays = stays.plus(holder.mode);
            if !stays.admits(mode) {
                return Err(Refusal::NotHeld(self.not_held(owner)));
            }
        }
        stays = stays.plus(mode);
        let mut ends = Vec::new();
        let older = others().filter(|holder| holder.token < token && self.is_confirmed(*holder));
        let remembered = others().filter(|holder| !self.is_confirmed(*holder));
        for holder in older.chain(remembered) {
            if stays.admits(holder.mode) {
                stays = stays.plus(holder.mode);
            } else {
                ends.push((holder.token, holder.since));
            }
        }
        for (token, since) in ends {
            self.counters.end(since, self.now.mono);
            self.change(Change::End(token, End::Released), Event::Released);
        }
        Ok(())
    }

    #[inline(never)]
    fn not_held(&self, owner: &Owner) -> NotHeld {
        match (self.lock.holder(owner), self.lock.last_token()) {
            (Some(own), _) => NotHeld::OtherToken(own.token),
            (None, Some(latest)) => NotHeld::ByAnother(latest),
            (None, None) => NotHeld::Free,
        }
    }
}

/// The mode of a renewed tenure: a renewal may name a larger limit, but not another weight.
fn renewed_mode(request: &RenewRequest, known: &Holder) -> Result<Mode, Refusal> {
    let slots = request.slots.unwrap_or(known.mode.slots);
    let keeps_weight = request.weight.is_none_or(|weight| weight == known.mode.weight);
    if slots >= known.mode.slots && keeps_weight {
        Ok(Mode { slots, ..known.mode })
    } else {
        Err(Refusal::Mode { has: known.mode })
    }
}
