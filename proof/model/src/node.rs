//! One server: a lock in its key, and core's [`Store`] for all other state, as in the module.
//!
//! The state of a node is plain data, because the checker must hash it. Each decision makes a store from this state,
//! and updates the state from the store afterwards.

use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{
    AcquireRequest, Db, Decided, Decision, Fencing, FencingToken, Grant, HoldsLeft, Instant, Loading, Lock,
    LockName, Mode, Now, Outcome, Owner, Propagation, Quarantine, QuarantineMemory, QueueLimits,
    ReleaseRequest, RenewRequest, Span, Store, TokenSource, WaitRequest, WallTime,
};
use std::mem;

const DB: Db = Db(0);
const KEY: &[u8] = b"lock";

/// The limit of waiters. The waiters never reach this limit, because there are only as many waiters as owners.
const NO_LIMITS: QueueLimits = QueueLimits { per_lock: usize::MAX, total: usize::MAX };

/// The right wall time, in ticks, when the world begins.
const WALL_AT_START: i64 = 1_000;

/// A number of ticks as a span. A tick is a millisecond.
pub(crate) fn span(ticks: u64) -> Span {
    Span::from_millis(ticks).expect("worlds are short")
}

fn name() -> LockName {
    (DB, KEY.into())
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
    /// A LOCK.RELEASE as the client sent it: the owner, the count of holds to be left if the command names HOLDS, and
    /// the token.
    Release(usize, Option<u32>, FencingToken),
    /// The server's own DEL of a key that expired or was evicted.
    Delete,
    /// A write that a guard has let pass, with its token.
    Write(FencingToken),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The lock, in its key or dropped.
    pub lock: Lock,
    /// Whether the server, or the primary of this replica, has dropped the key before the lease was over.
    pub dropped: bool,
    /// The token of the last write to the data beside the lock.
    pub data: Option<FencingToken>,
    /// Whether the dropped lock must still be replicated.
    pub unreplicated: bool,
    /// The owners in the wait queue, in the order in which the server serves them.
    pub queue: Vec<usize>,
    pub tokens: TokenSource,
    pub quarantine: Quarantine,
    /// What the server has observed of the lock in this quarantine.
    pub memory: QuarantineMemory,
    /// How many ticks the wall clock is ahead of the right time.
    pub wall_ahead: i64,
    /// How many ticks the monotonic clock is ahead of the right time. The number differs between servers.
    pub mono_ahead: i64,
}

/// The results of a decision on a node.
#[derive(Debug)]
pub(crate) struct Done<R> {
    pub(crate) answer: R,
    /// The waiters whose wait has ended, each with its grant. `None` means that the waiter was refused.
    pub(crate) completed: Vec<(usize, Option<Grant>)>,
    /// What the primary sends to its replica.
    pub(crate) sent: Option<Replicated>,
}

/// The rules that all servers and owners of a world follow.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The length of every lease, in ticks.
    pub lease: u64,
    /// The length of the quarantine, in ticks. 0 means no quarantine.
    pub quarantine: u64,
    /// The limit and the weight with which each owner acquires the lock.
    pub modes: &'static [Mode],
    /// Whether owners name HOLDS.
    pub names_holds: bool,
    /// Whether owners name their limit and weight when they renew.
    pub names_modes: bool,
    pub guards: Guards,
}

impl Rules {
    /// The acquisition by an owner.
    pub(crate) fn acquire(&self, who: usize, mode: Mode, holds: u32) -> AcquireRequest {
        let holds = self.names_holds.then_some(holds);
        let Mode { slots, weight } = mode;
        AcquireRequest { owner: owner(who), lease: span(self.lease), holds, slots, weight: Some(weight) }
    }

    /// The renewal by an owner, with TOKEN and HOLDS.
    pub(crate) fn renew(&self, who: usize, token: FencingToken, holds: u32, mode: Mode) -> RenewRequest {
        RenewRequest {
            owner: owner(who),
            lease: span(self.lease),
            token: Some(token),
            holds: Some(holds),
            slots: self.names_modes.then_some(mode.slots),
            weight: self.names_modes.then_some(mode.weight),
        }
    }
}

/// How a server checks a guarded write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guards {
    /// The check and the write are one step, as in LOCK.GUARD.
    OneStep,
    /// The write comes at any time after the check.
    TwoSteps,
}

