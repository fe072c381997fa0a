//! A simulated server that keeps all promises of Lockward.
//!
//! This server does not use the module's core, because it would then have the same faults as the module.

use crate::MS;
use lockward_checker::history::{Call, HoldsReleased, Mode, Nanos, Operation, Outcome, Token};
use lockward_tests::Random;
use std::collections::BTreeMap;

/// The number of a call, and its outcome.
pub(crate) type Reply = (usize, Outcome);

/// How long after its wait limit a place still holds back the places behind it.
const HOLDS_BACK: Nanos = 100 * MS;

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<Holder>,
    queue: Vec<Place>,
    /// The tokens in the plain and in the guarded data.
    data: [Vec<Token>; 2],
}

#[derive(Debug)]
struct Holder {
    owner: String,
    token: Token,
    holds: u32,
    deadline: Nanos,
    mode: Mode,
}

/// A place in the queue.
#[derive(Debug)]
struct Place {
    call: usize,
    owner: String,
    lease: Nanos,
    holds: Option<u32>,
    mode: Mode,
    keep: Option<Nanos>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    /// The first time ends the span in which the place holds back the places behind it. The second time ends the place.
    HoldsBack(Nanos, Nanos),
    /// The server keeps the place until this time, but the place does not hold back the places behind it.
    PassedOver(Nanos),
}

#[derive(Debug)]
pub(crate) struct Server {
    locks: BTreeMap<String, Lock>,
    token: Token,
    random: Random,
}

impl Lock {
    fn admits(&self, mode: Mode) -> bool {
        let modes = || self.holders.iter().map(|holder| holder.mode).chain([mode]);
        let weight: u64 = modes().map(|mode| u64::from(mode.weight)).sum();
        modes().all(|mode| weight <= mode.limit())
    }

    /// Removes the holders and kept places whose time is over.
    fn expire(&mut self, now: Nanos) {
        self.holders.retain(|holder| holder.deadline > now);
        for place in &mut self.queue {
            if let State::HoldsBack(until, end) = place.state
                && until <= now
            {
                place.state = State::PassedOver(end);
            }
        }
        self.queue.retain(|place| !matches!(place.state, State::PassedOver(end) if end <= now));
    }

    /// The outcome if the owner already holds the lock: one more hold, the same holds after a repeated HOLDS, or an
    /// error. `None` if the owner does not hold the lock.
    fn re_enter(&mut self, now: Nanos, request: &Place) -> Option<Outcome> {
        let holder = self.holders.iter_mut().find(|holder| holder.owner == request.owner)?;
        if !re_enters(request.mode, holder.mode) {
            return Some(Outcome::Error("LIMIT".to_owned()));
        }
        let leads_to = request.holds.unwrap_or(holder.holds + 1);
        if leads_to != holder.holds && leads_to != holder.holds + 1 {
            return Some(Outcome::Error("HOLDS".to_owned()));
        }
        holder.holds = leads_to;
        holder.deadline = holder.deadline.max(now + request.lease);
        Some(Outcome::Granted { token: holder.token, holds: leads_to })
    }

    /// Removes the places of an owner that name more than `more_than` holds. An owner that waits at such a place gets
    /// an error.
    fn remove_places(&mut self, owner: &str, more_than: u32, replies: &mut Vec<Reply>) {
        self.queue.retain(|place| {
            let is_meant = place.owner == owner && place.holds.is_some_and(|named| named > more_than);
            if is_meant && place.state == State::Waits {
                replies.push((place.call, Outcome::Error("SUPERSEDED".to_owned())));
            }
            !is_meant
        });
    }
}

impl Server {
    pub(crate) fn new(random: Random) -> Self {
        Self { locks: BTreeMap::new(), token: 1_000, random }
    }

