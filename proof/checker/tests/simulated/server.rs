//! A simulated server that keeps all promises of Lockward: the reference with which core is tested.
//!
//! The reference uses no code of core, so it does not have the same faults as the module.

use crate::reference::{Answer, Left, NamedMode, Reference, Wait};
use crate::{KEYS, MS};
use lockward_checker::history::{Call, HoldsReleased, Mode, Nanos, Operation, Outcome, Token};

/// The number of a call, and its outcome.
pub(crate) type Reply = (usize, Outcome);

/// The names of the locks. In the reference, a lock is a number.
pub(crate) const LOCKS: [&str; KEYS] = ["orders", "stock"];

/// Tokens differ by at least this number, so that a corruption can use a number between two tokens.
const TOKEN_STEP: Token = 2;

#[derive(Debug)]
pub(crate) struct Server {
    reference: Reference,
    /// The names of the owners. In the reference, an owner is a number.
    owners: Vec<String>,
    /// For each lock, the tokens in the plain and in the guarded data.
    data: [[Vec<Token>; 2]; KEYS],
}

impl Server {
    pub(crate) fn new() -> Self {
        let unlimited = Reference { lock_limit: usize::MAX, total_limit: usize::MAX, ..Reference::default() };
        Self { reference: unlimited, owners: Vec::new(), data: Default::default() }
    }

    /// Handles a call. If the call waits, `limit` is its wait limit. Returns the reply to the call, and the replies to
    /// the waits that the call ends.
    pub(crate) fn handle_call(
        &mut self,
        now: Nanos,
        number: usize,
        call: &Call,
        limit: Option<Nanos>,
    ) -> Vec<Reply> {
        let mut replies = self.advance(now);
        let (key, owner) = (key(call), self.owner(&call.owner));
        let (now, waits) = (self.reference.now, call.waits());
        let in_reference = |token: Option<Token>| token.map(|token| token / TOKEN_STEP);
        let answer = match call.operation {
            Operation::Acquire { lease, holds, keep, mode, .. } => {
                let request = Wait {
                    handle: number.try_into().expect("few calls"),
                    key,
                    owner,
                    lease: micros(lease),
                    holds,
                    mode: named(mode),
                    limit: limit.map(|limit| now + micros(limit)),
                    keep: keep.map(micros),
                    since: now,
                    position: 0,
                    absent: None,
                };
                self.reference.acquire(request, waits)
            }
            Operation::Release { released, token } => {
                let left = match released {
                    HoldsReleased::One => Left::OneLess,
                    HoldsReleased::Leaving(left) => Left::Exactly(left),
                    HoldsReleased::All => Left::None,
                };
                self.reference.release(key, owner, left, in_reference(token))
            }
            Operation::Renew { lease, token, holds, mode } => {
                let (token, mode) = (in_reference(token), mode.map(named));
                self.reference.renew((key, owner), micros(lease), token, holds, mode)
            }
            Operation::Write { token, guarded } => {
                let mut held = self.reference.held(key).into_iter();
                let outcome = if guarded && held.all(|tenure| tenure.token * TOKEN_STEP != token) {
                    Outcome::Error("FENCED".to_owned())
                } else {
                    self.data[key][usize::from(guarded)].push(token);
                    Outcome::Written
                };
                replies.push((number, outcome));
                return replies;
            }
        };
        replies.extend(self.completed());
        if answer != Answer::Waits {
            replies.push((number, outcome(answer)));
        }
        replies
    }

    /// Lets time pass. Returns the replies to the waits that have ended.
    pub(crate) fn advance(&mut self, now: Nanos) -> Vec<Reply> {
        self.reference.advance(micros(now));
        self.completed()
    }

    /// Notices that the client of a call has disconnected. Its place may be kept.
    pub(crate) fn disconnected(&mut self, now: Nanos, call: usize) -> Vec<Reply> {
        let mut replies = self.advance(now);
        self.reference.leave(call.try_into().expect("few calls"), false);
        self.reference.expire_and_serve_all();
        replies.extend(self.completed());
        replies
    }

    fn completed(&mut self) -> Vec<Reply> {
        let completions = self.reference.completions.drain(..);
        completions
            .map(|(.., handle, answer)| (handle.try_into().expect("a number"), outcome(answer)))
            .collect()
    }

    /// The next time at which a lease or a wait ends, or a kept place stops holding back the places behind it.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let leases = self.reference.locks.iter().flatten().map(|tenure| tenure.deadline);
        let waits = self.reference.queue.iter().filter_map(|wait| match wait.absent {
            None => wait.limit,
            Some(absent) => Some(absent.holds_back_until),
        });
        let next = leases.chain(waits).filter(|at| *at > self.reference.now).min()?;
        Some(next.unsigned_abs() * (MS / 1_000))
    }

    /// Whether a call is in the queue.
    pub(crate) fn is_waiting(&self, call: usize) -> bool {
        self.reference.waits().iter().any(|wait| usize::try_from(wait.handle) == Ok(call))
    }

    /// The two lists of data beside each lock: the key of the lock, whether the list is guarded, and the tokens in it.
    pub(crate) fn data(&self) -> impl Iterator<Item = (&'static str, bool, &[Token])> {
        LOCKS.into_iter().zip(&self.data).flat_map(|(key, data)| {
            [false, true].map(|guarded| (key, guarded, data[usize::from(guarded)].as_slice()))
        })
    }

    fn owner(&mut self, name: &str) -> usize {
        self.owners.iter().position(|owner| owner == name).unwrap_or_else(|| {
            self.owners.push(name.to_owned());
            self.owners.len() - 1
        })
    }
}

fn key(call: &Call) -> usize {
    LOCKS.iter().position(|lock| *lock == call.key).expect("one of the locks")
}

/// The reference counts in microseconds.
fn micros(time: Nanos) -> i64 {
    (time / (MS / 1_000)).cast_signed()
}

/// A request with weight 1 is sent without WEIGHT.
fn named(mode: Mode) -> NamedMode {
    NamedMode { slots: mode.slots, weight: Some(mode.weight).filter(|weight| *weight != 1) }
}

fn outcome(answer: Answer) -> Outcome {
    let word = match answer {
        Answer::Granted { token, holds, .. } => return Outcome::Granted { token: token * TOKEN_STEP, holds },
        Answer::Busy | Answer::NotAcquired => return Outcome::NotAcquired,
        Answer::Left(holds) => return Outcome::Left { holds },
        Answer::Token(token) => return Outcome::Renewed { token: token * TOKEN_STEP },
        Answer::FreeNotHeld | Answer::AnotherHas(_) | Answer::ItHas(_) => "NOTHELD",
        Answer::HoldsDoNotFollow(_) => "HOLDS",
        Answer::ModeDiffers(_) => "LIMIT",
        Answer::Superseded => "SUPERSEDED",
        Answer::Waits
        | Answer::Full
        | Answer::TooManyHolds
        | Answer::TokenFarAhead
        | Answer::BecameReplica => panic!("{answer:?} is no reply of this server"),
    };
    Outcome::Error(word.to_owned())
}
