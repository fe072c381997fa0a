//! Random operations against the dumbest possible reference.
//!
//! The [`World`] does with core what the module does: it keeps the locks by key, runs the steps, carries out their
//! effects and has one timer. The [`reference::Reference`] does the same with plain vectors and linear scans. After each
//! operation both must have answered alike and look alike, and what holds for every lock must hold for these.
//!
//! A replica listens: it hears only what is sent, and must always know the same tenures.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in what it calls as well"
)]

use lockward_core::encoding::{self, Message, Origin};
use lockward_core::{
    AcquireRequest, Acquired, Completion, Counters, Db, Decision, DroppedLocks, Effects, Event, FencingToken,
    Full, Grant, Holder, HoldsLeft, Instant, Limits, Lock, NotHeld, Now, Outcome, Owner, Propagation,
    Quarantine, QuarantineMemory, Refusal, ReleaseRequest, RenewRequest, Slots, Span, TokenSource,
    WaitQueues, WaitRequest, WallTime, event_of,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use reference::{Answer, Left, Reference};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem;

const KEYS: usize = 2;
const OWNERS: usize = 4;
const STEPS: usize = 200;

/// The reference. It knows nothing of core: owners and keys are numbers, times are microseconds.
mod reference {
    use super::KEYS;

    const DAY: i64 = 24 * 3_600 * 1_000_000;

    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(super) enum Answer {
        Granted { token: u64, holds: u32 },
        Busy,
        Waits,
        Full,
        Left(u32),
        Token(u64),
        FreeNotHeld,
        AnotherHas(u64),
        ItHas(u64),
        HoldsDoNotFollow(u32),
        TooManyHolds,
        TokenFarAhead,
        NotAcquired,
        Superseded,
    }

    #[derive(Clone, Copy, Debug)]
    pub(super) enum Left {
        OneLess,
        Exactly(u32),
        None,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(super) struct Tenure {
        pub(super) owner: usize,
        pub(super) holds: u32,
        pub(super) slots: u32,
        pub(super) token: u64,
        pub(super) deadline: i64,
        pub(super) since: i64,
    }

    #[derive(Clone, Debug)]
    pub(super) struct Wait {
        pub(super) handle: u32,
        pub(super) key: usize,
        pub(super) owner: usize,
        pub(super) lease: i64,
        pub(super) holds: Option<u32>,
        pub(super) slots: u32,
        pub(super) limit: Option<i64>,
        pub(super) since: i64,
    }

    #[derive(Debug)]
    pub(super) struct Reference {
        pub(super) now: i64,
        pub(super) wall: i64,
        pub(super) locks: [Vec<Tenure>; KEYS],
        /// The largest token of the tenures of each lock that were seen to end.
        pub(super) ended: [u64; KEYS],
        /// The tenure that was renewed last in quarantine.
        pub(super) renewed: [u64; KEYS],
        /// The tenure whose count was named last in quarantine.
        pub(super) counted: [u64; KEYS],
        /// Who waits, for whichever key, in the order in which they came.
        pub(super) waits: Vec<Wait>,
        pub(super) last_token: u64,
        pub(super) quarantine_began: i64,
        pub(super) quarantine_length: i64,
        pub(super) cap: usize,
        pub(super) total_cap: usize,
        pub(super) told: Vec<(i64, u32, Answer)>,
    }

    impl Reference {
        pub(super) fn quarantined(&self) -> bool {
            self.now < self.quarantine_began + self.quarantine_length
        }

        pub(super) fn held(&self, key: usize) -> Vec<Tenure> {
            self.locks[key].iter().filter(|tenure| self.now < tenure.deadline).cloned().collect()
        }

        pub(super) fn queue(&self, key: usize) -> Vec<(u32, i64)> {
            let waits = self.waits.iter().filter(|wait| wait.key == key);
            waits.map(|wait| (wait.handle, wait.since)).collect()
        }

        fn of(&self, key: usize, owner: usize) -> Option<usize> {
            self.locks[key].iter().position(|tenure| tenure.owner == owner)
        }

        /// The rule of admission, word for word.
        pub(super) fn fits(&self, key: usize, slots: u32) -> bool {
            let counted = self.locks[key].len() + 1;
            let named = self.locks[key].iter().map(|tenure| tenure.slots).chain([slots]);
            named.into_iter().all(|number| number == 0 || counted <= number as usize)
        }

        /// Whether a tenure is remembered from before the quarantine, and has not been renewed since.
        fn in_doubt(&self, key: usize, at: usize) -> bool {
            let tenure = &self.locks[key][at];
            self.quarantined() && tenure.since <= self.quarantine_began && self.renewed[key] != tenure.token
        }

        /// Whether its count is remembered from before the quarantine, and its owner has not named it since.
        fn uncounted(&self, key: usize, at: usize) -> bool {
            let tenure = &self.locks[key][at];
            self.quarantined() && tenure.since <= self.quarantine_began && self.counted[key] != tenure.token
        }

        /// Takes note of a count that an owner has named.
        fn count(&mut self, key: usize, at: usize) {
            if self.uncounted(key, at) {
                self.counted[key] = self.counted[key].max(self.locks[key][at].token);
            }
        }

        /// Whether an owner is let in as a holder.
        fn re_enters(&self, wait: &Wait) -> bool {
            let known = self.of(wait.key, wait.owner);
            known.is_some_and(|at| wait.holds != Some(1) || !self.in_doubt(wait.key, at))
        }

        fn enter(&mut self, wait: &Wait) -> Answer {
            if let Some(at) = self.of(wait.key, wait.owner) {
                let has = self.locks[wait.key][at].holds;
                let holds = match wait.holds {
                    None if has == u32::MAX => return Answer::TooManyHolds,
                    None => has + 1,
                    Some(named) if named == has => has,
                    Some(named) if u64::from(named) == u64::from(has) + 1 => named,
                    Some(_) => return Answer::HoldsDoNotFollow(has),
                };
                if wait.holds.is_some() {
                    self.count(wait.key, at);
                }
                let until = self.now + wait.lease;
                let tenure = &mut self.locks[wait.key][at];
                tenure.holds = holds;
                if until > tenure.deadline {
                    tenure.deadline = until;
                }
                if tenure.slots == 0 || (wait.slots != 0 && wait.slots < tenure.slots) {
                    tenure.slots = wait.slots;
                }
                return Answer::Granted { token: tenure.token, holds };
            }
            match wait.holds {
                None | Some(1) => {}
                Some(_) => return Answer::HoldsDoNotFollow(0),
            }
            self.last_token = (self.last_token + 1).max(self.wall.max(0) as u64);
            self.locks[wait.key].push(Tenure {
                owner: wait.owner,
                holds: 1,
                slots: wait.slots,
                token: self.last_token,
                deadline: self.now + wait.lease,
                since: self.now,
            });
            Answer::Granted { token: self.last_token, holds: 1 }
        }

        fn tell(&mut self, wait: &Wait, answer: Answer) {
            self.told.push((self.now, wait.handle, answer));
        }

        fn grant_waits_of(&mut self, key: usize, owner: usize) {
            while let Some(at) = self.waits.iter().position(|wait| wait.key == key && wait.owner == owner) {
                let wait = self.waits.remove(at);
                let answer = self.enter(&wait);
                self.tell(&wait, answer);
            }
        }

        /// Ends what is over and serves who waits.
        pub(super) fn look(&mut self, key: usize) {
            let now = self.now;
            for over in self.locks[key].extract_if(.., |tenure| tenure.deadline <= now) {
                self.ended[key] = self.ended[key].max(over.token - 1);
            }
            while let Some(first) = self.waits.iter().find(|wait| wait.key == key) {
                let owner = first.owner;
                if !self.re_enters(first) && (self.quarantined() || !self.fits(key, first.slots)) {
                    return;
                }
                let first = first.clone();
                self.waits.retain(|wait| wait.handle != first.handle);
                let answer = self.enter(&first);
                self.tell(&first, answer);
                if self.of(key, owner).is_some() {
                    self.grant_waits_of(key, owner);
                }
            }
        }

        pub(super) fn acquire(&mut self, wait: Wait, or_wait: bool) -> Answer {
            self.look(wait.key);
            let waited_for = self.waits.iter().any(|other| other.key == wait.key);
            if self.re_enters(&wait)
                || (!waited_for && !self.quarantined() && self.fits(wait.key, wait.slots))
            {
                return self.enter(&wait);
            }
            if wait.holds.is_some_and(|named| named != 1) {
                return Answer::HoldsDoNotFollow(0);
            }
            if or_wait { self.wait(wait) } else { Answer::Busy }
        }

        fn wait(&mut self, mut wait: Wait) -> Answer {
            if wait.holds.is_some() {
                let same = |other: &Wait| other.key == wait.key && other.owner == wait.owner;
                if let Some(at) = self.waits.iter().position(same) {
                    wait.since = self.waits[at].since;
                    let earlier = std::mem::replace(&mut self.waits[at], wait);
                    self.tell(&earlier, Answer::Superseded);
                    return Answer::Waits;
                }
            }
            let for_this = self.waits.iter().filter(|other| other.key == wait.key).count();
            if for_this >= self.cap || self.waits.len() >= self.total_cap {
                return Answer::Full;
            }
            self.waits.push(wait);
            Answer::Waits
        }

        fn not_held(&self, key: usize, owner: usize) -> Answer {
            if let Some(at) = self.of(key, owner) {
                return Answer::ItHas(self.locks[key][at].token);
            }
            match self.locks[key].iter().map(|tenure| tenure.token).max() {
                Some(token) => Answer::AnotherHas(token),
                None => Answer::FreeNotHeld,
            }
        }

        pub(super) fn release(&mut self, key: usize, owner: usize, left: Left, token: Option<u64>) -> Answer {
            self.look(key);
            let answer = self.give_back(key, owner, left, token);
            self.look(key);
            answer
        }

        fn give_back(&mut self, key: usize, owner: usize, left: Left, token: Option<u64>) -> Answer {
            let Some(at) = self.of(key, owner) else {
                return match left {
                    Left::Exactly(0) => Answer::Left(0),
                    Left::OneLess | Left::Exactly(_) | Left::None => self.not_held(key, owner),
                };
            };
            let has = self.locks[key][at].holds;
            if token.is_some_and(|token| token != self.locks[key][at].token) {
                return self.not_held(key, owner);
            }
            let exactly = matches!(left, Left::Exactly(_));
            let left = match left {
                Left::OneLess => has - 1,
                Left::None => 0,
                Left::Exactly(named) if named == has || named == has - 1 => named,
                Left::Exactly(_) => return Answer::HoldsDoNotFollow(has),
            };
            if exactly {
                self.count(key, at);
            }
            if left == 0 {
                let over = self.locks[key].remove(at);
                self.ended[key] = self.ended[key].max(over.token);
            } else {
                self.locks[key][at].holds = left;
            }
            Answer::Left(left)
        }

        pub(super) fn renew(
            &mut self,
            key: usize,
            owner: usize,
            lease: i64,
            token: Option<u64>,
            holds: Option<u32>,
        ) -> Answer {
            self.look(key);
            let (now, deadline) = (self.now, self.now + lease);
            if let Some(at) = self.of(key, owner) {
                let in_doubt = self.in_doubt(key, at);
                let uncounted = self.uncounted(key, at);
                let told = holds.filter(|_| token.is_some() && uncounted);
                let tenure = &mut self.locks[key][at];
                if token.is_none_or(|token| token == tenure.token) {
                    tenure.deadline = deadline;
                    tenure.holds = told.unwrap_or(tenure.holds);
                    let token = tenure.token;
                    if told.is_some() {
                        self.count(key, at);
                    }
                    if in_doubt {
                        self.renewed[key] = self.renewed[key].max(token);
                        self.grant_waits_of(key, owner);
                    }
                    return Answer::Token(token);
                }
            }
            let Some(token) = token.filter(|_| self.quarantined()) else { return self.not_held(key, owner) };
            if token as i64 > self.wall + DAY && token > self.last_token {
                return Answer::TokenFarAhead;
            }
            let older = self.locks[key].iter().map(|tenure| tenure.token).max();
            if self.ended[key].max(older.unwrap_or(0)) >= token {
                return self.not_held(key, owner);
            }
            self.ended[key] = self.ended[key].max(older.unwrap_or(0));
            self.last_token = self.last_token.max(token);
            let holds = holds.unwrap_or(1);
            self.locks[key] = vec![Tenure { owner, holds, slots: 1, token, deadline, since: now }];
            self.grant_waits_of(key, owner);
            Answer::Token(token)
        }

        pub(super) fn pass_on(&mut self, key: usize, owner: usize, token: u64) {
            self.look(key);
            if self.of(key, owner).is_some_and(|at| self.locks[key][at].token == token) {
                self.give_back(key, owner, Left::OneLess, None);
            }
            self.look(key);
        }

        pub(super) fn leave(&mut self, handle: u32) {
            self.waits.retain(|wait| wait.handle != handle);
        }

        /// Lets time pass: at every instant at which something may happen, limits are reached first, then every lock
        /// is looked at.
        pub(super) fn advance(&mut self, to: i64) {
            loop {
                let limits = self.waits.iter().filter_map(|wait| wait.limit);
                let leases = self.locks.iter().flatten().map(|tenure| tenure.deadline);
                let quarantine = self.quarantine_began + self.quarantine_length;
                let events = limits.chain(leases).chain([quarantine]);
                let next = events.filter(|at| self.now < *at && *at <= to).min();
                let at = next.unwrap_or(to);
                self.wall += at - self.now;
                self.now = at;
                let reached = |wait: &Wait| wait.limit.is_some_and(|limit| limit <= at);
                let mut gone: Vec<Wait> = self.waits.iter().filter(|wait| reached(wait)).cloned().collect();
                gone.sort_by_key(|wait| wait.handle);
                self.waits.retain(|wait| !reached(wait));
                gone.iter().for_each(|wait| self.tell(wait, Answer::NotAcquired));
                (0..KEYS).for_each(|key| self.look(key));
                if next.is_none() {
                    return;
                }
            }
        }
    }
}

// The operations.

#[derive(Clone, Debug)]
enum Op {
    /// With `wait`, it joins the line when the lock is busy, up to that many milliseconds if it says so.
    Acquire {
        key: usize,
        owner: usize,
        lease: i64,
        holds: Option<u32>,
        wait: Option<Option<i64>>,
    },
    Release {
        key: usize,
        owner: usize,
        left: Left,
        token: EncodedOwner,
    },
    Renew {
        key: usize,
        owner: usize,
        lease: i64,
        token: EncodedOwner,
        holds: Option<u32>,
    },
    /// Time passes, in microseconds.
    Advance(i64),
    /// Somebody sets the wall clock.
    StepWall(i64),
    /// One of the waiting clients leaves.
    Leave(prop::sample::Index),
    /// The client of one of the grants so far turns out to have left.
    PassOn(prop::sample::Index),
    /// The quarantine begins again.
    Promote,
    /// The quarantine is set to this many milliseconds.
    SetQuarantine(i64),
    /// The server drops the key before its time, here and on its replicas.
    DropEarly(usize),
    /// The key is deleted.
    Break(usize),
    /// All keys are deleted.
    Flush,
    /// The databases of the two keys are exchanged.
    Swap,
}

/// The token that a request names.
#[derive(Clone, Debug)]
enum EncodedOwner {
    None,
    /// That of the owner's tenure.
    Own,
    /// One that was given before.
    Earlier(prop::sample::Index),
    /// So much above the largest so far.
    Above(u64),
    /// So much above the wall clock and a day.
    DayAhead(i64),
}

fn op() -> impl Strategy<Value = Op> {
    let (key, owner) = (0..KEYS, 0..OWNERS);
    let at = (key.clone(), owner);
    let lease = 1..150_i64;
    let holds = prop_oneof![Just(None), (1..4_u32).prop_map(Some)];
    let limit = prop_oneof![Just(None), (1..200_i64).prop_map(Some)];
    let wait = prop_oneof![1 => Just(None), 3 => limit.prop_map(Some)];
    let left =
        prop_oneof![4 => Just(Left::OneLess), 4 => (0..4_u32).prop_map(Left::Exactly), 1 => Just(Left::None)];
    let named = prop_oneof![
        6 => Just(EncodedOwner::None),
        3 => Just(EncodedOwner::Own),
        4 => any::<prop::sample::Index>().prop_map(EncodedOwner::Earlier),
        2 => (1..3_u64).prop_map(EncodedOwner::Above),
        1 => (-1..2_i64).prop_map(EncodedOwner::DayAhead),
    ];
    let restored_holds =
        prop::option::of(prop_oneof![4 => 1..4_u32, 1 => Just(u32::MAX), 1 => Just(u32::MAX - 1)]);
    prop_oneof![
        20 => (at.clone(), lease.clone(), holds, wait)
            .prop_map(|((key, owner), lease, holds, wait)| Op::Acquire { key, owner, lease, holds, wait }),
        10 => (at.clone(), left, named.clone())
            .prop_map(|((key, owner), left, token)| Op::Release { key, owner, left, token }),
        8 => (at, lease, named, restored_holds)
            .prop_map(|((key, owner), lease, token, holds)| Op::Renew { key, owner, lease, token, holds }),
        6 => (1..60_i64).prop_map(|ms| Op::Advance(ms * 1_000)),
        3 => (0..60_000_i64).prop_map(Op::Advance),
        2 => (-2_000_000..2_000_000_i64).prop_map(Op::StepWall),
        4 => any::<prop::sample::Index>().prop_map(Op::Leave),
        4 => any::<prop::sample::Index>().prop_map(Op::PassOn),
        1 => Just(Op::Promote),
        2 => prop_oneof![Just(0), 1..200_i64].prop_map(Op::SetQuarantine),
        3 => key.clone().prop_map(Op::DropEarly),
        1 => key.prop_map(Op::Break),
        1 => Just(Op::Flush),
        1 => Just(Op::Swap),
    ]
}

/// What a run starts from.
#[derive(Clone, Debug)]
struct Setting {
    wall: i64,
    quarantine: i64,
    caps: (usize, usize),
    /// The number that each owner names. The same each time: no owner asks for fewer than it holds with.
    slots: [u32; OWNERS],
}

fn setting() -> impl Strategy<Value = Setting> {
    let wall = prop_oneof![Just(0), Just(1_795_000_000_000_000)];
    let quarantine = prop_oneof![Just(0), 1..300_i64];
    let caps = prop_oneof![Just((100, 100)), (1..4_usize, 1..6_usize)];
    let slots = prop_oneof![Just([1; OWNERS]), prop::array::uniform4(0..4_u32)];
    (wall, quarantine, caps, slots).prop_map(|(wall, quarantine, caps, slots)| Setting {
        wall,
        quarantine,
        caps,
        slots,
    })
}

/// Every run has all the steps. Only one that fails is cut down to those that make it fail.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kept = prop::collection::vec(prop::bool::weighted(1.0), STEPS);
    (kept, prop::collection::vec(op(), STEPS)).prop_map(|(kept, ops)| {
        let kept = ops.into_iter().zip(kept).filter(|(_, kept)| *kept);
        kept.map(|(op, _)| op).collect()
    })
}

/// 2,000 runs, or as many as PROPTEST_CASES says, for those who run this often.
fn runs() -> u32 {
    std::env::var_os("PROPTEST_CASES").map_or(2_000, |_| ProptestConfig::default().cases)
}

// The claims.

proptest! {
    #![proptest_config(ProptestConfig { cases: runs(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn core_does_what_the_reference_does(setting in setting(), ops in ops()) {
        let mut both = Both::new(&setting);
        for (number, op) in ops.iter().enumerate() {
            both.play(number, op).map_err(|error| match error {
                TestCaseError::Fail(reason) => TestCaseError::fail(format!("step {number}, {op:?}: {reason}")),
                TestCaseError::Reject(reason) => TestCaseError::Reject(reason),
            })?;
        }
    }
}

