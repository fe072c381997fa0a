//! A simulated server that follows the contract.
//!
//! It does not use the module's core, so that it does not share its errors.

use crate::history::{Call, HoldsReleased, Nanos, Operation, Outcome, Token, WriteOutcome};
use crate::random::Random;
use std::collections::{HashMap, VecDeque};

/// The number of a call, and its outcome.
pub(super) type Reply = (usize, Outcome);

#[derive(Debug, Default)]
struct Lock {
    holder: Option<Holder>,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Holder {
    owner: String,
    token: Token,
    holds: u32,
    deadline: Nanos,
}

#[derive(Debug)]
struct Waiter {
    call: usize,
    owner: String,
    lease: Nanos,
    holds: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Server {
    locks: HashMap<String, Lock>,
    token: Token,
    random: Random,
    /// The largest token that the fenced store has seen, by key.
    store: HashMap<String, Token>,
}

impl Server {
    pub(super) fn new(random: Random) -> Self {
        Self { locks: HashMap::new(), token: 1_000, random, store: HashMap::new() }
    }

    /// Handles a call. Returns its reply, and those of waiters that it ends.
    pub(super) fn handle_call(&mut self, now: Nanos, number: usize, call: &Call) -> Vec<Reply> {
        let mut replies = self.end_lease(now, &call.key);
        let lock = self.locks.entry(call.key.clone()).or_default();
        let holder = lock.holder.as_mut().filter(|holder| holder.owner == call.owner);
        match (&call.operation, holder) {
            (&Operation::Acquire { lease, holds, .. }, Some(holder)) => {
                let leads_to = holds.unwrap_or(holder.holds + 1);
                let outcome = if leads_to == holder.holds || leads_to == holder.holds + 1 {
                    holder.holds = leads_to;
                    holder.deadline = holder.deadline.max(now + lease);
                    Outcome::Granted { token: holder.token, holds: leads_to }
                } else {
                    Outcome::Error("HOLDS".to_owned())
                };
                replies.push((number, outcome));
            }
            (Operation::Acquire { holds: Some(2..), .. }, None) => {
                replies.push((number, Outcome::Error("HOLDS".to_owned())));
            }
            (&Operation::Acquire { lease, holds, .. }, None) => {
                let waiter = Waiter { call: number, owner: call.owner.clone(), lease, holds };
                let position =
                    lock.queue.iter().position(|other| holds.is_some() && other.owner == call.owner);
                if let Some(position) = position {
                    replies.push((lock.queue[position].call, Outcome::Error("SUPERSEDED".to_owned())));
                    lock.queue[position] = waiter;
                } else if call.waits() || lock.holder.is_none() {
                    lock.queue.push_back(waiter);
                } else {
                    replies.push((number, Outcome::NotAcquired));
                }
            }
            (Operation::Release { token, .. } | Operation::Renew { token, .. }, holder)
                if holder.as_ref().is_none_or(|holder| token.is_some_and(|token| token != holder.token)) =>
            {
                replies.push((number, Outcome::Error("NOTHELD".to_owned())));
            }
            (Operation::Release { released, .. }, Some(holder)) => {
                let left = match *released {
                    HoldsReleased::One => Some(holder.holds - 1),
                    HoldsReleased::All => Some(0),
                    HoldsReleased::Leaving(left) => {
                        (left == holder.holds || left + 1 == holder.holds).then_some(left)
                    }
                };
                let outcome =
                    left.map_or(Outcome::Error("HOLDS".to_owned()), |holds| Outcome::Left { holds });
                holder.holds = left.unwrap_or(holder.holds);
                if holder.holds == 0 {
                    lock.holder = None;
                }
                replies.push((number, outcome));
            }
            (Operation::Renew { lease, .. }, Some(holder)) => {
                holder.deadline = now + lease;
                replies.push((number, Outcome::Renewed { token: holder.token }));
            }
            (Operation::Release { .. } | Operation::Renew { .. }, None) => {}
        }
        replies.extend(self.hand_off(now, &call.key));
        replies
    }

    /// Ends the lease if it is over.
    pub(super) fn end_lease(&mut self, now: Nanos, key: &str) -> Vec<Reply> {
        if let Some(lock) = self.locks.get_mut(key) {
            lock.holder.take_if(|holder| holder.deadline <= now);
        }
        self.hand_off(now, key)
    }

    /// The end of the present lease.
    pub(super) fn deadline(&self, key: &str) -> Option<Nanos> {
        Some(self.locks.get(key)?.holder.as_ref()?.deadline)
    }

    /// Removes a waiter from the queue. `false`: it was not there.
    pub(super) fn remove_waiter(&mut self, key: &str, call: usize) -> bool {
        let Some(lock) = self.locks.get_mut(key) else { return false };
        let before = lock.queue.len();
        lock.queue.retain(|waiter| waiter.call != call);
        lock.queue.len() < before
    }

    /// Whether a call is in the queue.
    pub(super) fn is_waiting(&self, key: &str, call: usize) -> bool {
        self.locks.get(key).is_some_and(|lock| lock.queue.iter().any(|waiter| waiter.call == call))
    }

    /// Grants a free lock to the first waiter, and to other waits of its owner.
    fn hand_off(&mut self, now: Nanos, key: &str) -> Vec<Reply> {
        let mut replies = Vec::new();
        let Some(lock) = self.locks.get_mut(key) else { return replies };
        if lock.holder.is_some() {
            return replies;
        }
        let Some(first) = lock.queue.pop_front() else { return replies };
        // At least two apart, so that some numbers are no token.
        self.token += self.random.between(2, 1_000);
        let mut holder =
            Holder { owner: first.owner, token: self.token, holds: 1, deadline: now + first.lease };
        replies.push((first.call, Outcome::Granted { token: holder.token, holds: 1 }));
        lock.queue.retain(|waiter| {
            if waiter.owner != holder.owner {
                return true;
            }
            holder.holds = waiter.holds.unwrap_or(holder.holds + 1);
            holder.deadline = holder.deadline.max(now + waiter.lease);
            replies.push((waiter.call, Outcome::Granted { token: holder.token, holds: holder.holds }));
            false
        });
        lock.holder = Some(holder);
        replies
    }

    /// A write to the fenced store.
    pub(super) fn write(&mut self, key: &str, token: Token) -> WriteOutcome {
        let seen = self.store.entry(key.to_owned()).or_default();
        if token < *seen {
            return WriteOutcome::Refused;
        }
        *seen = token;
        WriteOutcome::Accepted
    }
}
