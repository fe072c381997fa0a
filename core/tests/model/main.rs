//! Random operations on core and on a simple reference. Core and the reference must agree.
//!
//! The [`World`] uses core as the module does: it keeps the locks by key, makes decisions, carries out their effects
//! and has one timer. The [`Reference`] answers the same operations with plain vectors and linear scans. After each
//! operation, the world and the reference must have given the same answers and have the same state, and the invariants
//! of locks must hold.
//!
//! The world has a replica. The replica receives only the replicated changes, and must always know the same tenures as
//! the primary.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in what it calls as well"
)]

mod operations;
mod reference;
mod world;

use lockward_core::{Holder, Lock, Owner, Present, WallTime};
use operations::{Asked, NamedToken, Op, Setting, ops, setting};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use reference::{Answer, Mode, NamedMode, Reference, Wait, fit_together};
use std::collections::{BTreeSet, HashMap, HashSet};
use world::{World, as_holder, instant, owner, span};

const KEYS: usize = 3;
/// More owners than a lock keeps in a list.
const OWNERS: usize = 72;
const OPERATIONS: usize = 200;

/// How many limits there are to choose from.
const LIMITS: usize = 8;
const USUAL_LIMITS: [u32; LIMITS] = [1, 0, 2, 3, 5, 8, 0, 1];
const LARGE_LIMITS: [u32; LIMITS] = [0, 0, 100, 150, 0, 200, 0, 500];

