//! What a client does next, and what it makes of an answer.

use super::MS;
use super::random::Random;
use crate::history::{Back, Call, Kind, Nanos, Outcome, Token, Wait};

const KEYS: [&str; 2] = ["orders", "stock"];

/// A client's next move.
#[derive(Debug)]
pub(super) enum Move {
    /// A call for this key.
    Call(Kind),
    /// A write to the store with this token.
    Write(Token),
    /// Nothing, past the end of its lease; then a write with its token, as if nothing had been.
    Pause(Nanos, Token),
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) number: u32,
    pub(super) key: &'static str,
    pub(super) owner: String,
    owners: u32,
    /// What it believes that it has.
    token: Option<Token>,
    holds: u32,
    lease: Nanos,
    /// A call for this owner was not answered: it takes another name as soon as it can.
    unsure: bool,
    /// What it asks once more.
    again: Option<Kind>,
}

impl Client {
    pub(super) fn new(number: u32) -> Self {
        let owner = format!("client-{number}:0");
        Self {
            number,
            key: KEYS[0],
            owner,
            owners: 0,
            token: None,
            holds: 0,
            lease: 0,
            unsure: false,
            again: None,
        }
    }

    pub(super) fn next(&mut self, random: &mut Random) -> Move {
        if let Some(kind) = self.again.take() {
            return Move::Call(kind);
        }
        let Some(token) = self.token.filter(|_| self.holds > 0) else {
            self.key = random.one_of(&KEYS).unwrap_or(&KEYS[0]);
            return Move::Call(self.acquire(random));
        };
        match random.between(0, 100) {
            0..15 if self.holds < 3 => Move::Call(self.acquire(random)),
            15..25 => {
                self.lease = random.between(20, 120) * MS;
                let token = random.percent(50).then_some(token);
                Move::Call(Kind::Renew { lease: self.lease, token, holds: None })
            }
            25..50 => Move::Write(token),
            50..55 => Move::Pause(self.lease + self.lease / 2, token),
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

    fn acquire(&mut self, random: &mut Random) -> Kind {
        self.lease = random.between(20, 120) * MS;
        let wait = match random.between(0, 10) {
            0..2 => Wait::No,
            2..9 => Wait::Limit(random.between(5, 400) * MS),
            _ => Wait::Unlimited,
        };
        let holds = random.percent(50).then_some(self.holds + 1);
        Kind::Acquire { lease: self.lease, wait, holds }
    }

    pub(super) fn hear(&mut self, call: &Call, random: &mut Random) {
        match call.outcome {
            Outcome::Granted { token, holds } => (self.token, self.holds) = (Some(token), holds),
            Outcome::Left { holds } => self.holds = holds,
            Outcome::Renewed { .. } => {}
            Outcome::NotAcquired => self.holds = 0,
            Outcome::Error(ref word) => {
                // It has holds that it does not know of: those are left to their lease.
                self.unsure |= word == "HOLDS";
                self.holds = 0;
            }
            Outcome::Unknown => {
                self.unsure = true;
                let safe_to_repeat = match call.kind {
                    Kind::Acquire { holds, .. } => holds.is_some(),
                    Kind::Release { back: Back::Leaving(_), .. } | Kind::Renew { .. } => true,
                    Kind::Release { .. } => false,
                };
                if safe_to_repeat && random.percent(60) {
                    self.again = Some(call.kind.clone());
                } else {
                    self.holds = 0;
                }
            }
        }
        if self.unsure && self.holds == 0 && self.again.is_none() {
            self.owners += 1;
            self.owner = format!("client-{}:{}", self.number, self.owners);
            self.unsure = false;
        }
    }
}
