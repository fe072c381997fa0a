//! Core, with simple versions of the parts that the module adds: keys, dropped locks, one timer, and a
//! replica.

use crate::KEYS;
use crate::operations::Setting;
use crate::reference::{Answer, Left, Mode as PlainMode, NamedMode, Tenure, Wait};
use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{
    Absence, AcquireRequest, Acquired, Completion, Counters, Db, Decision, DroppedLocks, Effects, Event,
    FencingToken, Full, Grant, Holder, HoldsLeft, Instant, LimitReached, Lock, Mode, NotHeld, Now, Outcome,
    Owner, Propagation, Quarantine, QuarantineMemory, QueueId, QueueLimits, Refusal, ReleaseRequest,
    RenewRequest, Slots, Span, TokenSource, WaitQueues, WaitRequest, Waiter, WallTime, Weight, event_of,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem;

pub fn instant(micros: i64) -> Instant {
    Instant::from_micros(micros)
}

pub fn span(micros: i64) -> Span {
    Span::from_millis(u64::try_from(micros / 1_000).unwrap()).unwrap()
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// Several kinds of owners: short, usual, long, binary, and numbered.
pub fn owner(number: usize) -> Owner {
    let numbered = format!("0f8fad5b-d9cb-469f-a165-70867728950e:{number}");
    let name: &[u8] = match number {
        0 => b"A",
        2 => &[b'x'; 300],
        3 => &[0, 0xff],
        _ => numbered.as_bytes(),
    };
    Owner::new(name).unwrap()
}

fn slots(number: u32) -> Slots {
    Slots::new(number).unwrap()
}

fn weight(mode: NamedMode) -> Option<Weight> {
    mode.weight.map(|weight| Weight::new(weight).unwrap())
}

pub fn as_holder(tenure: &Tenure) -> Holder {
    Holder {
        owner: owner(tenure.owner),
        holds: tenure.holds,
        mode: Mode::new(slots(tenure.mode.slots), Weight::new(tenure.mode.weight).unwrap()).unwrap(),
        token: token(tenure.token),
        deadline: instant(tenure.deadline),
        since: instant(tenure.since),
    }
}

fn granted(grant: Grant) -> Answer {
    let lease_left = i64::try_from(grant.lease.as_millis()).unwrap();
    Answer::Granted { token: grant.token.get(), holds: grant.holds, lease_left }
}

fn refused(refusal: Refusal) -> Answer {
    match refusal {
        Refusal::NotHeld(NotHeld::Free) => Answer::FreeNotHeld,
        Refusal::NotHeld(NotHeld::ByAnother(token)) => Answer::AnotherHas(token.get()),
        Refusal::NotHeld(NotHeld::OtherToken(token)) => Answer::ItHas(token.get()),
        Refusal::Holds { has } => Answer::HoldsDoNotFollow(has),
        Refusal::Mode { has: Mode { slots, weight } } => {
            Answer::ModeDiffers(PlainMode { slots: slots.number(), weight: weight.number() })
        }
        Refusal::TooManyHolds => Answer::TooManyHolds,
        Refusal::TokenFarAhead => Answer::TokenFarAhead,
        Refusal::TokensUsedUp => panic!("there are more tokens than a run can use"),
    }
}

fn ended(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Granted(grant) => granted(grant),
        Outcome::NotAcquired => Answer::NotAcquired,
        Outcome::Refused(refusal) => refused(refusal),
        Outcome::Superseded => Answer::Superseded,
        Outcome::BecameReplica => Answer::BecameReplica,
        Outcome::WrongType | Outcome::NotServed => panic!("the world ends no wait in this way"),
    }
}

/// A server, reduced to core, keys, one timer, and a replica.
pub struct World {
    stored: [Option<Lock>; KEYS],
    pub dropped_locks: DroppedLocks,
    replica: [Lock; KEYS],
    /// Whether the replica has the lock as a dropped lock, and not as a key.
    replica_has_dropped_lock: [bool; KEYS],
    /// The keys whose dropped lock was kept or forgotten, if this change is not replicated yet.
    unreplicated: BTreeSet<usize>,
    pub queues: WaitQueues<u32>,
    tokens: TokenSource,
    pub quarantine: Quarantine,
    quarantine_memory: [QuarantineMemory; KEYS],
    effects: Effects<u32>,
    counters: Counters,
    limits: QueueLimits,
    pub mono: Instant,
    pub wall: WallTime,
    key_of: HashMap<u32, usize>,
    /// The places of the waits that were granted, by handle.
    places: HashMap<u32, Waiter<u32>>,
    pub completions: Vec<(Instant, usize, u32, Answer)>,
}

/// The same key in several databases.
fn name(key: usize) -> (Db, &'static [u8]) {
    (Db(i32::try_from(key).unwrap()), b"lock")
}

impl World {
    pub fn new(setting: &Setting, began: i64) -> Self {
        Self {
            stored: Default::default(),
            dropped_locks: DroppedLocks::default(),
            replica: Default::default(),
            replica_has_dropped_lock: [false; KEYS],
            unreplicated: BTreeSet::new(),
            queues: WaitQueues::default(),
            tokens: TokenSource::default(),
            quarantine: Quarantine::new(instant(began), span(setting.quarantine * 1_000)),
            quarantine_memory: Default::default(),
            effects: Effects::default(),
            counters: Counters::default(),
            limits: QueueLimits { per_lock: setting.max_waiters.0, total: setting.max_waiters.1 },
            mono: instant(began),
            wall: WallTime::from_micros(setting.wall),
            key_of: HashMap::new(),
            places: HashMap::new(),
            completions: Vec::new(),
        }
    }

    pub fn now(&self) -> Now {
        Now { mono: self.mono, wall: self.wall }
    }

    pub fn in_quarantine(&self) -> bool {
        self.quarantine.ends(self.mono).is_some()
    }

    pub fn queue_id(&self, key: usize) -> Option<QueueId> {
        let (db, bytes) = name(key);
        self.queues.queue(db, bytes)
    }

    pub fn dropped_lock(&self, key: usize) -> Option<&Lock> {
        let (db, bytes) = name(key);
        self.dropped_locks.get(db, bytes)
    }

    pub fn lock(&self, key: usize) -> Option<&Lock> {
        self.stored[key].as_ref().or_else(|| self.dropped_lock(key))
    }

    /// The holders whose lease is not over. The next decision ends the tenures of the other holders.
    pub fn held(&self, key: usize) -> Vec<Holder> {
        let holders = self.lock(key).into_iter().flat_map(Lock::holders);
        holders.filter(|holder| !holder.is_over(self.mono)).map(Holder::cloned).collect()
    }

    pub fn queue(&self, key: usize) -> Vec<(u32, Instant)> {
        let queue = self.queue_id(key).into_iter().flat_map(|queue| self.queues.waiters_in(queue));
        queue.map(|waiter| (waiter.wait_request.handle, waiter.since)).collect()
    }

    /// The owners of the kept places, and whether each place holds back the waiters behind it.
    pub fn places(&self, key: usize) -> Vec<(Owner, bool)> {
        let places = self.queue_id(key).into_iter().flat_map(|queue| self.queues.places_in(queue));
        places.map(|(owner, holds_back)| (owner.clone(), holds_back)).collect()
    }

    pub fn waiting(&self, key: usize) -> usize {
        self.queue_id(key).map_or(0, |queue| self.queues.len(queue))
    }

    /// Makes one decision on one lock, and carries out all effects of the decision. `release` is the running command if
    /// this command is a release. Returns the answer, and the instant at which the lock is due again.
    fn decide<T>(
        &mut self,
        key: usize,
        release: Option<&ReleaseRequest>,
        act: impl FnOnce(&mut Decision<'_, u32>) -> T,
    ) -> Result<(T, Option<Instant>), TestCaseError> {
        let (now, (db, bytes)) = (self.now(), name(key));
        let dropped_lock = self.dropped_locks.take(db, bytes);
        let was_dropped = dropped_lock.is_some();
        prop_assert!(!was_dropped || self.stored[key].is_none());
        let mut lock = self.stored[key].take().or(dropped_lock).unwrap_or_default();
        let (tenures, counted) = (tokens(&lock), self.counters.clone());
        self.effects.clear();
        let in_quarantine = self.in_quarantine();
        let mut decision = Decision {
            lock: &mut lock,
            queue: self.queues.queue(db, bytes),
            queues: &mut self.queues,
            tokens: &mut self.tokens,
            quarantine: self.quarantine,
            quarantine_memory: in_quarantine.then_some(&mut self.quarantine_memory[key]),
            effects: &mut self.effects,
            counters: &mut self.counters,
            now,
        };
        let answer = act(&mut decision);
        let due = decision.due();
        self.check_counters(&tenures, &tokens(&lock), &counted)?;
        if was_dropped && !self.effects.changed() {
            self.dropped_locks.put(db, bytes, lock);
        } else {
            if was_dropped {
                self.effects.replicate_whole_lock(&lock, now);
                self.dropped_locks.mark_replicated(db, bytes);
                self.unreplicated.remove(&key);
                lock.recompute_expiry(now);
            }
            self.stored[key] = Some(lock).filter(|lock| !lock.is_free());
        }
        self.replicate(key, release, was_dropped)?;
        for completion in mem::take(&mut self.effects.completions) {
            self.complete(completion);
        }
        if let Some(queue) = self.queue_id(key) {
            self.queues.set_due(queue, due);
        }
        Ok((answer, due))
    }

    fn complete(&mut self, Completion { waiter, outcome }: Completion<u32>) {
        let handle = waiter.wait_request.handle;
        if let (Outcome::Granted(_), Some(place)) = (outcome, waiter.place()) {
            self.places.insert(handle, place);
        }
        self.completions.push((self.mono, self.key_of[&handle], handle, ended(outcome)));
    }

    /// Checks that the counters have counted the results of the decision.
    fn check_counters(
        &self,
        before: &HashSet<FencingToken>,
        after: &HashSet<FencingToken>,
        counted: &Counters,
    ) -> Result<(), TestCaseError> {
        let counters = &self.counters;
        let begun = counters.acquired + counters.restored - counted.acquired - counted.restored;
        let ended = counters.tenure_durations.len() - counted.tenure_durations.len();
        // A tenure may begin and end within one decision. The token of such a tenure is neither in `before`
        // nor in `after`.
        let gone = before.difference(after).count() as u64;
        let come = after.difference(before).count() as u64;
        prop_assert!(begun >= come && ended >= gone && begun + gone == ended + come, "{:?}", counters);
        let is_granted = |completion: &&Completion<u32>| matches!(completion.outcome, Outcome::Granted(_));
        let granted = self.effects.completions.iter().filter(is_granted).count() as u64;
        prop_assert_eq!(counters.wait_durations.len() - counted.wait_durations.len(), granted);
        Ok(())
    }

    /// Lets the replica apply the replicated changes, and checks that the replica then knows the same tenures as the
    /// primary.
    fn replicate(
        &mut self,
        key: usize,
        release: Option<&ReleaseRequest>,
        whole: bool,
    ) -> Result<(), TestCaseError> {
        let events = match self.effects.propagation() {
            Propagation::Nothing => Vec::new(),
            Propagation::Verbatim => {
                let release =
                    release.ok_or_else(|| TestCaseError::fail("no command to replicate verbatim"))?;
                self.apply_release_on_replica(key, release)?
            }
            Propagation::Changes(payload) => {
                let payload = payload.to_vec();
                self.apply_payload_on_replica(key, &payload)?
            }
        };
        if !whole {
            // If one decision grants several waits of one owner, the new tenure and its re-entries are replicated as
            // one change.
            let merged = |events: &[Event]| {
                let mut events = events.to_vec();
                events.dedup_by(|again, event| *again == Event::Acquired && event == again);
                events
            };
            let expected = &self.effects.events;
            prop_assert!(
                events == *expected || merged(&events) == merged(expected) && events.len() < expected.len(),
                "the replica has the events {:?}, and not {:?}",
                events,
                expected
            );
        }
        self.compare_replica(key)
    }

    fn apply_release_on_replica(
        &mut self,
        key: usize,
        release: &ReleaseRequest,
    ) -> Result<Vec<Event>, TestCaseError> {
        let now = self.now();
        let mut effects: Effects<u32> = Effects::default();
        let counted = self.counters.clone();
        let applied = Decision {
            lock: &mut self.replica[key],
            queue: None,
            queues: &mut WaitQueues::default(),
            tokens: &mut TokenSource::default(),
            quarantine: Quarantine::new(now.mono, Span::default()),
            quarantine_memory: None,
            effects: &mut effects,
            counters: &mut self.counters,
            now,
        }
        .apply_release(release);
        prop_assert!(applied.is_ok(), "the replica answers {:?}", applied);
        prop_assert_eq!(&counted, &self.counters, "only the primary counts a release");
        Ok(effects.events)
    }

    fn apply_payload_on_replica(&mut self, key: usize, payload: &[u8]) -> Result<Vec<Event>, TestCaseError> {
        let now = self.now();
        let replica = &mut self.replica[key];
        let mut events = Vec::new();
        match encoding::decode_message(payload, Origin::Live, now) {
            Ok(Message::Changes(changes)) => {
                // If the replica has the lock as a dropped lock, the changes contain the whole lock and replace the
                // dropped lock.
                if mem::take(&mut self.replica_has_dropped_lock[key]) {
                    *replica = Lock::new();
                }
                for change in changes {
                    events.push(event_of(replica, &change));
                    replica.apply(change, now);
                }
            }
            Ok(Message::DroppedLock(dropped_lock)) => {
                let had_key = !replica.is_free() && !self.replica_has_dropped_lock[key];
                prop_assert!(!had_key, "a key and a dropped lock");
                self.replica_has_dropped_lock[key] = dropped_lock.is_some();
                *replica = dropped_lock.unwrap_or_default();
            }
            Err(malformed) => {
                return Err(TestCaseError::fail(format!("{malformed:?}: {payload:?}")));
            }
        }
        Ok(events)
    }

    /// Checks that the replica knows the same tenures as the primary. A dropped lock that the primary has not
    /// replicated yet is not checked.
    fn compare_replica(&self, key: usize) -> Result<(), TestCaseError> {
        if self.stored[key].is_none() && self.unreplicated.contains(&key) {
            return Ok(());
        }
        let now = self.now();
        let free = Lock::new();
        let dropped_lock = self.dropped_lock(key);
        prop_assert_eq!(
            self.replica_has_dropped_lock[key],
            dropped_lock.is_some(),
            "the dropped lock {}",
            key
        );
        let here = self.stored[key].as_ref().or(dropped_lock).unwrap_or(&free).holders();
        let there = self.replica[key].holders();
        let tenure = |holder: Holder<&Owner>| (holder.owner.clone(), holder.holds, holder.mode, holder.token);
        prop_assert_eq!(
            there.clone().map(tenure).collect::<Vec<_>>(),
            here.clone().map(tenure).collect::<Vec<_>>(),
            "what the replica knows of lock {}",
            key
        );
        // The replica received each change at the instant of the change. So the times on the replica differ from the
        // times on the primary only by the rounding to milliseconds.
        let milli = Span::from_millis(1).unwrap();
        for (here, there) in here.zip(there) {
            let near = |here: Instant, there: Instant| here <= there && there < here.after(milli);
            let over = here.is_over(now.mono) && there.is_over(now.mono);
            prop_assert!(over || near(here.deadline, there.deadline), "{:?} and {:?}", here, there);
            prop_assert!(near(here.since, there.since), "{:?} and {:?}", here, there);
        }
        Ok(())
    }

    pub fn acquire(&mut self, asked: &Wait, may_wait: bool) -> Result<Answer, TestCaseError> {
        let request = AcquireRequest {
            owner: owner(asked.owner),
            lease: span(asked.lease),
            holds: asked.holds,
            slots: slots(asked.mode.slots),
            weight: weight(asked.mode),
        };
        let due = match self.decide(asked.key, None, |decision| decision.acquire(&request))? {
            (Ok(Acquired::Granted(grant)), _) => return Ok(granted(grant)),
            (Ok(Acquired::Busy), due) if may_wait => due,
            (Ok(Acquired::Busy), _) => return Ok(Answer::Busy),
            (Err(refusal), _) => return Ok(refused(refusal)),
        };
        let (db, bytes) = name(asked.key);
        match self.queues.may_join(db, bytes, &request, self.limits) {
            Ok(()) => {}
            Err(Full::Lock | Full::Total) => return Ok(Answer::Full),
        }
        let (wait_limit, keep) = (asked.limit.map(instant), asked.keep.map(span));
        let wait_request = WaitRequest { request, wait_limit, keep, handle: asked.handle };
        self.key_of.insert(asked.handle, asked.key);
        if let Some(superseded) = self.queues.join(db, bytes, wait_request, self.limits, self.mono) {
            self.complete(superseded);
        }
        if let Some(queue) = self.queue_id(asked.key) {
            // If the new wait has displaced a kept place, the queue may be due now.
            let due = due.into_iter().chain(self.queues.due(queue)).min();
            self.queues.set_due(queue, due);
        }
        Ok(Answer::Waits)
    }

    pub fn release(
        &mut self,
        key: usize,
        name: usize,
        left: Left,
        named: Option<u64>,
    ) -> Result<Answer, TestCaseError> {
        let left = match left {
            Left::OneLess => HoldsLeft::OneLess,
            Left::Exactly(holds) => HoldsLeft::Exactly(holds),
            Left::None => HoldsLeft::None,
        };
        let request = ReleaseRequest { owner: owner(name), left, token: named.map(token) };
        let (left, _) = self.decide(key, Some(&request), |decision| decision.release(&request))?;
        Ok(left.map_or_else(refused, Answer::Left))
    }

    pub fn renew(
        &mut self,
        (key, name): (usize, usize),
        lease: i64,
        named: Option<u64>,
        holds: Option<u32>,
        mode: Option<NamedMode>,
    ) -> Result<Answer, TestCaseError> {
        let request = RenewRequest {
            owner: owner(name),
            lease: span(lease),
            token: named.map(token),
            holds,
            slots: mode.map(|mode| slots(mode.slots)),
            weight: mode.and_then(weight),
        };
        let (renewed, _) = self.decide(key, None, |decision| decision.renew(&request))?;
        Ok(renewed.map_or_else(refused, |token| Answer::Token(token.get())))
    }

    pub fn pass_on(
        &mut self,
        key: usize,
        name_of: usize,
        number: u64,
        handle: u32,
    ) -> Result<(), TestCaseError> {
        let (owner, token, place) = (owner(name_of), token(number), self.places.remove(&handle));
        // No command is running, so this decision cannot replicate its command verbatim.
        let (ended, _) = self.decide(key, None, |decision| decision.pass_on(&owner, token))?;
        if let Some(place) = place.filter(|_| ended) {
            let (db, bytes) = name(key);
            self.queues.keep(db, bytes, place, self.limits, self.mono);
        }
        Ok(())
    }

    fn expire_and_serve(&mut self, key: usize) -> Result<(), TestCaseError> {
        self.decide(key, None, |decision| decision.expire_and_serve()).map(|_| ())
    }

    pub fn expire_and_serve_all(&mut self) -> Result<(), TestCaseError> {
        (0..KEYS).try_for_each(|key| self.expire_and_serve(key))
    }

    /// Marks every queue as changed, because the locks for which clients wait may have changed.
    pub fn recheck_all(&mut self) {
        let queues: Vec<QueueId> = self.queues.queues().collect();
        queues.into_iter().for_each(|queue| self.queues.set_changed(queue, self.mono));
    }

    /// A client disconnects, or CLIENT UNBLOCK ends its wait.
    pub fn leave(&mut self, handle: u32, is_unblocked: bool) -> Result<(), TestCaseError> {
        let absence = if is_unblocked { Absence::LimitReached } else { Absence::Disconnected };
        let left = self.queues.leave(handle, absence, self.mono);
        prop_assert_eq!(left.map(|waiter| waiter.wait_request.handle), Some(handle));
        prop_assert!(self.queues.leave(handle, absence, self.mono).is_none());
        Ok(())
    }

    /// The server becomes a replica: all waits end, and no place is kept.
    pub fn end_waits(&mut self) {
        let queues: Vec<QueueId> = self.queues.queues().collect();
        let mut ended: Vec<Waiter<u32>> = Vec::new();
        for queue in queues {
            self.queues.forget_places(queue);
            while let Some((waiter, _)) = self.queues.pop_front(queue) {
                ended.push(waiter);
            }
        }
        for waiter in ended {
            self.complete(Completion { waiter, outcome: Outcome::BecameReplica });
        }
    }

    /// The timer fires: waits end at their limits, and then the locks that are due get a decision.
    pub fn fire(&mut self) -> Result<(), TestCaseError> {
        let mut reached = Vec::new();
        while let Some(limit_reached) = self.queues.pop_limit_reached(self.mono) {
            if let LimitReached::Wait(waiter) = limit_reached {
                reached.push(waiter);
            }
        }
        reached.sort_by_key(|waiter| waiter.wait_request.handle);
        for waiter in reached {
            self.complete(Completion { waiter, outcome: Outcome::NotAcquired });
        }
        let mut due: Vec<(usize, bool)> = Vec::new();
        while let Some((queue, changed)) = self.queues.pop_due(self.mono) {
            let (db, _) = self.queues.name(queue).unwrap();
            due.push((usize::try_from(db.0).unwrap(), changed));
        }
        due.sort_unstable();
        for (key, changed) in due {
            if changed {
                self.decide(key, None, |decision| decision.recheck())?;
            } else {
                self.expire_and_serve(key)?;
            }
        }
        if !self.in_quarantine() {
            self.quarantine_memory = Default::default();
        }
        prop_assert_eq!(self.queues.pop_due(self.mono), None, "a queue is due again at once");
        prop_assert!(self.queues.next_due().is_none_or(|due| self.mono < due));
        Ok(())
    }

    /// Lets time pass. The timer fires when a queue is due, when a wait limit is reached, when a kept place changes,
    /// and when the quarantine ends.
    pub fn advance(&mut self, to: i64) -> Result<(), TestCaseError> {
        self.replicate_dropped_locks()?;
        let end = instant(to);
        loop {
            let due = self.queues.next_due().into_iter().chain(self.quarantine.ends(self.mono)).min();
            let due = due.filter(|due| *due <= end);
            // The lease of a dropped lock may be over already, so `due` may be in the past.
            let now = due.unwrap_or(end).max(self.mono);
            self.wall = self.now().wall_at(now);
            self.mono = now;
            if due.is_none() {
                return Ok(());
            }
            self.fire()?;
        }
    }

    /// The quarantine begins again, because the server was promoted.
    pub fn promote(&mut self) {
        self.quarantine.restart(self.mono);
        self.quarantine_memory = Default::default();
    }

    /// The server drops a key before its lease is over. The lock is kept as a dropped lock. Replicas drop the key too,
    /// and receive the dropped lock when the timer fires.
    pub fn drop_early(&mut self, key: usize) {
        let (db, bytes) = name(key);
        if let Some(lock) = self.stored[key].take() {
            self.dropped_locks.keep(db, bytes, lock);
            self.unreplicated.insert(key);
            self.replica[key] = Lock::new();
        }
    }

    /// Replicates every dropped lock that was kept or forgotten since the last call.
    fn replicate_dropped_locks(&mut self) -> Result<(), TestCaseError> {
        let now = self.now();
        while let Some((db, bytes)) = self.dropped_locks.pop_unreplicated() {
            let key = usize::try_from(db.0).unwrap();
            prop_assert!(self.unreplicated.remove(&key));
            let mut payload = Vec::new();
            encoding::append_dropped_lock(&mut payload, self.dropped_locks.get(db, &bytes), now);
            let Ok(Message::DroppedLock(dropped_lock)) =
                encoding::decode_message(&payload, Origin::Live, now)
            else {
                return Err(TestCaseError::fail(format!("no dropped lock in {payload:?}")));
            };
            prop_assert!(
                self.replica_has_dropped_lock[key] || self.replica[key].is_free() || dropped_lock.is_none()
            );
            if dropped_lock.is_some() || self.replica_has_dropped_lock[key] {
                self.replica_has_dropped_lock[key] = dropped_lock.is_some();
                self.replica[key] = dropped_lock.unwrap_or_default();
            }
        }
        prop_assert!(self.unreplicated.is_empty());
        (0..KEYS).try_for_each(|key| self.compare_replica(key))
    }

    pub fn break_lock(&mut self, key: usize) {
        let (db, bytes) = name(key);
        let last = self.lock(key).and_then(Lock::last_token);
        if self.in_quarantine() {
            self.quarantine_memory[key].end_up_to(last);
        }
        if self.dropped_locks.forget(db, bytes).is_some() {
            self.unreplicated.insert(key);
        } else {
            self.replica[key] = Lock::new();
        }
        self.stored[key] = None;
        if let Some(queue) = self.queue_id(key) {
            self.queues.set_changed(queue, self.mono);
        }
    }

    pub fn flush(&mut self) {
        if self.in_quarantine() {
            let last = self.tokens.last();
            self.quarantine_memory.iter_mut().for_each(|memory| memory.end_up_to(last));
        }
        self.dropped_locks.flush(None);
        self.unreplicated.clear();
        self.replica_has_dropped_lock = [false; KEYS];
        self.stored = Default::default();
        self.replica = Default::default();
        self.recheck_all();
    }

    pub fn swap(&mut self) {
        self.dropped_locks.swap(name(0).0, name(1).0);
        self.stored.swap(0, 1);
        self.replica.swap(0, 1);
        self.replica_has_dropped_lock.swap(0, 1);
        self.quarantine_memory.swap(0, 1);
        let swapped = |key: &usize| [1, 0].get(*key).copied().unwrap_or(*key);
        self.unreplicated = self.unreplicated.iter().map(swapped).collect();
        self.recheck_all();
    }
}

fn tokens(lock: &Lock) -> HashSet<FencingToken> {
    lock.holders().map(|holder| holder.token).collect()
}