/// Whether the sum of the weights is at most each of the limits. The model has its own code for this rule, because a
/// check of core by core's code would not find an error in that code.
pub(crate) fn fit(modes: impl Iterator<Item = Mode> + Clone) -> bool {
    let sum: u32 = modes.clone().map(|mode| mode.weight.number()).sum();
    modes.map(|mode| mode.slots.number()).all(|limit| limit == 0 || sum <= limit)
}

impl Node {
    /// A server that starts at `tick` without data.
    pub(crate) fn start(tick: u64, rules: &Rules, wall_ahead: i64, mono_ahead: i64) -> Self {
        let began = Instant::from_micros((tick.cast_signed() + mono_ahead) * 1_000);
        Self {
            lock: Lock::new(),
            dropped: false,
            data: None,
            unreplicated: false,
            queue: Vec::new(),
            tokens: TokenSource::default(),
            quarantine: Quarantine::new(began, span(rules.quarantine)),
            memory: QuarantineMemory::default(),
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

    /// The mode of the tenure with this token, if the server knows that tenure.
    pub(crate) fn mode_of(&self, token: FencingToken) -> Option<Mode> {
        self.lock.of_token(token).map(|holder| holder.mode)
    }

    /// Whether the server knows this tenure with this mode, and is certain that the tenure has not ended.
    pub(crate) fn has_confirmed(&self, tick: u64, token: FencingToken, mode: Mode) -> bool {
        let in_quarantine = self.quarantine.ends(self.now(tick).mono).is_some();
        self.mode_of(token) == Some(mode) && (!in_quarantine || self.memory.has_renewed(token))
    }

    /// The store of the server, and the lock in its key.
    fn open(&self, rules: &Rules, now: Now) -> (Store<usize>, Lock) {
        let mut store = Store::default();
        store.start(false, self.quarantine);
        store.tokens = self.tokens;
        store.remember(&name(), now.mono, |memory| memory.clone_from(&self.memory));
        for waiter in &self.queue {
            let request = rules.acquire(*waiter, rules.modes[*waiter], 1);
            let wait_request = WaitRequest { request, wait_limit: None, keep: None, handle: *waiter };
            store.queues.join(DB, KEY, wait_request, NO_LIMITS, now.mono);
        }
        match (self.dropped, self.unreplicated) {
            (false, _) => return (store, self.lock.clone()),
            (true, false) => store.dropped_locks.put(DB, KEY, self.lock.clone()),
            (true, true) => store.dropped_locks.keep(DB, KEY, self.lock.clone()),
        }
        (store, Lock::new())
    }

    /// Updates this state from the store and from the lock in the key.
    fn close(&mut self, store: &Store<usize>, in_key: Lock) {
        let dropped = store.dropped_locks.get(DB, KEY).cloned();
        self.dropped = dropped.is_some();
        self.unreplicated = self.dropped && store.dropped_locks.has_unreplicated();
        self.lock = dropped.unwrap_or(in_key);
        self.tokens = store.tokens;
        self.quarantine = store.quarantine;
        self.memory = store.memory(&name());
        let queue = store.queue(&name()).into_iter();
        self.queue = queue
            .flat_map(|queue| store.queues.waiters_in(queue))
            .map(|waiter| waiter.wait_request.handle)
            .collect();
    }

    /// Changes the store of the server and the lock in its key.
    fn with_store<R>(
        &mut self,
        rules: &Rules,
        now: Now,
        change: impl FnOnce(&mut Store<usize>, &mut Lock) -> R,
    ) -> R {
        let (mut store, mut lock) = self.open(rules, now);
        let result = change(&mut store, &mut lock);
        self.close(&store, lock);
        result
    }

    /// One decision on the lock, as in the module. For LOCK.RELEASE, `release` is the request, because the server may
    /// replicate the request verbatim.
    pub(crate) fn decide<R>(
        &mut self,
        tick: u64,
        rules: &Rules,
        release: Option<Replicated>,
        decide: impl FnOnce(&mut Decision<'_, usize>) -> R,
    ) -> Done<R> {
        let now = self.now(tick);
        let mut decided = Decided::default();
        let answer = self
            .with_store(rules, now, |store, lock| store.decide(&name(), lock, &mut decided, now, 0, decide));
        let sent = match decided.effects.propagation() {
            Propagation::Nothing => None,
            Propagation::Verbatim => release,
            Propagation::Changes(payload) => Some(Replicated::Apply(payload.to_vec())),
        };
        let completed = decided.effects.completions.drain(..).map(|completion| {
            let grant = match completion.outcome {
                Outcome::Granted(grant) => Some(grant),
                Outcome::NotAcquired
                | Outcome::Refused(_)
                | Outcome::Superseded
                | Outcome::WrongType
                | Outcome::NotServed
                | Outcome::BecameReplica => None,
            };
            (completion.waiter.wait_request.handle, grant)
        });
        Done { answer, completed: completed.collect(), sent }
    }

    /// What a replica does with a message from its primary.
    pub(crate) fn receive(&mut self, tick: u64, rules: &Rules, message: &Replicated) {
        let now = self.now(tick);
        match message {
            Replicated::Apply(payload) => {
                let message = encoding::decode_message(payload, Origin::Live, now);
                self.with_store(rules, now, |store, lock| match message.expect("a primary sends payloads") {
                    Message::Changes(changes) => {
                        store.end_dropped(&name());
                        changes.iter().for_each(|change| store.observe_change(change));
                        changes.into_iter().for_each(|change| lock.apply(change, now));
                    }
                    Message::DroppedLock(dropped) => store.follow_dropped(&name(), dropped),
                });
            }
            Replicated::Release(who, left, token) => {
                let request = release(*who, *left, *token);
                let apply = |decision: &mut Decision<'_, usize>| decision.apply_release(&request).is_ok();
                self.decide(tick, rules, None, apply);
            }
            Replicated::Delete => self.lock = Lock::new(),
            Replicated::Write(token) => self.data = Some(*token),
        }
    }

    /// Whether LOCK.GUARD lets a command with this token pass.
    pub(crate) fn lets_pass(&self, tick: u64, token: FencingToken) -> bool {
        self.lock.fencing(token, self.now(tick).mono) == Fencing::Held
    }

    /// Whether the server knows of a tenure or a write with a larger token.
    pub(crate) fn knows_later_than(&self, token: FencingToken) -> bool {
        self.tokens.last().max(self.data) > Some(token)
    }

    /// The server drops the key before the lease is over.
    pub(crate) fn drop_key(&mut self, tick: u64, rules: &Rules) {
        let now = self.now(tick);
        self.with_store(rules, now, |store, lock| {
            let lock = mem::take(lock);
            store.unlinked(&name(), &lock, Now { wall: lock.expires_at(), ..now }, 0, || false);
            store.expired(&name(), lock.expires_at(), now.mono);
        });
    }

    /// The message about a dropped lock, after the server has deleted its key.
    pub(crate) fn replicate_dropped(&mut self, tick: u64, rules: &Rules) -> Option<Replicated> {
        if !self.unreplicated {
            return None;
        }
        let now = self.now(tick);
        self.with_store(rules, now, |store, _| {
            let (db, key) = store.dropped_locks.pop_unreplicated()?;
            let mut payload = Vec::new();
            encoding::append_dropped_lock(&mut payload, store.dropped_locks.get(db, &key), now);
            Some(Replicated::Apply(payload))
        })
    }

    /// The replica is promoted.
    pub(crate) fn promote(&mut self, tick: u64, rules: &Rules) {
        let now = self.now(tick);
        self.with_store(rules, now, |store, _| store.become_primary(now.mono));
    }

    /// The lock as the server writes it to its file, also if the lock was dropped. Empty for a free lock.
    pub(crate) fn save(&self, tick: u64) -> Vec<u8> {
        let mut payload = Vec::new();
        if !self.lock.is_free() {
            encoding::append_lock(&mut payload, &self.lock, self.now(tick));
        }
        payload
    }

    /// The server has just started and reads its file.
    pub(crate) fn load(&mut self, tick: u64, rules: &Rules, file: &[u8]) {
        let now = self.now(tick);
        self.with_store(rules, now, |store, lock| {
            store.begin_loading(Loading::File);
            if !file.is_empty() {
                *lock = encoding::decode_lock(file, Origin::Loaded, now).expect("a server writes payloads");
                store.observe(lock);
            }
            store.end_loading(now.mono);
        });
    }
}

/// The release of one hold, with TOKEN.
pub(crate) fn release(who: usize, left: Option<u32>, token: FencingToken) -> ReleaseRequest {
    let left = left.map_or(HoldsLeft::OneLess, HoldsLeft::Exactly);
    ReleaseRequest { owner: owner(who), left, token: Some(token) }
}