/// Core and the reference side by side.
struct Both {
    world: World,
    reference: Reference,
    slots: [u32; OWNERS],
    /// All grants of the past: key, owner and token.
    grants: Vec<(usize, usize, u64)>,
    waited: HashMap<u32, (usize, usize)>,
    seen: [HashSet<u64>; KEYS],
}

impl Both {
    fn new(setting: &Setting) -> Self {
        let began = 5_000_000;
        let (cap, total_cap) = setting.caps;
        let reference = Reference {
            now: began,
            wall: setting.wall,
            locks: [Vec::new(), Vec::new()],
            ended: [0; KEYS],
            renewed: [0; KEYS],
            counted: [0; KEYS],
            waits: Vec::new(),
            last_token: 0,
            quarantine_began: began,
            quarantine_length: setting.quarantine * 1_000,
            cap,
            total_cap,
            told: Vec::new(),
        };
        Self {
            world: World::new(setting, began),
            reference,
            slots: setting.slots,
            grants: Vec::new(),
            waited: HashMap::new(),
            seen: [HashSet::new(), HashSet::new()],
        }
    }

    fn play(&mut self, number: usize, op: &Op) -> Result<(), TestCaseError> {
        let (world, reference) = (&mut self.world, &mut self.reference);
        let mut restored = None;
        match *op {
            Op::Acquire { key, owner, lease, holds, wait } => {
                let handle = u32::try_from(number).unwrap();
                let limit = wait.flatten().map(|ms| reference.now + ms * 1_000);
                let (slots, since) = (self.slots[owner], reference.now);
                let lease = lease * 1_000;
                let asked = reference::Wait { handle, key, owner, lease, holds, slots, limit, since };
                let expected = reference.acquire(asked.clone(), wait.is_some());
                let answer = world.acquire(&asked, wait.is_some())?;
                prop_assert_eq!(&answer, &expected);
                if let Answer::Granted { token, .. } = answer {
                    self.grants.push((key, owner, token));
                }
                self.waited.insert(handle, (key, owner));
            }
            Op::Release { key, owner, left, ref token } => {
                let token = resolve(token, reference, &self.grants, key, owner);
                let expected = reference.release(key, owner, left, token);
                prop_assert_eq!(world.release(key, owner, left, token)?, expected);
            }
            Op::Renew { key, owner, lease, ref token, holds } => {
                let token = resolve(token, reference, &self.grants, key, owner);
                let expected = reference.renew(key, owner, lease * 1_000, token, holds);
                prop_assert_eq!(world.renew(key, owner, lease * 1_000, token, holds)?, expected);
                restored = token;
            }
            Op::Advance(micros) => {
                let to = reference.now + micros;
                reference.advance(to);
                world.advance(to)?;
            }
            Op::StepWall(micros) => {
                reference.wall += micros;
                world.wall = WallTime::from_micros(world.wall.as_micros() + micros);
            }
            Op::Leave(which) => {
                if reference.waits.is_empty() {
                    prop_assert!(world.queues.leave(u32::MAX).is_none());
                } else {
                    let gone = reference.waits[which.index(reference.waits.len())].clone();
                    reference.leave(gone.handle);
                    reference.look(gone.key);
                    world.leave(gone.handle, gone.key)?;
                }
            }
            Op::PassOn(which) => {
                if !self.grants.is_empty() {
                    let (key, owner, token) = self.grants[which.index(self.grants.len())];
                    reference.pass_on(key, owner, token);
                    world.pass_on(key, owner, token)?;
                }
            }
            Op::Promote => {
                reference.quarantine_began = reference.now;
                world.quarantine.restart(world.mono);
            }
            Op::SetQuarantine(ms) => {
                reference.quarantine_length = ms * 1_000;
                (0..KEYS).for_each(|key| reference.look(key));
                world.quarantine.set_length(span(ms * 1_000));
                world.look_at_all()?;
            }
            Op::DropEarly(key) => world.drop_early(key),
            Op::Break(key) => {
                world.look_at_all()?;
                reference.locks[key].clear();
                reference.look(key);
                world.break_lock(key)?;
            }
            Op::Flush => {
                world.look_at_all()?;
                reference.locks.iter_mut().for_each(Vec::clear);
                (0..KEYS).for_each(|key| reference.look(key));
                world.flush()?;
            }
            Op::Swap => {
                world.look_at_all()?;
                reference.locks.swap(0, 1);
                self.seen.swap(0, 1);
                (0..KEYS).for_each(|key| reference.look(key));
                world.swap()?;
            }
        }
        for (_, handle, answer) in &self.world.told {
            if let Answer::Granted { token, .. } = answer {
                let (key, owner) = self.waited[handle];
                self.grants.push((key, owner, *token));
            }
        }
        self.compare()?;
        self.check(restored)
    }

