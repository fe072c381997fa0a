//! One server: what core stores for one lock, and around it what the module does with it.
//!
//! A node's state is plain and can be hashed. Wait queues are kept as the owners in line and stood in a
//! [`WaitQueues`] for each step; the lock, the tokens and the quarantine are core's own values.

use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{
    AcquireRequest, Acquired, Change, Counters, Db, Decision, Effects, FencingToken, Grant, HoldsLeft,
    Instant, Lock, Now, Outcome, Owner, Propagation, Quarantine, QuarantineMemory, Refusal, ReleaseRequest,
    RenewRequest, Slots, Span, TokenSource, WaitQueues, WaitRequest, WallTime,
};
use std::mem;

const DB: Db = Db(0);
const KEY: &[u8] = b"lock";

/// The wall clock of a server that is right, in ticks, when the world begins.
const WALL_AT_START: i64 = 1_000;

/// A number of ticks, each a millisecond, as core has it.
pub(crate) fn span(ticks: u64) -> Span {
    Span::from_millis(ticks).expect("worlds are short")
}

fn owner(number: usize) -> Owner {
    let letter = b"ABCDEFGH".get(number..=number).expect("there are few owners");
    Owner::new(letter).expect("a letter is an owner")
}

/// What the primary sends to its replica, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Replicated {
    /// LOCK._APPLY with this payload.
    Apply(Vec<u8>),
    /// A LOCK.RELEASE as it was given: owner, holds to be left if named, token.
    Release(usize, Option<u32>, FencingToken),
    /// The server's own DEL of a key that it has expired or evicted.
    Delete,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The lock as it is stored, or as its shadow has it.
    pub lock: Lock,
    /// Whether the server has dropped the key before the lease was over, so that only the shadow is left; on a replica,
    /// whether it was told so.
    pub shadowed: bool,
    /// Whether the replica is yet to be told of the shadow.
    pub unreplicated: bool,
    /// The owners in line, next to be served first.
    pub queue: Vec<usize>,
    /// Where tokens come from.
    pub tokens: TokenSource,
    /// The time after a start or promotion.
    pub quarantine: Quarantine,
    /// What it has seen of the lock in this quarantine.
    pub quarantine_memory: QuarantineMemory,
    /// By how many ticks the wall clock is ahead.
    pub wall_ahead: i64,
    /// The zero of its monotonic clock, in ticks: another on each server.
    pub mono_ahead: i64,
}

/// What a step on a node has led to.
#[derive(Debug)]
pub(crate) struct Done<R> {
    pub(crate) answer: R,
    /// Waiters that were granted the lock.
    pub(crate) woken: Vec<(usize, Grant)>,
    /// What the replica is to hear.
    pub(crate) sent: Option<Replicated>,
}

/// What all servers and owners of a world go by.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How long every lease is, in ticks.
    pub lease: u64,
    /// How long the quarantine is, in ticks; 0 is none.
    pub quarantine: u64,
    /// Whether owners name the count of HOLDS that a request is to lead to.
    pub names_holds: bool,
    /// Where tokens come from.
    pub tokens: Tokens,
}

/// Whether tokens come from the clock, as they do, or from a counter that a restart sets back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// From the wall clock.
    FromTheClock,
    /// From 1 on, in each life of a server.
    FromOne,
}

impl Node {
    /// A server that starts at `tick` with nothing stored.
    pub(crate) fn start(tick: u64, rules: &Rules, wall_ahead: i64, mono_ahead: i64) -> Self {
        let began = Instant::from_micros((tick.cast_signed() + mono_ahead) * 1_000);
        Self {
            lock: Lock::new(),
            shadowed: false,
            unreplicated: false,
            queue: Vec::new(),
            tokens: TokenSource::new(),
            quarantine: Quarantine::new(began, span(rules.quarantine)),
            quarantine_memory: QuarantineMemory::default(),
            wall_ahead,
            mono_ahead,
        }
    }

