//! Random operations on core and on a simple reference, which must agree.
//!
//! The [`World`] uses core as the module does: it keeps the locks by key, makes decisions, carries out their effects and has one
//! timer. The [`Reference`] does the same with plain vectors and linear scans. After each operation both must have given the same
//! answers and have the same state, and the invariants of locks must hold.
//!
//! The world has a replica. It receives only what is replicated, and must always know the same tenures.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in what it calls as well"
)]

mod operations;
mod reference;
mod world;

use lockward_core::{Holder, Lock, Owner, Slots, WallTime};
use operations::{NamedToken, Op, Setting, ops, setting};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use reference::{Answer, Reference, Wait};
use std::collections::{BTreeSet, HashMap, HashSet};
use world::{World, as_holder, instant, span};

const KEYS: usize = 2;
const OWNERS: usize = 4;
const OPERATIONS: usize = 200;

/// 2,000 runs, or as many as PROPTEST_CASES says.
fn runs() -> u32 {
    std::env::var_os("PROPTEST_CASES").map_or(2_000, |_| ProptestConfig::default().cases)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: runs(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn core_does_what_the_reference_does(setting in setting(), ops in ops()) {
        let mut both = Both::new(&setting);
        for (number, op) in ops.iter().enumerate() {
            both.play(number, op).map_err(|error| match error {
                TestCaseError::Fail(reason) => TestCaseError::fail(format!("operation {number}, {op:?}: {reason}")),
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
    /// All grants so far: key, owner and token.
    grants: Vec<(usize, usize, u64)>,
    waited: HashMap<u32, (usize, usize)>,
    known_tokens: [HashSet<u64>; KEYS],
}

impl Both {
    fn new(setting: &Setting) -> Self {
        let began = 5_000_000;
        let (lock_limit, total_limit) = setting.limits;
        let reference = Reference {
            now: began,
            wall: setting.wall,
            locks: [Vec::new(), Vec::new()],
            ended: [0; KEYS],
            renewed: [0; KEYS],
            holds_named: [0; KEYS],
            waits: Vec::new(),
            last_token: 0,
            quarantine_began: began,
            quarantine_length: setting.quarantine * 1_000,
            lock_limit,
            total_limit,
            completions: Vec::new(),
        };
        Self {
            world: World::new(setting, began),
            reference,
            slots: setting.slots,
            grants: Vec::new(),
            waited: HashMap::new(),
            known_tokens: [HashSet::new(), HashSet::new()],
        }
    }

    fn play(&mut self, number: usize, op: &Op) -> Result<(), TestCaseError> {
        let mut restored = None;
        match *op {
            Op::Acquire { key, owner, lease, holds, wait } => {
                self.acquire(number, (key, owner), lease, holds, wait)?;
            }
            Op::Release { key, owner, left, ref token } => {
                let token = self.resolve(token, key, owner);
                let expected = self.reference.release(key, owner, left, token);
                prop_assert_eq!(self.world.release(key, owner, left, token)?, expected);
            }
            Op::Renew { key, owner, lease, ref token, holds } => {
                let token = self.resolve(token, key, owner);
                let expected = self.reference.renew(key, owner, lease * 1_000, token, holds);
                prop_assert_eq!(self.world.renew(key, owner, lease * 1_000, token, holds)?, expected);
                restored = token;
            }
            Op::Advance(micros) => {
                let to = self.reference.now + micros;
                self.reference.advance(to);
                self.world.advance(to)?;
            }
            Op::MoveWallClock(micros) => {
                self.reference.wall += micros;
                self.world.wall = WallTime::from_micros(self.world.wall.as_micros() + micros);
            }
            Op::Leave(which) => self.leave(which)?,
            Op::PassOn(which) => {
                if !self.grants.is_empty() {
                    let (key, owner, token) = self.grants[which.index(self.grants.len())];
                    self.reference.pass_on(key, owner, token);
                    self.world.pass_on(key, owner, token)?;
                }
            }
            Op::Promote => {
                self.reference.quarantine_began = self.reference.now;
                self.world.quarantine.restart(self.world.mono);
            }
            Op::SetQuarantine(ms) => {
                self.reference.quarantine_length = ms * 1_000;
                self.reference.expire_and_serve_all();
                self.world.quarantine.set_length(span(ms * 1_000));
                self.world.expire_and_serve_all()?;
            }
            Op::DropEarly(key) => self.world.drop_early(key),
            Op::Break(key) => {
                self.world.expire_and_serve_all()?;
                self.reference.locks[key].clear();
                self.reference.expire_and_serve(key);
                self.world.break_lock(key)?;
            }
            Op::Flush => {
                self.world.expire_and_serve_all()?;
                self.reference.locks.iter_mut().for_each(Vec::clear);
                self.reference.expire_and_serve_all();
                self.world.flush()?;
            }
            Op::Swap => {
                self.world.expire_and_serve_all()?;
                self.reference.locks.swap(0, 1);
                self.known_tokens.swap(0, 1);
                self.reference.expire_and_serve_all();
                self.world.swap()?;
            }
        }
        for (_, handle, answer) in &self.world.completions {
            if let Answer::Granted { token, .. } = answer {
                let (key, owner) = self.waited[handle];
                self.grants.push((key, owner, *token));
            }
        }
        self.compare()?;
        self.check(restored)
    }

    fn acquire(
        &mut self,
        number: usize,
        (key, owner): (usize, usize),
        lease: i64,
        holds: Option<u32>,
        wait: Option<Option<i64>>,
    ) -> Result<(), TestCaseError> {
        let handle = u32::try_from(number).unwrap();
        let limit = wait.flatten().map(|ms| self.reference.now + ms * 1_000);
        let (slots, since) = (self.slots[owner], self.reference.now);
        let asked = Wait { handle, key, owner, lease: lease * 1_000, holds, slots, limit, since };
        let expected = self.reference.acquire(asked.clone(), wait.is_some());
        let answer = self.world.acquire(&asked, wait.is_some())?;
        prop_assert_eq!(&answer, &expected);
        if let Answer::Granted { token, .. } = answer {
            self.grants.push((key, owner, token));
        }
        self.waited.insert(handle, (key, owner));
        Ok(())
    }

    fn leave(&mut self, which: Index) -> Result<(), TestCaseError> {
        if self.reference.waits.is_empty() {
            prop_assert!(self.world.queues.leave(u32::MAX).is_none());
            return Ok(());
        }
        let gone = self.reference.waits[which.index(self.reference.waits.len())].clone();
        self.reference.leave(gone.handle);
        self.reference.expire_and_serve(gone.key);
        self.world.leave(gone.handle, gone.key)
    }

    fn resolve(&self, named: &NamedToken, key: usize, owner: usize) -> Option<u64> {
        let (reference, grants) = (&self.reference, &self.grants);
        Some(match named {
            NamedToken::None => return None,
            NamedToken::Own => reference.held(key).into_iter().find(|tenure| tenure.owner == owner)?.token,
            NamedToken::Earlier(_) if grants.is_empty() => return None,
            NamedToken::Earlier(which) => grants[which.index(grants.len())].2,
            NamedToken::Above(more) => reference.last_token + more,
            NamedToken::DayAhead(more) => {
                u64::try_from(reference.wall + 24 * 3_600 * 1_000_000 + more).unwrap_or(1)
            }
        })
    }

    /// Both have the same state.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        let (world, reference) = (&mut self.world, &mut self.reference);
        let expected: Vec<_> =
            reference.completions.drain(..).map(|(at, to, answer)| (instant(at), to, answer)).collect();
        prop_assert_eq!(std::mem::take(&mut world.completions), expected, "the completions");
        for key in 0..KEYS {
            let holders: Vec<Holder> = reference.held(key).iter().map(as_holder).collect();
            prop_assert_eq!(world.held(key), holders, "the holders of lock {}", key);
            let queue: Vec<_> =
                reference.queue(key).into_iter().map(|(handle, since)| (handle, instant(since))).collect();
            prop_assert_eq!(world.waiting(key), queue.len());
            prop_assert_eq!(world.queue(key), queue, "the queue of lock {}", key);
        }
        prop_assert_eq!(world.queues.waiters(), reference.waits.len());
        let queues = world.queues.queues().count();
        let used = (0..KEYS).filter(|key| world.waiting(*key) > 0).count();
        prop_assert_eq!(queues, used, "a queue without waiters does not exist");
        let dropped_locks = (0..KEYS).filter(|key| world.dropped_lock(*key).is_some()).count();
        prop_assert_eq!(world.dropped_locks.len(), dropped_locks);
        Ok(())
    }

    /// The invariants of every lock.
    fn check(&mut self, restored: Option<u64>) -> Result<(), TestCaseError> {
        let world = &self.world;
        for key in 0..KEYS {
            let held = world.held(key);
            let exclusive = held.iter().any(|holder| holder.slots == Slots::EXCLUSIVE);
            prop_assert!(
                !exclusive || held.len() == 1,
                "a second holder beside an exclusive one of lock {}",
                key
            );
            let owners: HashSet<&Owner> = held.iter().map(|holder| &holder.owner).collect();
            prop_assert_eq!(owners.len(), held.len(), "an owner twice");
            prop_assert!(held.iter().all(|holder| holder.holds > 0));

            // A new token is larger than all earlier ones, unless its owner restored it.
            let largest = self.known_tokens[key].iter().max().copied().unwrap_or(0);
            let new = held
                .iter()
                .map(|holder| holder.token.get())
                .filter(|token| !self.known_tokens[key].contains(token));
            let new: BTreeSet<u64> = new.collect();
            for token in &new {
                prop_assert!(*token > largest || restored == Some(*token), "{} after {}", token, largest);
            }
            self.known_tokens[key].extend(new);

            let first = world.queue_id(key).and_then(|queue| world.queues.front(queue));
            let lock = if held.is_empty() { Some(Lock::new()) } else { Lock::held_by(held, WallTime::EPOCH) };
            prop_assert!(lock.is_some(), "more holders of lock {} than one of them named", key);
            let lock = lock.unwrap();
            let admitted = first.is_some_and(|first| lock.admits(first.wait_request.request.slots));
            prop_assert!(
                !admitted || world.quarantine.in_force(world.now()),
                "the first waiter for lock {} was not served",
                key
            );
        }
        Ok(())
    }
}