    /// Both look alike.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        let (world, reference) = (&mut self.world, &mut self.reference);
        let told: Vec<_> =
            reference.told.drain(..).map(|(at, to, answer)| (instant(at), to, answer)).collect();
        prop_assert_eq!(std::mem::take(&mut world.told), told, "what waiters are told");
        for key in 0..KEYS {
            let holders: Vec<Holder> = reference.held(key).iter().map(as_holder).collect();
            prop_assert_eq!(world.held(key), holders, "the holders of lock {}", key);
            let queue: Vec<_> =
                reference.queue(key).into_iter().map(|(handle, since)| (handle, instant(since))).collect();
            prop_assert_eq!(world.counted(key), queue.len());
            prop_assert_eq!(world.queue(key), queue, "the queue of lock {}", key);
        }
        prop_assert_eq!(world.queues.waiters(), reference.waits.len());
        let lines = world.queues.queues().count();
        let used = (0..KEYS).filter(|key| world.counted(*key) > 0).count();
        prop_assert_eq!(lines, used, "a line without waiters does not exist");
        let dropped_locks = (0..KEYS).filter(|key| world.dropped_lock(*key).is_some()).count();
        prop_assert_eq!(world.dropped_locks.len(), dropped_locks);
        Ok(())
    }

    /// What holds for every lock.
    fn check(&mut self, restored: Option<u64>) -> Result<(), TestCaseError> {
        let world = &self.world;
        for key in 0..KEYS {
            let held = world.held(key);
            let exclusive = held.iter().any(|holder| holder.slots == Slots::EXCLUSIVE);
            prop_assert!(!exclusive || held.len() == 1, "beside an exclusive holder of lock {}", key);
            let owners: HashSet<&Owner> = held.iter().map(|holder| &holder.owner).collect();
            prop_assert_eq!(owners.len(), held.len(), "an owner twice");
            prop_assert!(held.iter().all(|holder| holder.holds > 0));

            // A token that is not one of the past is larger than all of the past, unless its owner brought it back.
            let largest = self.seen[key].iter().max().copied().unwrap_or(0);
            let new =
                held.iter().map(|holder| holder.token.get()).filter(|token| !self.seen[key].contains(token));
            let new: BTreeSet<u64> = new.collect();
            for token in &new {
                prop_assert!(*token > largest || restored == Some(*token), "{} after {}", token, largest);
            }
            self.seen[key].extend(new);

            let first = world.line(key).and_then(|line| world.queues.front(line));
            let lock = if held.is_empty() { Some(Lock::new()) } else { Lock::held_by(held, WallTime::EPOCH) };
            prop_assert!(lock.is_some(), "more holders of lock {} than one of them named", key);
            let lock = lock.unwrap();
            let admitted = first.is_some_and(|first| lock.admits(first.wait_request.request.slots));
            prop_assert!(
                !admitted || world.quarantine.in_force(world.now()),
                "left waiting for lock {}",
                key
            );
        }
        Ok(())
    }
}

