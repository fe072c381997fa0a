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

use lockward_core::encoding::{self, Heard};
use lockward_core::{
    AcquireRequest, Acquired, Caps, Change, Db, Effects, Event, FencingToken, Full, Grant, Holder, HoldsLeft,
    Instant, Lock, NotHeld, Now, Outcome, Owner, Propagation, Quarantine, Refusal, ReleaseRequest,
    RenewRequest, Slots, Span, Step, Ticket, TokenSource, WaitingRoom, Wake, WallTime, event_of,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use reference::{Answer, Left, Reference};
use std::collections::{BTreeSet, HashMap, HashSet};

const KEYS: usize = 2;
const OWNERS: usize = 4;

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
            self.locks[key].retain(|tenure| now < tenure.deadline);
            while let Some(first) = self.waits.iter().find(|wait| wait.key == key) {
                let owner = first.owner;
                let holds_it = self.of(key, owner).is_some();
                if !holds_it && (self.quarantined() || !self.fits(key, first.slots)) {
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
            if self.of(wait.key, wait.owner).is_some()
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
            let left = match left {
                Left::OneLess => has - 1,
                Left::None => 0,
                Left::Exactly(named) if named == has || named == has - 1 => named,
                Left::Exactly(_) => return Answer::HoldsDoNotFollow(has),
            };
            if left == 0 {
                self.locks[key].remove(at);
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
            holds: u32,
        ) -> Answer {
            self.look(key);
            let (now, deadline) = (self.now, self.now + lease);
            if let Some(at) = self.of(key, owner) {
                let tenure = &mut self.locks[key][at];
                if token.is_none_or(|token| token == tenure.token) {
                    tenure.deadline = deadline;
                    return Answer::Token(tenure.token);
                }
            }
            let Some(token) = token.filter(|_| self.quarantined()) else { return self.not_held(key, owner) };
            if token as i64 > self.wall + DAY {
                return Answer::TokenFarAhead;
            }
            if self.locks[key].iter().any(|tenure| tenure.token >= token) {
                return self.not_held(key, owner);
            }
            self.last_token = self.last_token.max(token);
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
                // What is due at this very instant has been looked at, but for the limits that were not asked for.
                let next = events.map(|at| at.max(self.now)).filter(|at| self.now < *at && *at <= to).min();
                let overdue = self.waits.iter().any(|wait| wait.limit.is_some_and(|limit| limit <= self.now));
                let at = if overdue { self.now } else { next.unwrap_or(to) };
                self.wall += at - self.now;
                self.now = at;
                let reached = |wait: &Wait| wait.limit.is_some_and(|limit| limit <= at);
                let (gone, stay) = self.waits.drain(..).partition(reached);
                self.waits = stay;
                let mut gone: Vec<Wait> = gone;
                gone.sort_by_key(|wait| wait.handle);
                gone.iter().for_each(|wait| self.tell(wait, Answer::NotAcquired));
                (0..KEYS).for_each(|key| self.look(key));
                if at == to && !overdue {
                    return;
                }
            }
        }
    }
}
