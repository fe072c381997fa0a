//! Core, and around it what the module adds: keys, dropped locks, one timer, and a replica.

use crate::operations::Setting;
use crate::reference::{Answer, Left, Tenure, Wait};
use crate::{KEYS, OWNERS};
use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{
    AcquireRequest, Acquired, Completion, Counters, Db, Decision, DroppedLocks, Effects, Event, FencingToken,
    Full, Grant, Holder, HoldsLeft, Instant, Limits, Lock, NotHeld, Now, Outcome, Owner, Propagation,
    Quarantine, QuarantineMemory, QueueId, Refusal, ReleaseRequest, RenewRequest, Slots, Span, TokenSource,
    WaitQueues, WaitRequest, WallTime, event_of,
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

/// A short owner, the usual one, a long one and a binary one.
fn owner(number: usize) -> Owner {
    let long = [b'x'; 300];
    let names: [&[u8]; OWNERS] = [b"A", b"0f8fad5b-d9cb-469f-a165-70867728950e:42", &long, &[0, 0xff]];
    Owner::new(names[number]).unwrap()
}

fn slots(number: u32) -> Slots {
    Slots::new(number).unwrap()
}

pub fn as_holder(tenure: &Tenure) -> Holder {
    Holder {
        owner: owner(tenure.owner),
        holds: tenure.holds,
        slots: slots(tenure.slots),
        token: token(tenure.token),
        deadline: instant(tenure.deadline),
        since: instant(tenure.since),
    }
}

fn granted(grant: Grant) -> Answer {
    Answer::Granted { token: grant.token.get(), holds: grant.holds }
}

fn refused(refusal: Refusal) -> Answer {
    match refusal {
        Refusal::NotHeld(NotHeld::Free) => Answer::FreeNotHeld,
        Refusal::NotHeld(NotHeld::ByAnother(token)) => Answer::AnotherHas(token.get()),
        Refusal::NotHeld(NotHeld::OtherToken(token)) => Answer::ItHas(token.get()),
        Refusal::Holds { has } => Answer::HoldsDoNotFollow(has),
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
        Outcome::WrongType | Outcome::NotServed | Outcome::BecameReplica => {
            panic!("a decision never ends a wait so")
        }
    }
}

/// The world.
pub struct World {
    stored: [Option<Lock>; KEYS],
    pub dropped_locks: DroppedLocks,
    replica: [Lock; KEYS],
    /// Whether the replica has the lock as a dropped lock, and not as a key.
    replica_has_dropped_lock: [bool; KEYS],
    /// The locks whose dropped lock, or its end, is still to be replicated.
    unreplicated: BTreeSet<usize>,
    pub queues: WaitQueues<u32>,
    tokens: TokenSource,
    pub quarantine: Quarantine,
    quarantine_memory: [QuarantineMemory; KEYS],
    effects: Effects<u32>,
    counters: Counters,
    limits: Limits,
    pub mono: Instant,
    pub wall: WallTime,
    key_of: HashMap<u32, usize>,
    pub completions: Vec<(Instant, u32, Answer)>,
    /// Whether owners share locks. Then the end of the quarantine matters for held locks too.
    shared: bool,
}

/// The same key in two databases.
fn name(key: usize) -> (Db, &'static [u8]) {
    (Db(i32::try_from(key).unwrap()), b"lock")
}

impl World {
    pub fn new(setting: &Setting, began: i64) -> Self {
        Self {
            stored: [None, None],
            dropped_locks: DroppedLocks::new(),
            replica: [Lock::new(), Lock::new()],
            replica_has_dropped_lock: [false; KEYS],
            unreplicated: BTreeSet::new(),
            queues: WaitQueues::new(),
            tokens: TokenSource::new(),
            quarantine: Quarantine::new(instant(began), span(setting.quarantine * 1_000)),
            quarantine_memory: [QuarantineMemory::default(); KEYS],
            effects: Effects::default(),
            counters: Counters::default(),
            limits: Limits { per_lock: setting.limits.0, total: setting.limits.1 },
            mono: instant(began),
            wall: WallTime::from_micros(setting.wall),
            key_of: HashMap::new(),
            completions: Vec::new(),
            shared: setting.slots != [1; OWNERS],
        }
    }

    pub fn now(&self) -> Now {
        Now { mono: self.mono, wall: self.wall }
    }

    pub fn queue_id(&self, key: usize) -> Option<QueueId> {
        let (db, bytes) = name(key);
        self.queues.queue(db, bytes)
    }

    pub fn dropped_lock(&self, key: usize) -> Option<&Lock> {
        let (db, bytes) = name(key);
        self.dropped_locks.get(db, bytes)
    }

    /// The holders whose lease is not over. The tenures of the others end at the next decision.
    pub fn held(&self, key: usize) -> Vec<Holder> {
        let lock = self.stored[key].as_ref().or_else(|| self.dropped_lock(key));
        let holders = lock.into_iter().flat_map(Lock::holders);
        holders.filter(|holder| !holder.is_over(self.now().mono)).map(Holder::cloned).collect()
    }

    pub fn queue(&self, key: usize) -> Vec<(u32, Instant)> {
        let queue = self.queue_id(key).into_iter().flat_map(|queue| self.queues.waiters_in(queue));
        queue.map(|waiter| (waiter.wait_request.handle, waiter.since)).collect()
    }

    pub fn waiting(&self, key: usize) -> usize {
        self.queue_id(key).map_or(0, |queue| self.queues.len(queue))
    }

    /// One decision on one lock with all its effects. `release` is the command, if it is a release.
    fn decide<T>(
        &mut self,
        key: usize,
        release: Option<&ReleaseRequest>,
        act: impl FnOnce(&mut Decision<'_, u32>) -> T,
    ) -> Result<T, TestCaseError> {
        let (now, (db, bytes)) = (self.now(), name(key));
        let dropped_lock = self.dropped_locks.take(db, bytes);
        let was_dropped = dropped_lock.is_some();
        prop_assert!(!was_dropped || self.stored[key].is_none());
        let mut lock = self.stored[key].take().or(dropped_lock).unwrap_or_default();
        let (tenures, counted) = (tokens(&lock), self.counters.clone());
        self.effects.clear();
        let mut decision = Decision {
            lock: &mut lock,
            queue: self.queues.queue(db, bytes),
            queues: &mut self.queues,
            tokens: &mut self.tokens,
            quarantine: self.quarantine,
            quarantine_memory: self.quarantine_memory[key],
            effects: &mut self.effects,
            counters: &mut self.counters,
            now,
        };
        let answer = act(&mut decision);
        let due = decision.due();
        self.check_counters(&tenures, &tokens(&lock), &counted)?;
        self.quarantine_memory[key] = self.quarantine_memory[key].merge(self.effects.quarantine_memory());
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
        for Completion { waiter, outcome } in self.effects.completions.drain(..) {
            self.completions.push((self.mono, waiter.wait_request.handle, ended(outcome)));
        }
        if let Some(queue) = self.queue_id(key) {
            self.queues.set_due(queue, due);
        }
        Ok(answer)
    }

    /// The counters have counted what the decision has led to.
    fn check_counters(
        &self,
        before: &HashSet<FencingToken>,
        after: &HashSet<FencingToken>,
        counted: &Counters,
    ) -> Result<(), TestCaseError> {
        let counters = &self.counters;
        let begun = counters.acquired + counters.restored - counted.acquired - counted.restored;
        let ended = counters.tenure_durations.len() - counted.tenure_durations.len();
        // A tenure may begin and end within one decision. Its token is then in neither set.
        let gone = before.difference(after).count() as u64;
        let come = after.difference(before).count() as u64;
        prop_assert!(begun >= come && ended >= gone && begun + gone == ended + come, "{:?}", counters);
        let is_granted = |completion: &&Completion<u32>| matches!(completion.outcome, Outcome::Granted(_));
        let granted = self.effects.completions.iter().filter(is_granted).count() as u64;
        prop_assert_eq!(counters.wait_durations.len() - counted.wait_durations.len(), granted);
        Ok(())
    }

    /// The replica applies what is replicated, and then knows the same tenures.
    fn replicate(
        &mut self,
        key: usize,
        release: Option<&ReleaseRequest>,
        whole: bool,
    ) -> Result<(), TestCaseError> {
        let now = self.now();
        let replica = &mut self.replica[key];
        let mut events = Vec::new();
        match self.effects.propagation() {
            Propagation::Nothing => {}
            Propagation::Verbatim => {
                let release =
                    release.ok_or_else(|| TestCaseError::fail("no command to replicate verbatim"))?;
                let mut effects: Effects<u32> = Effects::default();
                let counted = self.counters.clone();
                let applied = Decision {
                    lock: replica,
                    queue: None,
                    queues: &mut WaitQueues::new(),
                    tokens: &mut TokenSource::new(),
                    quarantine: Quarantine::new(now.mono, Span::default()),
                    quarantine_memory: QuarantineMemory::default(),
                    effects: &mut effects,
                    counters: &mut self.counters,
                    now,
                }
                .apply_release(release);
                prop_assert!(applied.is_ok(), "the replica answers {:?}", applied);
                prop_assert_eq!(&counted, &self.counters, "only the primary counts a release");
                events = effects.events;
            }
            Propagation::Changes(payload) => match encoding::decode_message(payload, Origin::Live, now) {
                Ok(Message::Changes(changes)) => {
                    // The changes of a dropped lock are the whole lock.
                    if mem::take(&mut self.replica_has_dropped_lock[key]) {
                        *replica = Lock::new();
                    }
                    for change in changes {
                        events.push(event_of(replica, &change));
                        replica.apply(change, now);
                    }
                }
                Ok(Message::DroppedLock(dropped_lock)) => {
                    prop_assert!(
                        replica.is_free() || self.replica_has_dropped_lock[key],
                        "a key and a dropped lock"
                    );
                    self.replica_has_dropped_lock[key] = dropped_lock.is_some();
                    *replica = dropped_lock.unwrap_or_default();
                }
                Err(malformed) => {
                    return Err(TestCaseError::fail(format!("{malformed:?}: {payload:?}")));
                }
            },
        }
        if !whole {
            // The re-entries of a tenure that is granted with several waits are replicated as one change.
            let merged = |events: &[Event]| {
                let mut events = events.to_vec();
                events.dedup_by(|again, event| *again == Event::Acquired && event == again);
                events
            };
            let happened = &self.effects.events;
            prop_assert!(
                events == *happened || merged(&events) == merged(happened) && events.len() < happened.len(),
                "the replica has the events {:?}, and not {:?}",
                events,
                happened
            );
        }
        self.compare_replica(key)
    }

    /// The replica knows the tenures that the primary knows, except an unreplicated dropped lock.
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
        let tenure =
            |holder: Holder<&Owner>| (holder.owner.clone(), holder.holds, holder.slots, holder.token);
        prop_assert_eq!(
            there.clone().map(tenure).collect::<Vec<_>>(),
            here.clone().map(tenure).collect::<Vec<_>>(),
            "what the replica knows of lock {}",
            key
        );
        // Received at the same instant, times differ only by rounding to milliseconds.
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
            slots: slots(asked.slots),
        };
        match self.decide(asked.key, None, |decision| decision.acquire(&request))? {
            Ok(Acquired::Granted(grant)) => return Ok(granted(grant)),
            Ok(Acquired::Busy) if may_wait => {}
            Ok(Acquired::Busy) => return Ok(Answer::Busy),
            Err(refusal) => return Ok(refused(refusal)),
        }
        let (db, bytes) = name(asked.key);
        match self.queues.may_join(db, bytes, &request, self.limits) {
            Ok(()) => {}
            Err(Full::Lock | Full::Total) => return Ok(Answer::Full),
        }
        let limit = asked.limit.map(Instant::from_micros);
        let wait_request = WaitRequest { request, limit, handle: asked.handle };
        self.key_of.insert(asked.handle, asked.key);
        let superseded = self.queues.join(db, bytes, wait_request, self.now().mono);
        self.completions.extend(
            superseded.map(|Completion { waiter, outcome }| {
                (self.mono, waiter.wait_request.handle, ended(outcome))
            }),
        );
        self.expire_and_serve(asked.key)?;
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
        let left = self.decide(key, Some(&request), |decision| decision.release(&request))?;
        Ok(left.map_or_else(refused, Answer::Left))
    }

    pub fn renew(
        &mut self,
        key: usize,
        name: usize,
        lease: i64,
        named: Option<u64>,
        holds: Option<u32>,
    ) -> Result<Answer, TestCaseError> {
        let request = RenewRequest { owner: owner(name), lease: span(lease), token: named.map(token), holds };
        let renewed = self.decide(key, None, |decision| decision.renew(&request))?;
        Ok(renewed.map_or_else(refused, |token| Answer::Token(token.get())))
    }

    pub fn pass_on(&mut self, key: usize, name: usize, number: u64) -> Result<(), TestCaseError> {
        let (owner, token) = (owner(name), token(number));
        // There is no command that could be replicated verbatim.
        self.decide(key, None, |decision| decision.pass_on(&owner, token))
    }

    fn expire_and_serve(&mut self, key: usize) -> Result<(), TestCaseError> {
        self.decide(key, None, |decision| decision.expire_and_serve())
    }

    pub fn expire_and_serve_all(&mut self) -> Result<(), TestCaseError> {
        (0..KEYS).try_for_each(|key| self.expire_and_serve(key))
    }

    pub fn leave(&mut self, handle: u32, key: usize) -> Result<(), TestCaseError> {
        let left = self.queues.leave(handle).map(|waiter| waiter.wait_request.handle);
        prop_assert_eq!(left, Some(handle));
        prop_assert!(self.queues.leave(handle).is_none());
        self.expire_and_serve(key)
    }

    /// Lets time pass. The timer fires whenever a queue is due.
    pub fn advance(&mut self, to: i64) -> Result<(), TestCaseError> {
        self.replicate_dropped_locks()?;
        let end = instant(to);
        loop {
            let quarantine = self.quarantine.ends(self.mono).filter(|_| self.shared);
            prop_assert!(quarantine.is_none_or(|end| self.mono < end), "the quarantine is over");
            let due = self.queues.next_due().into_iter().chain(quarantine).min().filter(|due| *due <= end);
            // A dropped lock may have a lease that is over already.
            let now = due.unwrap_or(end).max(self.mono);
            self.wall = self.now().wall_at(now);
            self.mono = now;
            if due.is_none() {
                return Ok(());
            }
            let mut keys: BTreeSet<usize> = BTreeSet::new();
            let mut reached = Vec::new();
            while let Some(waiter) = self.queues.pop_limit_reached(now) {
                keys.insert(self.key_of[&waiter.wait_request.handle]);
                reached.push((self.mono, waiter.wait_request.handle, Answer::NotAcquired));
            }
            reached.sort_by_key(|(_, handle, _)| *handle);
            self.completions.extend(reached);
            while let Some(queue) = self.queues.pop_due(now) {
                let (db, _) = self.queues.name(queue).unwrap();
                keys.insert(usize::try_from(db.0).unwrap());
            }
            if quarantine.is_some_and(|end| end <= now) {
                keys.extend(0..KEYS);
            }
            keys.into_iter().try_for_each(|key| self.expire_and_serve(key))?;
            let again = self.queues.next_due().is_some_and(|due| due <= now);
            prop_assert!(!again, "a queue is due again at once");
        }
    }

    /// The server drops a key before its lease is over. The lock is kept as a dropped lock. Replicas drop the key too, and receive
    /// the dropped lock when the timer fires.
    pub fn drop_early(&mut self, key: usize) {
        let (db, bytes) = name(key);
        if let Some(lock) = self.stored[key].take() {
            self.dropped_locks.keep(db, bytes, lock);
            self.unreplicated.insert(key);
            self.replica[key] = Lock::new();
        }
    }

    /// Replicates every dropped lock that was kept or forgotten since.
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

    pub fn break_lock(&mut self, key: usize) -> Result<(), TestCaseError> {
        let (db, bytes) = name(key);
        if self.dropped_locks.forget(db, bytes).is_some() {
            self.unreplicated.insert(key);
        } else {
            self.replica[key] = Lock::new();
        }
        self.stored[key] = None;
        self.expire_and_serve(key)
    }

    pub fn flush(&mut self) -> Result<(), TestCaseError> {
        self.dropped_locks.flush(None);
        self.unreplicated.clear();
        self.replica_has_dropped_lock = [false; KEYS];
        self.stored = [None, None];
        self.replica = [Lock::new(), Lock::new()];
        self.expire_and_serve_all()
    }

    pub fn swap(&mut self) -> Result<(), TestCaseError> {
        self.dropped_locks.swap(name(0).0, name(1).0);
        self.stored.swap(0, 1);
        self.replica.swap(0, 1);
        self.replica_has_dropped_lock.swap(0, 1);
        self.unreplicated = self.unreplicated.iter().map(|key| 1 - key).collect();
        self.expire_and_serve_all()
    }
}

fn tokens(lock: &Lock) -> HashSet<FencingToken> {
    lock.holders().map(|holder| holder.token).collect()
}