fn resolve(
    named: &EncodedOwner,
    reference: &Reference,
    grants: &[(usize, usize, u64)],
    key: usize,
    owner: usize,
) -> Option<u64> {
    let token = match named {
        EncodedOwner::None => return None,
        EncodedOwner::Own => reference.held(key).into_iter().find(|tenure| tenure.owner == owner)?.token,
        EncodedOwner::Earlier(_) if grants.is_empty() => return None,
        EncodedOwner::Earlier(which) => grants[which.index(grants.len())].2,
        EncodedOwner::Above(more) => reference.last_token + more,
        EncodedOwner::DayAhead(more) => {
            u64::try_from(reference.wall + 24 * 3_600 * 1_000_000 + more).unwrap_or(1)
        }
    };
    Some(token)
}

fn instant(micros: i64) -> Instant {
    Instant::from_micros(micros)
}

fn span(micros: i64) -> Span {
    Span::from_millis(u64::try_from(micros / 1_000).unwrap()).unwrap()
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// Short, usual, long and binary.
fn owner(number: usize) -> Owner {
    let long = [b'x'; 300];
    let names: [&[u8]; OWNERS] = [b"A", b"0f8fad5b-d9cb-469f-a165-70867728950e:42", &long, &[0, 0xff]];
    Owner::new(names[number]).unwrap()
}

fn slots(number: u32) -> Slots {
    Slots::new(number).unwrap()
}

fn as_holder(tenure: &reference::Tenure) -> Holder {
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
            panic!("no step of a lock says so")
        }
    }
}

