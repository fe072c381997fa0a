//! What a client does next, and what it makes of an answer: the same in the simulation and on real servers.

use crate::history::{Back, Call, Kind, Nanos, Outcome, Token, Wait};
use crate::random::Random;
use std::mem;
use std::ops::Range;

/// How the clients of a run behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manners {
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
    pub fresh_names: bool,
}

/// A client's next move.
#[derive(Debug)]
pub enum Move {
    /// A call for its key and owner.
    Call(Kind),
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
    again: Option<Kind>,
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
    pub fn next(&mut self, now: Nanos, manners: &Manners, random: &mut Random) -> Move {
        if manners.careful && self.holds > 0 && now >= self.until {
            self.holds = 0;
            self.again = None;
        }
        if let Some(kind) = self.again.take() {
            return Move::Call(kind);
        }
        let rests = mem::take(&mut self.rests);
        let Some(token) = self.token.filter(|_| self.holds > 0) else {
            if self.unsure || manners.fresh_names {
                self.take_another_name();
            }
            self.key = random.one_of(&manners.keys).cloned().unwrap_or_default();
            return Move::Call(self.acquire(manners, random));
        };
        if rests {
            return Move::Rest(random.between(manners.rest.start, manners.rest.end));
        }
        match random.between(0, 100) {
            0..15 if self.holds < 3 => Move::Call(self.acquire(manners, random)),
            15..25 => {
                self.choose_lease(manners, random);
                Move::Call(self.renew(token, manners, random))
            }
            25..50 => Move::Write(token),
            50 => {
                self.rests = true;
                self.choose_lease_in(&manners.long_lease, random);
                Move::Call(self.renew(token, manners, random))
            }
            51..55 if self.lease < manners.lease.end => Move::Pause(self.lease + self.lease / 2, token),
            _ => {
                let back = match random.between(0, 5) {
                    0 => Back::All,
                    1..3 => Back::Leaving(self.holds - 1),
                    _ => Back::One,
                };
                Move::Call(Kind::Release { back, token: random.percent(50).then_some(token) })
            }
        }
    }

    fn choose_lease(&mut self, manners: &Manners, random: &mut Random) {
        let range = if random.percent(75) { &manners.lease } else { &manners.long_lease };
        self.choose_lease_in(range, random);
    }

    fn choose_lease_in(&mut self, range: &Range<Nanos>, random: &mut Random) {
        // Whole milliseconds, as the wire has them.
        self.lease = random.between(range.start / 1_000_000, range.end / 1_000_000) * 1_000_000;
    }

    fn acquire(&mut self, manners: &Manners, random: &mut Random) -> Kind {
        self.choose_lease(manners, random);
        let wait = match random.between(0, 10) {
            0..2 => Wait::No,
            2..9 => {
                let limit = random.between(manners.wait.start / 1_000_000, manners.wait.end / 1_000_000);
                Wait::Limit(limit * 1_000_000)
            }
            _ => Wait::Unlimited,
        };
        let holds = (manners.careful || random.percent(50)).then_some(self.holds + 1);
        Kind::Acquire { lease: self.lease, wait, holds }
    }

    fn renew(&self, token: Token, manners: &Manners, random: &mut Random) -> Kind {
        let named = manners.careful || random.percent(50);
        Kind::Renew {
            lease: self.lease,
            token: named.then_some(token),
            holds: manners.careful.then_some(self.holds),
        }
    }

    /// Its connection was lost, and it has a new one.
    pub fn reconnected(&mut self, manners: &Manners, random: &mut Random) {
        if let Some(token) = self.token.filter(|_| manners.careful && self.holds > 0) {
            self.choose_lease(manners, random);
            let renewal = self.renew(token, manners, random);
            self.again.get_or_insert(renewal);
        }
    }

    /// What it gives back when it is to ask for nothing more.
    #[must_use]
    pub fn last_call(&self, now: Nanos) -> Option<Kind> {
        let token = self.token.filter(|_| self.holds > 0 && now < self.until)?;
        Some(Kind::Release { back: Back::All, token: Some(token) })
    }

    /// Its last call came to an end.
    pub fn hear(&mut self, call: &Call, random: &mut Random) {
        match (&call.outcome, &call.kind) {
            (&Outcome::Granted { token, holds }, &Kind::Acquire { lease, .. }) => {
                let before = if self.token == Some(token) { self.until } else { 0 };
                self.until = before.max(call.start + lease);
                (self.token, self.holds) = (Some(token), holds);
            }
            (Outcome::Renewed { .. }, &Kind::Renew { lease, .. }) => self.until = call.start + lease,
            (Outcome::Left { holds }, _) => self.holds = *holds,
            (Outcome::Granted { .. } | Outcome::Renewed { .. }, _) => {}
            (Outcome::NotAcquired, _) => self.holds = 0,
            (Outcome::Error(word), kind) if word == "TRYAGAIN" => self.again = Some(kind.clone()),
            (Outcome::Error(word), _) => {
                // It has holds that it does not know of: those are left to their lease.
                self.unsure |= word == "HOLDS";
                self.holds = 0;
            }
            (Outcome::Unknown, kind) => {
                self.unsure = true;
                if let Kind::Renew { lease, .. } = *kind {
                    self.until = self.until.min(call.start + lease);
                }
                let safe_to_repeat = match *kind {
                    Kind::Acquire { holds, .. } => holds.is_some(),
                    Kind::Release { back: Back::Leaving(_), .. } | Kind::Renew { .. } => true,
                    Kind::Release { .. } => false,
                };
                if safe_to_repeat && random.percent(60) {
                    self.again = Some(kind.clone());
                } else {
                    self.holds = 0;
                }
            }
        }
    }

    fn take_another_name(&mut self) {
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
        let kind = Kind::Acquire { lease: 10, wait: Wait::Unlimited, holds: Some(1) };
        let sent_away = Call {
            client: 0,
            node: 0,
            key: "k".to_owned(),
            owner: "A".to_owned(),
            kind: kind.clone(),
            start: 5,
            joined: None,
            end: Some(6),
            outcome: Outcome::Error("TRYAGAIN".to_owned()),
        };
        client.hear(&sent_away, &mut Random::new(1));
        assert_eq!(client.again, Some(kind));
    }

    #[test]
    fn the_last_call_gives_back_what_is_held_while_the_lease_runs() {
        let mut client = Client::new(0);
        assert_eq!(client.last_call(0), None);
        let granted = Call {
            client: 0,
            node: 0,
            key: "k".to_owned(),
            owner: "A".to_owned(),
            kind: Kind::Acquire { lease: 10, wait: Wait::No, holds: None },
            start: 5,
            joined: None,
            end: Some(6),
            outcome: Granted { token: 7, holds: 1 },
        };
        client.hear(&granted, &mut Random::new(1));
        assert_eq!(client.last_call(14), Some(Kind::Release { back: Back::All, token: Some(7) }));
        assert_eq!(client.last_call(15), None);
    }
}
