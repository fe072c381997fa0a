//! What a client does next, and what it makes of an answer: the same in the simulation and on real servers.

use crate::history::{HoldsReleased, Call, Operation, Nanos, Outcome, Token, Wait};
use crate::random::Random;
use std::mem;
use std::ops::Range;

/// How the clients of a run behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The locks they ask for.
    pub keys: Vec<String>,
    /// Most leases: short ones, which a client may sleep through.
    pub lease: Range<Nanos>,
    /// The other leases: so long that a lock which is stuck until its lease ends is seen to be.
    pub long_lease: Range<Nanos>,
    /// So long some rest with a long lease that they have just renewed, so that a fault meets tenures that nobody is about
    /// to end, and whose lease is known from its start.
    pub rest: Range<Nanos>,
    /// Wait limits.
    pub wait: Range<Nanos>,
    /// Whether they keep to what is asked of clients where a failover may lose a grant: acquisitions that name HOLDS, no
    /// call for a tenure whose lease is over by the client's own clock, and renewals that name TOKEN and HOLDS, at once
    /// after a lost connection.
    pub careful: bool,
    /// Whether every tenure is under an owner's name of its own.
    pub new_owner_each_tenure: bool,
}

/// A client's next move.
#[derive(Debug)]
pub enum Action {
    /// A call for its key and owner.
    Call(Operation),
    /// A write to the store with this token.
    Write(Token),
    /// Nothing, past the end of its lease; then a write with its token, as if nothing had been.
    Pause(Nanos, Token),
    /// Nothing for a while, with a lock that it keeps.
    Rest(Nanos),
}

/// A client: what it wants, and what it believes that it has.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub number: u32,
    /// The lock that it is busy with.
    pub key: String,
    /// In whose name.
    pub owner: String,
    owners: u32,
    token: Option<Token>,
    holds: u32,
    /// The lease that it asked for last.
    lease: Nanos,
    /// Until then it holds the lock for certain, if it does.
    until: Nanos,
    /// A call for this owner was not answered: it takes another name as soon as it can.
    unsure: bool,
    /// It has renewed its lease, to rest on it.
    rests: bool,
    /// What it asks once more.
    again: Option<Operation>,
}