/// Core, and around it what the module does: keys, shadows, one timer, and a replica that listens.
struct World {
    stored: [Option<Lock>; KEYS],
    dropped_locks: DroppedLocks,
    replica: [Lock; KEYS],
    /// Whether the replica knows the lock as a shadow, and not as a key.
    heard_of_shadow: [bool; KEYS],
    /// The locks whose shadow, or that they have none any more, the replica is yet to be told.
    unreplicated: BTreeSet<usize>,
    queues: WaitQueues<u32>,
    tokens: TokenSource,
    quarantine: Quarantine,
    quarantine_memory: [QuarantineMemory; KEYS],
    effects: Effects<u32>,
    counters: Counters,
    caps: Limits,
    mono: Instant,
    wall: WallTime,
    key_of: HashMap<u32, usize>,
    told: Vec<(Instant, u32, Answer)>,
    /// Whether owners share locks: then the end of the quarantine matters to a lock that is held, too.
    shared: bool,
}

/// The same key in two databases.
fn name(key: usize) -> (Db, &'static [u8]) {
    (Db(i32::try_from(key).unwrap()), b"lock")
}

impl World {
    fn new(setting: &Setting, began: i64) -> Self {
        Self {
            stored: [None, None],
            dropped_locks: DroppedLocks::new(),
            replica: [Lock::new(), Lock::new()],
            heard_of_shadow: [false; KEYS],
            unreplicated: BTreeSet::new(),
            queues: WaitQueues::new(),
            tokens: TokenSource::new(),
            quarantine: Quarantine::new(instant(began), span(setting.quarantine * 1_000)),
            quarantine_memory: [QuarantineMemory::default(); KEYS],
            effects: Effects::default(),
            counters: Counters::default(),
            caps: Limits { per_lock: setting.caps.0, total: setting.caps.1 },
            mono: instant(began),
            wall: WallTime::from_micros(setting.wall),
            key_of: HashMap::new(),
            told: Vec::new(),
            shared: setting.slots != [1; OWNERS],
        }
    }