/// The number of runs: PROPTEST_CASES, by default 2,000.
fn runs() -> u32 {
    std::env::var_os("PROPTEST_CASES").map_or(2_000, |_| ProptestConfig::default().cases)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: runs(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn core_does_what_the_reference_does(setting in setting(), ops in ops()) {
        let mut both = Both::new(&setting);
        for (number, op) in ops.iter().enumerate() {
            both.play(op).map_err(|error| match error {
                TestCaseError::Fail(reason) => TestCaseError::fail(format!("operation {number}, {op:?}: {reason}")),
                TestCaseError::Reject(reason) => TestCaseError::Reject(reason),
            })?;
        }
    }
}

/// A grant of a lock to an owner, and the wait that the grant ended.
#[derive(Clone, Copy, Debug)]
struct Granted {
    key: usize,
    owner: usize,
    token: u64,
    handle: u32,
    /// Whether the lock was granted at once to an owner that had a place in the queue.
    had_place: bool,
}

/// Core and the reference side by side.
struct Both {
    world: World,
    reference: Reference,
    setting: Setting,
    /// All grants so far.
    grants: Vec<Granted>,
    waited: HashMap<u32, (usize, usize)>,
    last_handle: u32,
    known_tokens: [HashSet<u64>; KEYS],
}

impl Both {
    fn new(setting: &Setting) -> Self {
        let began = 5_000_000;
        let (lock_limit, total_limit) = setting.max_waiters;
        let reference = Reference {
            now: began,
            wall: setting.wall,
            quarantine_began: began,
            quarantine_length: setting.quarantine * 1_000,
            lock_limit,
            total_limit,
            ..Reference::default()
        };
        let mut both = Self {
            world: World::new(setting, began),
            reference,
            setting: setting.clone(),
            grants: Vec::new(),
            waited: HashMap::new(),
            last_handle: 0,
            known_tokens: Default::default(),
        };
        // Time passes first, because a tenure that begins at the instant when the quarantine begins would count as
        // older than the quarantine.
        both.advance(1).unwrap();
        both
    }

    fn owner(&self, number: usize) -> usize {
        number % self.setting.usual.len()
    }

    fn mode(&self, owner: usize, asked: Asked) -> NamedMode {
        match asked {
            Asked::Usual { names_weight } => {
                let NamedMode { slots, weight } = self.mode(owner, self.setting.usual[owner]);
                let weight = weight.unwrap_or(1);
                NamedMode { slots, weight: Some(weight).filter(|_| names_weight && slots > 0) }
            }
            Asked::Other { limit, weight } => {
                let slots = if self.setting.is_crowded { LARGE_LIMITS } else { USUAL_LIMITS }[limit];
                // No request names a weight without slots.
                NamedMode { slots, weight: weight.filter(|_| slots > 0).map(|weight| weight.min(slots)) }
            }
        }
    }

    /// A lease in microseconds.
    fn lease(&self, ms: i64) -> i64 {
        if self.setting.is_crowded { ms * 20_000 } else { ms * 1_000 }
    }

    fn play(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let before: [Vec<u32>; KEYS] = std::array::from_fn(|key| self.handles(key));
        let (earlier_grants, mut restored) = (self.grants.len(), None);
        match *op {
            Op::Acquire { at: (key, owner), mode, lease, holds, wait, keep } => {
                let owner = self.owner(owner);
                let (mode, lease) = (self.mode(owner, mode), self.lease(lease));
                self.acquire((key, owner), mode, lease, holds, wait, keep)?;
            }
            Op::ComeBack { which, mode, lease, limit, keep } => {
                let places: Vec<_> =
                    self.reference.places().iter().map(|place| (place.key, place.owner)).collect();
                if !places.is_empty() {
                    let (key, owner) = places[which.index(places.len())];
                    let (mode, lease) = (self.mode(owner, mode), self.lease(lease));
                    self.acquire((key, owner), mode, lease, Some(1), Some(limit), keep)?;
                }
            }
            Op::Crowd { at: (key, first), count, mode, lease } => {
                for number in 0..count {
                    let owner = self.owner(first + number);
                    let (mode, lease) = (self.mode(owner, mode), self.lease(lease + number as i64));
                    self.acquire((key, owner), mode, lease, None, None, None)?;
                }
            }
            Op::Release { at: (key, owner), left, ref token } => {
                let owner = self.owner(owner);
                let token = self.resolve(token, key, owner);
                let expected = self.reference.release(key, owner, left, token);
                prop_assert_eq!(self.world.release(key, owner, left, token)?, expected);
            }
            Op::Renew { at: (key, owner), lease, ref token, holds, mode } => {
                let owner = self.owner(owner);
                let (token, mode) =
                    (self.resolve(token, key, owner), mode.map(|mode| self.mode(owner, mode)));
                let lease = self.lease(lease);
                let expected = self.reference.renew((key, owner), lease, token, holds, mode);
                prop_assert_eq!(self.world.renew((key, owner), lease, token, holds, mode)?, expected);
                restored = token;
            }
            Op::Leave(which) => self.leave(which, false)?,
            Op::Unblock(which) => self.leave(which, true)?,
            Op::PassOn(which) => self.pass_on(which)?,
            Op::Advance(micros) => self.advance(micros)?,
            Op::MoveWallClock(micros) => {
                self.reference.wall += micros;
                self.world.wall = WallTime::from_micros(self.world.wall.as_micros() + micros);
            }
            Op::Promote { was_replica } => self.promote(was_replica)?,
            Op::SetQuarantine(ms) => self.set_quarantine(ms)?,
            Op::DropEarly(key) => self.world.drop_early(key),
            Op::Break(key) => self.break_lock(key)?,
            Op::Flush => self.flush()?,
            Op::Swap => self.swap()?,
        }
        self.world.fire()?;
        self.reference.expire_and_serve_all();
        self.reference.forget_after_quarantine();
        for (_, key, handle, answer) in &self.world.completions {
            if let Answer::Granted { token, .. } = *answer {
                let (_, owner) = self.waited[handle];
                self.grants.push(Granted { key: *key, owner, token, handle: *handle, had_place: false });
            }
        }
        self.compare()?;
        self.check_order(&before, earlier_grants, restored)?;
        self.check(restored)
    }

    fn pass_on(&mut self, which: Index) -> Result<(), TestCaseError> {
        if self.grants.is_empty() {
            return Ok(());
        }
        let Granted { key, owner, token, handle, .. } = self.grants[which.index(self.grants.len())];
        self.reference.pass_on(key, owner, token, handle);
        self.world.pass_on(key, owner, token, handle)
    }

    fn promote(&mut self, was_replica: bool) -> Result<(), TestCaseError> {
        self.world.expire_and_serve_all()?;
        if was_replica {
            self.reference.end_waits();
            self.world.end_waits();
        }
        self.reference.quarantine_began = self.reference.now;
        self.reference.observed = Default::default();
        self.reference.recheck_all();
        self.world.promote();
        self.world.recheck_all();
        // As in `new`, no tenure may begin at the instant when the quarantine begins.
        self.advance(1)
    }

    fn set_quarantine(&mut self, ms: i64) -> Result<(), TestCaseError> {
        self.world.expire_and_serve_all()?;
        self.reference.quarantine_length = ms * 1_000;
        self.reference.recheck_all();
        self.world.quarantine.set_length(span(ms * 1_000));
        self.world.recheck_all();
        Ok(())
    }

    fn break_lock(&mut self, key: usize) -> Result<(), TestCaseError> {
        self.world.expire_and_serve_all()?;
        self.reference.delete(key);
        self.reference.recheck(key);
        self.world.break_lock(key);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TestCaseError> {
        self.world.expire_and_serve_all()?;
        self.reference.flush();
        self.reference.recheck_all();
        self.world.flush();
        Ok(())
    }

    fn swap(&mut self) -> Result<(), TestCaseError> {
        self.world.expire_and_serve_all()?;
        self.reference.locks.swap(0, 1);
        self.reference.observed.swap(0, 1);
        self.reference.recheck_all();
        self.known_tokens.swap(0, 1);
        self.world.swap();
        Ok(())
    }

    fn handles(&self, key: usize) -> Vec<u32> {
        self.world.queue(key).into_iter().map(|(handle, _)| handle).collect()
    }

    fn advance(&mut self, micros: i64) -> Result<(), TestCaseError> {
        let to = self.reference.now + micros;
        self.reference.advance(to);
        self.world.advance(to)
    }

    fn acquire(
        &mut self,
        (key, owner): (usize, usize),
        mode: NamedMode,
        lease: i64,
        holds: Option<u32>,
        wait: Option<Option<i64>>,
        keep: Option<i64>,
    ) -> Result<(), TestCaseError> {
        self.last_handle += 1;
        let handle = self.last_handle;
        let limit = wait.flatten().map(|ms| self.reference.now + ms * 1_000);
        let keep = holds.and(keep).map(|ms| ms * 1_000);
        let had_place =
            holds.is_some() && self.reference.queue.iter().any(|wait| wait.key == key && wait.owner == owner);
        let since = self.reference.now;
        let asked =
            Wait { handle, key, owner, lease, holds, mode, limit, keep, since, position: 0, absent: None };
        let expected = self.reference.acquire(asked.clone(), wait.is_some());
        let answer = self.world.acquire(&asked, wait.is_some())?;
        prop_assert_eq!(&answer, &expected);
        if let Answer::Granted { token, .. } = answer {
            self.grants.push(Granted { key, owner, token, handle, had_place });
        }
        self.waited.insert(handle, (key, owner));
        Ok(())
    }

    fn leave(&mut self, which: Index, is_unblocked: bool) -> Result<(), TestCaseError> {
        let handles: Vec<u32> = self.reference.waits().iter().map(|wait| wait.handle).collect();
        if handles.is_empty() {
            return Ok(());
        }
        let handle = handles[which.index(handles.len())];
        self.reference.leave(handle, is_unblocked);
        self.world.leave(handle, is_unblocked)
    }

    fn resolve(&self, named: &NamedToken, key: usize, owner: usize) -> Option<u64> {
        let (reference, grants) = (&self.reference, &self.grants);
        Some(match named {
            NamedToken::None => return None,
            NamedToken::Own => reference.held(key).into_iter().find(|tenure| tenure.owner == owner)?.token,
            NamedToken::Earlier(_) if grants.is_empty() => return None,
            NamedToken::Earlier(which) => grants[which.index(grants.len())].token,
            NamedToken::Above(more) => reference.last_token + more,
            NamedToken::DayAhead(more) => {
                u64::try_from(reference.wall + 24 * 3_600 * 1_000_000 + more).unwrap_or(1)
            }
        })
    }

    /// Checks that the world and the reference have the same state.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        let (world, reference) = (&mut self.world, &mut self.reference);
        let expected = reference.completions.drain(..);
        let mut expected: Vec<_> =
            expected.map(|(at, key, handle, answer)| (instant(at), key, handle, answer)).collect();
        let mut completions = std::mem::take(&mut world.completions);
        // The order in which waiters of different locks are served at one instant does not matter.
        expected.sort_by_key(|(at, key, ..)| (*at, *key));
        completions.sort_by_key(|(at, key, ..)| (*at, *key));
        prop_assert_eq!(completions, expected, "the completions");
        for key in 0..KEYS {
            let holders: Vec<Holder> = reference.held(key).iter().map(as_holder).collect();
            prop_assert_eq!(world.held(key), holders, "the holders of lock {}", key);
            let waits = reference.waits().into_iter().filter(|wait| wait.key == key);
            let queue: Vec<_> = waits.map(|wait| (wait.handle, instant(wait.since))).collect();
            prop_assert_eq!(world.waiting(key), queue.len());
            prop_assert_eq!(world.queue(key), queue, "the queue of lock {}", key);
            let places = reference.places_of(key).into_iter();
            let places: Vec<(Owner, bool)> =
                places.map(|(number, holds_back)| (owner(number), holds_back)).collect();
            prop_assert_eq!(world.places(key), places, "the kept places of lock {}", key);
        }
        self.compare_indexes()
    }

    /// Checks the number of entries in every index of the queues and the locks.
    fn compare_indexes(&self) -> Result<(), TestCaseError> {
        let (world, reference) = (&self.world, &self.reference);
        let (waits, places) = (reference.waits(), reference.places().len());
        let limits = waits.iter().filter(|wait| wait.limit.is_some()).count() + places;
        let queues = (0..KEYS).filter(|key| reference.queue.iter().any(|wait| wait.key == *key)).count();
        prop_assert_eq!(world.queues.waiters(), waits.len());
        prop_assert_eq!(world.queues.kept_places(), places);
        prop_assert_eq!(world.queues.queues().count(), queues, "a queue without places does not exist");
        prop_assert_eq!(
            world.queues.index_lengths(),
            [
                ("waiters", waits.len()),
                ("by position", waits.len() + places),
                ("by owner", waits.len() + places),
                ("limits", limits),
                ("kept of all queues", places),
                ("kept of each queue", places),
                ("names", queues),
                ("due without a queue", 0),
            ]
        );
        let dropped_locks = (0..KEYS).filter(|key| world.dropped_lock(*key).is_some()).count();
        prop_assert_eq!(world.dropped_locks.len(), dropped_locks);
        for lock in (0..KEYS).filter_map(|key| world.lock(key)) {
            let holders: Vec<Holder<&Owner>> = lock.holders().collect();
            let lengths = lock.index_lengths();
            prop_assert!(holders.len() <= 32 || lengths.is_some(), "{:?}", lock);
            prop_assert!(lengths.iter().flatten().all(|length| *length == holders.len()), "{:?}", lock);
            prop_assert_eq!(lock.load(), holders.iter().map(|holder| holder.mode).collect());
            let deadlines = || holders.iter().map(|holder| holder.deadline);
            prop_assert_eq!(lock.first_deadline(), deadlines().min());
            prop_assert_eq!(lock.last_deadline(), deadlines().max());
            let present = || holders.iter().filter(|holder| !holder.is_over(world.mono));
            let expected = Present {
                first: present().take(2).map(|holder| holder.cloned()).collect(),
                count: present().count(),
                load: present().map(|holder| holder.mode).collect(),
            };
            prop_assert_eq!(lock.present(world.mono, 2), expected);
            for holder in &holders {
                prop_assert_eq!(lock.holder(holder.owner), Some(*holder));
                prop_assert_eq!(lock.of_token(holder.token), Some(*holder));
            }
        }
        Ok(())
    }

    /// Checks that only re-entries, and owners that come back for their places, overtake a waiter.
    fn check_order(
        &self,
        before: &[Vec<u32>; KEYS],
        earlier_grants: usize,
        restored: Option<u64>,
    ) -> Result<(), TestCaseError> {
        let mut known: HashSet<u64> = self.known_tokens.iter().flatten().copied().chain(restored).collect();
        for granted in self.grants.iter().skip(earlier_grants) {
            if known.insert(granted.token) && !granted.had_place {
                let after = self.handles(granted.key);
                let before = &before[granted.key];
                let ahead = before.iter().take_while(|handle| **handle != granted.handle);
                let passed: Vec<&u32> = ahead.filter(|handle| after.contains(handle)).collect();
                prop_assert!(passed.is_empty(), "{:?} has passed {:?}", granted, passed);
            }
        }
        Ok(())
    }

    /// Checks the invariants of every lock.
    fn check(&mut self, restored: Option<u64>) -> Result<(), TestCaseError> {
        let world = &self.world;
        for key in 0..KEYS {
            let held = world.held(key);
            let plain = |mode: &lockward_core::Mode| Mode {
                slots: mode.slots.number(),
                weight: mode.weight.number(),
            };
            let modes: Vec<Mode> = held.iter().map(|holder| plain(&holder.mode)).collect();
            prop_assert!(fit_together(&modes), "the holders of lock {} do not fit: {:?}", key, held);
            let owners: HashSet<&Owner> = held.iter().map(|holder| &holder.owner).collect();
            prop_assert_eq!(owners.len(), held.len(), "an owner twice");
            prop_assert!(held.iter().all(|holder| holder.holds > 0));

            // A new token, except the token of a restored tenure, is larger than all earlier tokens of the lock.
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

            let lock = if held.is_empty() { Some(Lock::new()) } else { Lock::held_by(held, WallTime::EPOCH) };
            prop_assert!(lock.is_some(), "no lock can have the holders of lock {}", key);
            let first = world.queue_id(key).and_then(|queue| world.queues.front(queue));
            let asked = first.map(|first| plain(&first.wait_request.request.mode()));
            let admitted = asked.is_some_and(|asked| fit_together(&[modes, vec![asked]].concat()));
            prop_assert!(
                !admitted || world.in_quarantine(),
                "the first waiter for lock {} was not served",
                key
            );
        }
        Ok(())
    }
}