    /// What the server's wall clock shows, in ticks.
    pub(crate) fn wall(&self, tick: u64) -> i64 {
        WALL_AT_START + tick.cast_signed() + self.wall_ahead
    }

    fn now(&self, tick: u64) -> Now {
        Now {
            mono: Instant::from_micros((tick.cast_signed() + self.mono_ahead) * 1_000),
            wall: WallTime::from_millis(self.wall(tick)),
        }
    }

    /// The token of the tenure that the server knows.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.lock.holders().next().map(|holder| holder.token)
    }

    /// One step on the lock, as the module takes it: decide, store, and say what the replica is to hear. `release` is
    /// the command, where it is one that is sent as it is.
    fn on_lock<R>(
        &mut self,
        tick: u64,
        rules: &Rules,
        release: Option<Replicated>,
        decide: impl FnOnce(&mut Decision<'_, usize>) -> R,
    ) -> Done<R> {
        let mut now = self.now(tick);
        if rules.tokens == Tokens::FromOne {
            now.wall = WallTime::EPOCH;
        }
        let mut queues = WaitQueues::new();
        for waiter in &self.queue {
            let wait_request =
                WaitRequest { request: acquire(*waiter, rules, 1), limit: None, handle: *waiter };
            queues.join(DB, KEY, wait_request, now.mono);
        }
        if !self.quarantine.in_force(now) {
            self.quarantine_memory = QuarantineMemory::default();
        }
        let mut effects = Effects::default();
        let queue = queues.queue(DB, KEY);
        let mut step = Decision {
            lock: &mut self.lock,
            queue,
            queues: &mut queues,
            tokens: &mut self.tokens,
            quarantine: self.quarantine,
            quarantine_memory: self.quarantine_memory,
            effects: &mut effects,
            counters: &mut Counters::default(),
            now,
        };
        let answer = decide(&mut step);
        self.queue = queue
            .into_iter()
            .flat_map(|queue| queues.waiters_in(queue))
            .map(|waiter| waiter.wait_request.handle)
            .collect();
        if self.quarantine.in_force(now) {
            self.quarantine_memory = self.quarantine_memory.merge(effects.quarantine_memory());
        }
        if effects.changed() && self.shadowed {
            effects.replicate_whole_lock(&self.lock, now);
            self.shadowed = false;
            self.unreplicated = false;
        }
        let sent = match effects.propagation() {
            Propagation::Nothing => None,
            Propagation::Verbatim => release,
            Propagation::Changes(payload) => Some(Replicated::Apply(payload.to_vec())),
        };
        let woken = effects.completions.drain(..).filter_map(|wake| match wake.outcome {
            Outcome::Granted(grant) => Some((wake.waiter.wait_request.handle, grant)),
            Outcome::NotAcquired
            | Outcome::Refused(_)
            | Outcome::Superseded
            | Outcome::WrongType
            | Outcome::NotServed
            | Outcome::BecameReplica => None,
        });
        Done { answer, woken: woken.collect(), sent }
    }

    /// LOCK.ACQUIRE, with BLOCK 0 where `wait`.
    pub(crate) fn acquire(
        &mut self,
        tick: u64,
        rules: &Rules,
        who: usize,
        holds: u32,
        wait: bool,
    ) -> Done<Result<Acquired, Refusal>> {
        let request = acquire(who, rules, holds);
        let done = self.on_lock(tick, rules, None, |step| step.acquire(&request));
        if wait && matches!(done.answer, Ok(Acquired::Busy)) {
            self.queue.push(who);
        }
        done
    }

    /// LOCK.RENEW with TOKEN and HOLDS.
    pub(crate) fn renew(
        &mut self,
        tick: u64,
        rules: &Rules,
        who: usize,
        token: FencingToken,
        holds: u32,
    ) -> Done<Result<FencingToken, Refusal>> {
        let request = RenewRequest {
            owner: owner(who),
            lease: span(rules.lease),
            token: Some(token),
            holds: Some(holds),
        };
        self.on_lock(tick, rules, None, |step| step.renew(&request))
    }

    /// LOCK.RELEASE of one hold, with TOKEN.
    pub(crate) fn release(
        &mut self,
        tick: u64,
        rules: &Rules,
        who: usize,
        left: u32,
        token: FencingToken,
    ) -> Done<Result<u32, Refusal>> {
        let left = rules.names_holds.then_some(left);
        let request = release(who, left, token);
        let message = Replicated::Release(who, left, token);
        self.on_lock(tick, rules, Some(message), |step| step.release(&request))
    }

    /// The timer.
    pub(crate) fn recheck(&mut self, tick: u64, rules: &Rules) -> Done<()> {
        self.on_lock(tick, rules, None, |step| step.recheck())
    }

    /// What a replica does with what it hears.
    pub(crate) fn hear(&mut self, tick: u64, rules: &Rules, message: &Replicated) {
        let now = self.now(tick);
        match message {
            Replicated::Apply(payload) => {
                match encoding::decode_message(payload, Origin::Live, now).expect("a primary sends payloads")
                {
                    Message::Changes(changes) => {
                        if mem::take(&mut self.shadowed) {
                            self.lock = Lock::new();
                        }
                        for change in changes {
                            if let Change::Put(holder) = &change {
                                self.tokens.observe(holder.token);
                            }
                            self.lock.apply(change, now);
                        }
                    }
                    Message::DroppedLock(dropped_lock) => {
                        self.shadowed = dropped_lock.is_some();
                        self.lock = dropped_lock.unwrap_or_default();
                    }
                }
            }
            Replicated::Release(who, left, token) => {
                let request = release(*who, *left, *token);
                let follow = |step: &mut Decision<'_, usize>| step.apply_release(&request).is_ok();
                self.on_lock(tick, rules, None, follow);
            }
            Replicated::Delete => self.lock = Lock::new(),
        }
    }

    /// What the replica is told of a shadow, once the server has deleted the key.
    pub(crate) fn tell_of_shadow(&mut self, tick: u64) -> Option<Replicated> {
        mem::take(&mut self.unreplicated).then(|| {
            let mut payload = Vec::new();
            encoding::append_dropped_lock(&mut payload, Some(&self.lock), self.now(tick));
            Replicated::Apply(payload)
        })
    }

    /// The replica is promoted.
    pub(crate) fn promote(&mut self, tick: u64) {
        self.quarantine_memory = QuarantineMemory::default();
        self.quarantine.restart(self.now(tick).mono);
    }

    /// What the server writes to its file, of a shadow too: nothing for a lock that is free.
    pub(crate) fn save(&self, tick: u64) -> Vec<u8> {
        let mut payload = Vec::new();
        if !self.lock.is_free() {
            encoding::append_lock(&mut payload, &self.lock, self.now(tick));
        }
        payload
    }

    /// The server has just started and reads its file.
    pub(crate) fn load(&mut self, tick: u64, file: &[u8]) {
        if !file.is_empty() {
            let now = self.now(tick);
            self.lock = encoding::decode_lock(file, Origin::Loaded, now).expect("a server writes payloads");
            self.lock.holders().for_each(|holder| self.tokens.observe(holder.token));
        }
        self.quarantine.loaded(self.now(tick).mono);
    }
}

fn acquire(who: usize, rules: &Rules, holds: u32) -> AcquireRequest {
    let holds = rules.names_holds.then_some(holds);
    AcquireRequest { owner: owner(who), lease: span(rules.lease), holds, slots: Slots::EXCLUSIVE }
}

fn release(who: usize, left: Option<u32>, token: FencingToken) -> ReleaseRequest {
    let left = left.map_or(HoldsLeft::OneLess, HoldsLeft::Exactly);
    ReleaseRequest { owner: owner(who), left, token: Some(token) }
}