    fn now(&self) -> Now {
        Now { mono: self.mono, wall: self.wall }
    }

    fn line(&self, key: usize) -> Option<lockward_core::QueueId> {
        let (db, bytes) = name(key);
        self.queues.queue(db, bytes)
    }

    fn dropped_lock(&self, key: usize) -> Option<&Lock> {
        let (db, bytes) = name(key);
        self.dropped_locks.get(db, bytes)
    }

    /// The holders whose lease is not over; nobody need have looked at the others yet.
    fn held(&self, key: usize) -> Vec<Holder> {
        let lock = self.stored[key].as_ref().or_else(|| self.dropped_lock(key));
        let holders = lock.into_iter().flat_map(Lock::holders);
        holders.filter(|holder| !holder.is_over(self.now().mono)).map(Holder::cloned).collect()
    }

    fn queue(&self, key: usize) -> Vec<(u32, Instant)> {
        let queue = self.line(key).into_iter().flat_map(|line| self.queues.waiters_in(line));
        queue.map(|waiter| (waiter.wait_request.handle, waiter.since)).collect()
    }

    fn counted(&self, key: usize) -> usize {
        self.line(key).map_or(0, |line| self.queues.len(line))
    }

    /// One step on one lock, with all that follows from it. `release` is the command, where it is a release.
    fn step<T>(
        &mut self,
        key: usize,
        release: Option<&ReleaseRequest>,
        act: impl FnOnce(&mut Decision<'_, u32>) -> T,
    ) -> Result<T, TestCaseError> {
        let (now, (db, bytes)) = (self.now(), name(key));
        let dropped_lock = self.dropped_locks.take(db, bytes);
        let shadowed = dropped_lock.is_some();
        prop_assert!(!shadowed || self.stored[key].is_none());
        let mut lock = self.stored[key].take().or(dropped_lock).unwrap_or_default();
        let (tenures, counted) = (tokens(&lock), self.counters.clone());
        self.effects.clear();
        let mut step = Decision {
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
        let done = act(&mut step);
        let due = step.due();
        self.see_counted(&tenures, &tokens(&lock), &counted)?;
        self.quarantine_memory[key] = self.quarantine_memory[key].merge(self.effects.quarantine_memory());
        if shadowed && !self.effects.changed() {
            self.dropped_locks.put(db, bytes, lock);
        } else {
            if shadowed {
                self.effects.replicate_whole_lock(&lock, now);
                self.dropped_locks.mark_replicated(db, bytes);
                self.unreplicated.remove(&key);
                lock.recompute_expiry(now);
            }
            self.stored[key] = Some(lock).filter(|lock| !lock.is_free());
        }
        self.replicate(key, release, shadowed)?;
        for Completion { waiter, outcome } in self.effects.completions.drain(..) {
            self.told.push((self.mono, waiter.wait_request.handle, ended(outcome)));
        }
        if let Some(line) = self.line(key) {
            self.queues.set_due(line, due);
        }
        Ok(done)
    }

    /// What has been counted is what the step has come to.
    fn see_counted(
        &self,
        before: &HashSet<FencingToken>,
        after: &HashSet<FencingToken>,
        counted: &Counters,
    ) -> Result<(), TestCaseError> {
        let counters = &self.counters;
        let begun = counters.acquired + counters.restored - counted.acquired - counted.restored;
        let ended = counters.tenure_durations.len() - counted.tenure_durations.len();
        // A tenure may begin and end within one step: its token is in neither.
        let gone = before.difference(after).count() as u64;
        let come = after.difference(before).count() as u64;
        prop_assert!(begun >= come && ended >= gone && begun + gone == ended + come, "{:?}", counters);
        let granted = |wake: &&Completion<u32>| matches!(wake.outcome, Outcome::Granted(_));
        let told = self.effects.completions.iter().filter(granted).count() as u64;
        prop_assert_eq!(counters.wait_durations.len() - counted.wait_durations.len(), told);
        Ok(())
    }

    /// The replica hears what is sent, and then knows the same tenures.
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
                let release = release.ok_or_else(|| TestCaseError::fail("no command to send verbatim"))?;
                let mut effects: Effects<u32> = Effects::default();
                let counted = self.counters.clone();
                let followed = Decision {
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
                prop_assert!(followed.is_ok(), "the replica answers {:?}", followed);
                prop_assert_eq!(
                    &counted,
                    &self.counters,
                    "what a replica carries out is counted where it was decided"
                );
                events = effects.events;
            }
            Propagation::Changes(payload) => match encoding::decode_message(payload, Origin::Live, now) {
                Ok(Message::Changes(changes)) => {
                    // What changes a lock that has a shadow is the whole of it.
                    if mem::take(&mut self.heard_of_shadow[key]) {
                        *replica = Lock::new();
                    }
                    for change in changes {
                        events.push(event_of(replica, &change));
                        replica.apply(change, now);
                    }
                }
                Ok(Message::DroppedLock(dropped_lock)) => {
                    prop_assert!(replica.is_free() || self.heard_of_shadow[key], "a key and a shadow");
                    self.heard_of_shadow[key] = dropped_lock.is_some();
                    *replica = dropped_lock.unwrap_or_default();
                }
                Err(malformed) => {
                    return Err(TestCaseError::fail(format!("{malformed:?}: {payload:?}")));
                }
            },
        }
        if !whole {
            // The re-entries of a tenure that is granted with several waits are told as one change.
            let once = |events: &[Event]| {
                let mut events = events.to_vec();
                events.dedup_by(|again, event| *again == Event::Acquired && event == again);
                events
            };
            let happened = &self.effects.events;
            prop_assert!(
                events == *happened || once(&events) == once(happened) && events.len() < happened.len(),
                "the replica takes {:?} to have happened, and not {:?}",
                events,
                happened
            );
        }
        self.compare_replica(key)
    }