    /// Handles a call. Returns the reply to the call, and the replies to the waits that the call ends.
    pub(crate) fn handle_call(&mut self, now: Nanos, number: usize, call: &Call) -> Vec<Reply> {
        let mut replies = self.expire_and_serve(now, &call.key);
        let lock = self.locks.entry(call.key.clone()).or_default();
        match call.operation {
            Operation::Acquire { lease, holds, keep, mode, .. } => {
                let (owner, state) = (call.owner.clone(), State::Waits);
                let request = Place { call: number, owner, lease, holds, mode, keep, state };
                if let Some(outcome) = lock.re_enter(now, &request) {
                    replies.push((number, outcome));
                } else if holds.is_some_and(|named| named != 1) {
                    replies.push((number, Outcome::Error("HOLDS".to_owned())));
                } else {
                    self.enqueue(call, request, &mut replies);
                }
            }
            Operation::Release { released, token } => {
                replies.push((number, release(lock, call, released, token)));
                if let (HoldsReleased::Leaving(left), None, Some((_, Outcome::Left { .. }))) =
                    (released, token, replies.last())
                {
                    lock.remove_places(&call.owner, left, &mut replies);
                }
            }
            Operation::Renew { lease, token, mode, .. } => {
                replies.push((number, renew(lock, call, now + lease, token, mode)));
            }
            Operation::Write { token, guarded } => {
                let fenced = guarded && lock.holders.iter().all(|holder| holder.token != token);
                if !fenced {
                    lock.data[usize::from(guarded)].push(token);
                }
                let outcome = if fenced { Outcome::Error("FENCED".to_owned()) } else { Outcome::Written };
                replies.push((number, outcome));
            }
        }
        replies.extend(self.expire_and_serve(now, &call.key));
        if self.is_waiting(&call.key, number) && !call.waits() {
            self.remove(&call.key, number);
            replies.push((number, Outcome::NotAcquired));
        }
        replies
    }

    /// Puts a request into the queue: at the kept place of its owner, or at the end. If a request without BLOCK is not
    /// served at once, [`Server::handle_call`] removes the request from the queue.
    fn enqueue(&mut self, call: &Call, request: Place, replies: &mut Vec<Reply>) {
        let Some(lock) = self.locks.get_mut(&call.key) else { return };
        let own = lock
            .queue
            .iter()
            .position(|other| request.holds.is_some() && other.owner == call.owner && other.holds.is_some());
        match own {
            Some(own) if call.waits() => {
                if lock.queue[own].state == State::Waits {
                    replies.push((lock.queue[own].call, Outcome::Error("SUPERSEDED".to_owned())));
                }
                lock.queue[own] = request;
            }
            Some(_) | None => lock.queue.push(request),
        }
    }

    /// Removes the holders and kept places whose time is over, and serves the queue.
    pub(crate) fn expire_and_serve(&mut self, now: Nanos, key: &str) -> Vec<Reply> {
        let mut replies = Vec::new();
        let Some(lock) = self.locks.get_mut(key) else { return replies };
        lock.expire(now);
        while let Some(at) = lock.queue.iter().position(|place| !matches!(place.state, State::PassedOver(_)))
        {
            let first = &lock.queue[at];
            if first.state != State::Waits || !lock.admits(first.mode) {
                break;
            }
            let first = lock.queue.remove(at);
            // Tokens differ by at least two, so that a corruption can use a number between two tokens.
            self.token += self.random.between(2, 1_000);
            let (token, deadline) = (self.token, now + first.lease);
            replies.push((first.call, Outcome::Granted { token, holds: 1 }));
            let (owner, mode) = (first.owner, first.mode);
            lock.holders.push(Holder { owner: owner.clone(), token, holds: 1, deadline, mode });
            let (own, others) =
                std::mem::take(&mut lock.queue).into_iter().partition(|place| place.owner == owner);
            lock.queue = others;
            let own: Vec<Place> = own;
            for place in own.into_iter().filter(|place| place.state == State::Waits) {
                let outcome = lock.re_enter(now, &place);
                replies.extend(outcome.map(|outcome| (place.call, outcome)));
            }
        }
        replies
    }