impl Client {
    /// A client that holds nothing.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self {
            number,
            key: String::new(),
            owner: format!("client-{number}:0"),
            owners: 0,
            token: None,
            holds: 0,
            lease: 0,
            until: 0,
            unsure: false,
            rests: false,
            again: None,
        }
    }

    /// What it does next.
    pub fn next(&mut self, now: Nanos, workload: &Workload, random: &mut Random) -> Action {
        if workload.careful && self.holds > 0 && now >= self.until {
            self.holds = 0;
            self.again = None;
        }
        if let Some(operation) = self.again.take() {
            return Action::Call(operation);
        }
        let rests = mem::take(&mut self.rests);
        let Some(token) = self.token.filter(|_| self.holds > 0) else {
            if self.unsure || workload.new_owner_each_tenure {
                self.change_owner();
            }
            self.key = random.one_of(&workload.keys).cloned().unwrap_or_default();
            return Action::Call(self.acquire(workload, random));
        };
        if rests {
            return Action::Rest(random.between(workload.rest.start, workload.rest.end));
        }
        match random.between(0, 100) {
            0..15 if self.holds < 3 => Action::Call(self.acquire(workload, random)),
            15..25 => {
                self.choose_lease(workload, random);
                Action::Call(self.renew(token, workload, random))
            }
            25..50 => Action::Write(token),
            50 => {
                self.rests = true;
                self.choose_lease_in(&workload.long_lease, random);
                Action::Call(self.renew(token, workload, random))
            }
            51..55 if self.lease < workload.lease.end => Action::Pause(self.lease + self.lease / 2, token),
            _ => {
                let released = match random.between(0, 5) {
                    0 => HoldsReleased::All,
                    1..3 => HoldsReleased::Leaving(self.holds - 1),
                    _ => HoldsReleased::One,
                };
                Action::Call(Operation::Release { released, token: random.percent(50).then_some(token) })
            }
        }
    }

    fn choose_lease(&mut self, workload: &Workload, random: &mut Random) {
        let range = if random.percent(75) { &workload.lease } else { &workload.long_lease };
        self.choose_lease_in(range, random);
    }

    fn choose_lease_in(&mut self, range: &Range<Nanos>, random: &mut Random) {
        // Whole milliseconds, as the wire has them.
        self.lease = random.between(range.start / 1_000_000, range.end / 1_000_000) * 1_000_000;
    }

    fn acquire(&mut self, workload: &Workload, random: &mut Random) -> Operation {
        self.choose_lease(workload, random);
        let wait = match random.between(0, 10) {
            0..2 => Wait::No,
            2..9 => {
                let limit = random.between(workload.wait.start / 1_000_000, workload.wait.end / 1_000_000);
                Wait::Limit(limit * 1_000_000)
            }
            _ => Wait::Unlimited,
        };
        let holds = (workload.careful || random.percent(50)).then_some(self.holds + 1);
        Operation::Acquire { lease: self.lease, wait, holds }
    }

    fn renew(&self, token: Token, workload: &Workload, random: &mut Random) -> Operation {
        let named = workload.careful || random.percent(50);
        Operation::Renew {
            lease: self.lease,
            token: named.then_some(token),
            holds: workload.careful.then_some(self.holds),
        }
    }

    /// Its connection was lost, and it has a new one.
    pub fn reconnected(&mut self, workload: &Workload, random: &mut Random) {
        if let Some(token) = self.token.filter(|_| workload.careful && self.holds > 0) {
            self.choose_lease(workload, random);
            let renewal = self.renew(token, workload, random);
            self.again.get_or_insert(renewal);
        }
    }

    /// What it gives released when it is to ask for nothing more.
    #[must_use]
    pub fn final_release(&self, now: Nanos) -> Option<Operation> {
        let token = self.token.filter(|_| self.holds > 0 && now < self.until)?;
        Some(Operation::Release { released: HoldsReleased::All, token: Some(token) })
    }

    /// Its last call came to an end.
    pub fn handle_outcome(&mut self, call: &Call, random: &mut Random) {
        match (&call.outcome, &call.operation) {
            (&Outcome::Granted { token, holds }, &Operation::Acquire { lease, .. }) => {
                let before = if self.token == Some(token) { self.until } else { 0 };
                self.until = before.max(call.start + lease);
                (self.token, self.holds) = (Some(token), holds);
            }
            (Outcome::Renewed { .. }, &Operation::Renew { lease, .. }) => self.until = call.start + lease,
            (Outcome::Left { holds }, _) => self.holds = *holds,
            (Outcome::Granted { .. } | Outcome::Renewed { .. }, _) => {}
            (Outcome::NotAcquired, _) => self.holds = 0,
            (Outcome::Error(word), operation) if word == "TRYAGAIN" => self.again = Some(operation.clone()),
            (Outcome::Error(word), _) => {
                // It has holds that it does not know of: those are left to their lease.
                self.unsure |= word == "HOLDS";
                self.holds = 0;
            }
            (Outcome::Unknown, operation) => {
                self.unsure = true;
                if let Operation::Renew { lease, .. } = *operation {
                    self.until = self.until.min(call.start + lease);
                }
                let safe_to_repeat = match *operation {
                    Operation::Acquire { holds, .. } => holds.is_some(),
                    Operation::Release { released: HoldsReleased::Leaving(_), .. } | Operation::Renew { .. } => true,
                    Operation::Release { .. } => false,
                };
                if safe_to_repeat && random.percent(60) {
                    self.again = Some(operation.clone());
                } else {
                    self.holds = 0;
                }
            }
        }
    }

    fn change_owner(&mut self) {
        self.owners += 1;
        self.owner = format!("client-{}:{}", self.number, self.owners);
        self.unsure = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Outcome::Granted;

    #[test]
    fn who_is_told_to_try_again_does() {
        let mut client = Client::new(0);
        let operation = Operation::Acquire { lease: 10, wait: Wait::Unlimited, holds: Some(1) };
        let sent_away = Call {
            client: 0,
            node: 0,
            key: "k".to_owned(),
            owner: "A".to_owned(),
            operation: operation.clone(),
            start: 5,
            enqueued: None,
            end: Some(6),
            outcome: Outcome::Error("TRYAGAIN".to_owned()),
        };
        client.handle_outcome(&sent_away, &mut Random::new(1));
        assert_eq!(client.again, Some(operation));
    }

    #[test]
    fn the_last_call_gives_back_what_is_held_while_the_lease_runs() {
        let mut client = Client::new(0);
        assert_eq!(client.final_release(0), None);
        let granted = Call {
            client: 0,
            node: 0,
            key: "k".to_owned(),
            owner: "A".to_owned(),
            operation: Operation::Acquire { lease: 10, wait: Wait::No, holds: None },
            start: 5,
            enqueued: None,
            end: Some(6),
            outcome: Granted { token: 7, holds: 1 },
        };
        client.handle_outcome(&granted, &mut Random::new(1));
        assert_eq!(client.final_release(14), Some(Operation::Release { released: HoldsReleased::All, token: Some(7) }));
        assert_eq!(client.final_release(15), None);
    }
}