    /// The replica knows what the primary knows, but for a shadow of which it has not been told.
    fn compare_replica(&self, key: usize) -> Result<(), TestCaseError> {
        if self.stored[key].is_none() && self.unreplicated.contains(&key) {
            return Ok(());
        }
        let now = self.now();
        let free = Lock::new();
        let dropped_lock = self.dropped_lock(key);
        prop_assert_eq!(self.heard_of_shadow[key], dropped_lock.is_some(), "the shadow of lock {}", key);
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
        // Heard at the same instant, the times differ by what rounding to milliseconds makes.
        let milli = Span::from_millis(1).unwrap();
        for (here, there) in here.zip(there) {
            let near = |here: Instant, there: Instant| here <= there && there < here.after(milli);
            let over = here.is_over(now.mono) && there.is_over(now.mono);
            prop_assert!(over || near(here.deadline, there.deadline), "{:?} and {:?}", here, there);
            prop_assert!(near(here.since, there.since), "{:?} and {:?}", here, there);
        }
        Ok(())
    }

    fn acquire(&mut self, asked: &reference::Wait, or_wait: bool) -> Result<Answer, TestCaseError> {
        let request = AcquireRequest {
            owner: owner(asked.owner),
            lease: span(asked.lease),
            holds: asked.holds,
            slots: slots(asked.slots),
        };
        match self.step(asked.key, None, |step| step.acquire(&request))? {
            Ok(Acquired::Granted(grant)) => return Ok(granted(grant)),
            Ok(Acquired::Busy) if or_wait => {}
            Ok(Acquired::Busy) => return Ok(Answer::Busy),
            Err(refusal) => return Ok(refused(refusal)),
        }
        let (db, bytes) = name(asked.key);
        match self.queues.may_join(db, bytes, &request, self.caps) {
            Ok(()) => {}
            Err(Full::Lock | Full::Total) => return Ok(Answer::Full),
        }
        let limit = asked.limit.map(Instant::from_micros);
        let wait_request = WaitRequest { request, limit, handle: asked.handle };
        self.key_of.insert(asked.handle, asked.key);
        let superseded = self.queues.join(db, bytes, wait_request, self.now().mono);
        self.told.extend(
            superseded.map(|Completion { waiter, outcome }| {
                (self.mono, waiter.wait_request.handle, ended(outcome))
            }),
        );
        self.look_at(asked.key)?;
        Ok(Answer::Waits)
    }