    /// The next time at which a lease ends, a kept place ends, or a kept place stops holding back the places behind it.
    pub(crate) fn due(&self, key: &str) -> Option<Nanos> {
        let lock = self.locks.get(key)?;
        let places = lock.queue.iter().filter_map(|place| match place.state {
            State::Waits => None,
            State::HoldsBack(until, _) | State::PassedOver(until) => Some(until),
        });
        lock.holders.iter().map(|holder| holder.deadline).chain(places).min()
    }

    /// Ends a wait whose limit is reached or whose connection was closed. Its place may be kept. Returns `false` if
    /// the wait was not in the queue.
    pub(crate) fn end_wait(&mut self, now: Nanos, key: &str, call: usize, reached: bool) -> bool {
        let Some(lock) = self.locks.get_mut(key) else { return false };
        let is_meant = |place: &Place| place.call == call && place.state == State::Waits;
        let Some(at) = lock.queue.iter().position(is_meant) else { return false };
        match lock.queue[at].keep {
            None => drop(lock.queue.remove(at)),
            Some(keep) if reached => {
                lock.queue[at].state = State::HoldsBack(now + keep.min(HOLDS_BACK), now + keep);
            }
            Some(keep) => lock.queue[at].state = State::PassedOver(now + keep),
        }
        true
    }

    fn remove(&mut self, key: &str, call: usize) {
        if let Some(lock) = self.locks.get_mut(key) {
            lock.queue.retain(|place| place.call != call);
        }
    }

    /// Whether a call is in the queue.
    pub(crate) fn is_waiting(&self, key: &str, call: usize) -> bool {
        let waits = |place: &Place| place.call == call && place.state == State::Waits;
        self.locks.get(key).is_some_and(|lock| lock.queue.iter().any(waits))
    }

    /// The two lists of data beside each lock: the key of the lock, whether the list is guarded, and the tokens in it.
    pub(crate) fn data(&self) -> impl Iterator<Item = (&str, bool, &[Token])> {
        self.locks.iter().flat_map(|(key, lock)| {
            [false, true].map(|guarded| (key.as_str(), guarded, lock.data[usize::from(guarded)].as_slice()))
        })
    }
}

fn release(lock: &mut Lock, call: &Call, released: HoldsReleased, token: Option<Token>) -> Outcome {
    let holder = lock.holders.iter_mut().find(|holder| holder.owner == call.owner);
    let Some(holder) = holder.filter(|holder| token.is_none_or(|token| token == holder.token)) else {
        return match released {
            HoldsReleased::Leaving(0) => Outcome::Left { holds: 0 },
            HoldsReleased::Leaving(_) | HoldsReleased::One | HoldsReleased::All => {
                Outcome::Error("NOTHELD".to_owned())
            }
        };
    };
    let left = match released {
        HoldsReleased::One => Some(holder.holds - 1),
        HoldsReleased::All => Some(0),
        HoldsReleased::Leaving(left) => (left == holder.holds || left + 1 == holder.holds).then_some(left),
    };
    let Some(left) = left else { return Outcome::Error("HOLDS".to_owned()) };
    holder.holds = left;
    lock.holders.retain(|holder| holder.holds > 0);
    Outcome::Left { holds: left }
}

fn renew(lock: &mut Lock, call: &Call, deadline: Nanos, token: Option<Token>, mode: Option<Mode>) -> Outcome {
    let holder = lock.holders.iter_mut().find(|holder| holder.owner == call.owner);
    let Some(holder) = holder.filter(|holder| token.is_none_or(|token| token == holder.token)) else {
        return Outcome::Error("NOTHELD".to_owned());
    };
    if let Some(mode) = mode {
        if !re_enters(mode, holder.mode) {
            return Outcome::Error("LIMIT".to_owned());
        }
        holder.mode.slots = mode.slots;
    }
    holder.deadline = deadline;
    Outcome::Renewed { token: holder.token }
}

/// Whether a request with the mode `requested` is a re-entry of a tenure with the mode `present`. A mode is a limit and
/// a weight. A request with weight 1 is sent without WEIGHT, so it can re-enter a tenure of any weight.
fn re_enters(requested: Mode, present: Mode) -> bool {
    requested.limit() >= present.limit() && (requested.weight == 1 || requested.weight == present.weight)
}