    fn release(
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
        let left = self.step(key, Some(&request), |step| step.release(&request))?;
        Ok(left.map_or_else(refused, Answer::Left))
    }

    fn renew(
        &mut self,
        key: usize,
        name: usize,
        lease: i64,
        named: Option<u64>,
        holds: Option<u32>,
    ) -> Result<Answer, TestCaseError> {
        let request = RenewRequest { owner: owner(name), lease: span(lease), token: named.map(token), holds };
        let renewed = self.step(key, None, |step| step.renew(&request))?;
        Ok(renewed.map_or_else(refused, |token| Answer::Token(token.get())))
    }

    fn pass_on(&mut self, key: usize, name: usize, number: u64) -> Result<(), TestCaseError> {
        let (owner, token) = (owner(name), token(number));
        // There is no command that a replica could be sent as it is.
        self.step(key, None, |step| step.pass_on(&owner, token))
    }

    fn look_at(&mut self, key: usize) -> Result<(), TestCaseError> {
        self.step(key, None, |step| step.expire_and_serve())
    }

    fn look_at_all(&mut self) -> Result<(), TestCaseError> {
        (0..KEYS).try_for_each(|key| self.look_at(key))
    }

    fn leave(&mut self, handle: u32, key: usize) -> Result<(), TestCaseError> {
        let left = self.queues.leave(handle).map(|waiter| waiter.wait_request.handle);
        prop_assert_eq!(left, Some(handle));
        prop_assert!(self.queues.leave(handle).is_none());
        self.look_at(key)
    }

    /// Lets time pass, the timer going off whenever the room says.
    fn advance(&mut self, to: i64) -> Result<(), TestCaseError> {
        self.tell()?;
        let end = instant(to);
        loop {
            let quarantine = self.quarantine.ends(self.mono).filter(|_| self.shared);
            prop_assert!(quarantine.is_none_or(|end| self.mono < end), "a quarantine that has ended ends");
            let due = self.queues.next_due().into_iter().chain(quarantine).min().filter(|due| *due <= end);
            // A shadow may be of a tenure that is over already.
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
            self.told.extend(reached);
            while let Some(line) = self.queues.pop_due(now) {
                let (db, _) = self.queues.name(line).unwrap();
                keys.insert(usize::try_from(db.0).unwrap());
            }
            if quarantine.is_some_and(|end| end <= now) {
                keys.extend(0..KEYS);
            }
            keys.into_iter().try_for_each(|key| self.look_at(key))?;
            let again = self.queues.next_due().is_some_and(|due| due <= now);
            prop_assert!(!again, "what has been looked at is due again at once");
        }
    }

    /// The server drops a key before its lease is over: the tenure stays, as a shadow. Replicas drop the key too, and
    /// are told of the shadow when the timer goes off.
    fn drop_early(&mut self, key: usize) {
        let (db, bytes) = name(key);
        if let Some(lock) = self.stored[key].take() {
            self.dropped_locks.keep(db, bytes, lock);
            self.unreplicated.insert(key);
            self.replica[key] = Lock::new();
        }
    }

    /// The replica is told of every shadow that was kept or forgotten since.
    fn tell(&mut self) -> Result<(), TestCaseError> {
        let now = self.now();
        while let Some((db, bytes)) = self.dropped_locks.pop_unreplicated() {
            let key = usize::try_from(db.0).unwrap();
            prop_assert!(self.unreplicated.remove(&key));
            let mut payload = Vec::new();
            encoding::append_dropped_lock(&mut payload, self.dropped_locks.get(db, &bytes), now);
            let Ok(Message::DroppedLock(dropped_lock)) =
                encoding::decode_message(&payload, Origin::Live, now)
            else {
                return Err(TestCaseError::fail(format!("no shadow is told by {payload:?}")));
            };
            prop_assert!(self.heard_of_shadow[key] || self.replica[key].is_free() || dropped_lock.is_none());
            if dropped_lock.is_some() || self.heard_of_shadow[key] {
                self.heard_of_shadow[key] = dropped_lock.is_some();
                self.replica[key] = dropped_lock.unwrap_or_default();
            }
        }
        prop_assert!(self.unreplicated.is_empty());
        (0..KEYS).try_for_each(|key| self.compare_replica(key))
    }

    fn break_lock(&mut self, key: usize) -> Result<(), TestCaseError> {
        let (db, bytes) = name(key);
        if self.dropped_locks.forget(db, bytes).is_some() {
            self.unreplicated.insert(key);
        } else {
            self.replica[key] = Lock::new();
        }
        self.stored[key] = None;
        self.look_at(key)
    }

    fn flush(&mut self) -> Result<(), TestCaseError> {
        self.dropped_locks.flush(None);
        self.unreplicated.clear();
        self.heard_of_shadow = [false; KEYS];
        self.stored = [None, None];
        self.replica = [Lock::new(), Lock::new()];
        self.look_at_all()
    }

    fn swap(&mut self) -> Result<(), TestCaseError> {
        self.dropped_locks.swap(name(0).0, name(1).0);
        self.stored.swap(0, 1);
        self.replica.swap(0, 1);
        self.heard_of_shadow.swap(0, 1);
        self.unreplicated = self.unreplicated.iter().map(|key| 1 - key).collect();
        self.look_at_all()
    }
}

fn tokens(lock: &Lock) -> HashSet<FencingToken> {
    lock.holders().map(|holder| holder.token).collect()
}
