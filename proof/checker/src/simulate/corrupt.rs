//! Corrupts a correct history in one named way.

use super::{MS, bounds};
use crate::history::{
    Call, History, HoldsReleased, Line, Nanos, Operation, Outcome, Token, Wait, Write, WriteOutcome,
};
use crate::random::Random;
use crate::tenure::{Tenure, tenures};
use crate::violation::Check;

/// The ways to corrupt a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// An owner is granted a lock that another holds.
    Overlap,
    /// A tenure has the token of an earlier one of the same owner.
    TokenRepeated,
    /// A tenure has a token smaller than an earlier one's.
    TokenDroppedBack,
    /// A grant has the token of another owner's tenure.
    TokenOfTwoOwners,
    /// A count is one too high.
    CountSlip,
    /// Two waiters are granted in the wrong order.
    QueueSwap,
    /// A waiter gets its grant too late.
    LateGrant,
    /// A call has no reply.
    Unanswered,
    /// The store accepts a stale write.
    StaleWrite,
}

impl Corruption {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Overlap,
        Self::TokenRepeated,
        Self::TokenDroppedBack,
        Self::TokenOfTwoOwners,
        Self::CountSlip,
        Self::QueueSwap,
        Self::LateGrant,
        Self::Unanswered,
        Self::StaleWrite,
    ];

    /// The check that must find it.
    #[must_use]
    pub fn found_by(self) -> Check {
        match self {
            Self::Overlap => Check::Overlap,
            Self::TokenRepeated | Self::TokenDroppedBack | Self::TokenOfTwoOwners => Check::Tokens,
            Self::CountSlip => Check::Counts,
            Self::QueueSwap => Check::Queue,
            Self::LateGrant => Check::Promptness,
            Self::Unanswered => Check::Answers,
            Self::StaleWrite => Check::Store,
        }
    }
}

/// Corrupts a correct history at a random place. `None` if it has no suitable place.
#[must_use]
pub fn corrupt(history: &History, how: Corruption, random: &mut Random) -> Option<History> {
    let mut broken = history.clone();
    let tenures = tenures(history, &bounds());
    match how {
        Corruption::Overlap => {
            let held =
                tenures.iter().filter(|tenure| tenure.held.is_some_and(|held| held.to - held.from > MS));
            let places: Vec<_> = held.collect();
            let tenure = random.one_of(&places)?;
            let from = tenure.held?.from;
            broken.lines.push(Line::Call(Call {
                client: 99,
                node: 0,
                key: tenure.key.to_owned(),
                owner: "intruder".to_owned(),
                operation: Operation::Acquire { lease: 100 * MS, wait: Wait::No, holds: None },
                start: from + MS / 4,
                enqueued: None,
                end: Some(from + MS / 2),
                outcome: Outcome::Granted { token: tenure.token + 1, holds: 1 },
            }));
        }
        Corruption::TokenRepeated => {
            let places = pairs(&tenures, |one, other| {
                one.owner == other.owner && one.released.is_some_and(|released| released.end < other.earliest)
            });
            let (one, other) = random.one_of(&places)?;
            replace_token(&mut broken, other, one.token);
        }
        Corruption::TokenDroppedBack => {
            let places = pairs(&tenures, |one, other| one.first.answered() < other.earliest);
            let (one, other) = random.one_of(&places)?;
            replace_token(&mut broken, other, one.token - 1);
        }
        Corruption::TokenOfTwoOwners => {
            let places = pairs(&tenures, |one, other| one.owner != other.owner);
            let (one, other) = random.one_of(&places)?;
            let Outcome::Granted { token, .. } = &mut call_at(&mut broken, other.line)?.outcome else {
                return None;
            };
            *token = one.token;
        }
        Corruption::CountSlip => {
            let places: Vec<_> =
                history.calls().filter(|(_, call)| counts_for_certain(history, call)).collect();
            let &(line, _) = random.one_of(&places)?;
            match &mut call_at(&mut broken, line)?.outcome {
                Outcome::Granted { holds, .. } | Outcome::Left { holds } => *holds += 1,
                Outcome::NotAcquired | Outcome::Renewed { .. } | Outcome::Error(_) | Outcome::Unknown => {
                    return None;
                }
            }
        }
        Corruption::QueueSwap => {
            let places = pairs(&tenures, |one, other| {
                let waited = |tenure: &Tenure<'_>| {
                    tenure.first.enqueued.is_some()
                        && tenure.earliest == tenure.first.start
                        && all_answered(history, tenure.first)
                };
                let behind = other.first.start;
                waited(one)
                    && waited(other)
                    && one.first.enqueued.is_some_and(|enqueued| enqueued < behind)
                    && behind < one.first.answered()
            });
            let (one, other) = random.one_of(&places)?;
            let (one, other) = (one.line, other.line);
            let first = (call_at(&mut broken, one)?.start, call_at(&mut broken, one)?.enqueued);
            let second = (call_at(&mut broken, other)?.start, call_at(&mut broken, other)?.enqueued);
            let moved = call_at(&mut broken, one)?;
            (moved.start, moved.enqueued) = second;
            let moved = call_at(&mut broken, other)?;
            (moved.start, moved.enqueued) = first;
        }
        Corruption::LateGrant => {
            let places: Vec<_> =
                tenures.windows(2).filter(|pair| can_be_late(history, &pair[0], &pair[1])).collect();
            let tenure = &random.one_of(&places)?[1];
            call_at(&mut broken, tenure.line)?.end = Some(tenure.first.answered() + LATE);
        }
        Corruption::Unanswered => {
            let places: Vec<_> = history.calls().map(|(line, _)| line).collect();
            let call = call_at(&mut broken, *random.one_of(&places)?)?;
            (call.end, call.outcome) = (None, Outcome::Unknown);
        }
        Corruption::StaleWrite => {
            let places: Vec<_> = history
                .writes()
                .filter(|(_, write)| write.outcome == WriteOutcome::Accepted)
                .filter_map(|(_, write)| {
                    let stale = |tenure: &&Tenure<'_>| tenure.key == write.key && tenure.token < write.token;
                    Some((write, tenures.iter().rfind(stale)?))
                })
                .collect();
            let &(write, tenure) = random.one_of(&places)?;
            let (owner, token) = (tenure.owner.to_owned(), tenure.token);
            let (start, end) = (write.end + 1, write.end + MS);
            broken.lines.push(Line::Write(Write { owner, token, start, end, ..write.clone() }));
        }
    }
    Some(broken)
}

const LATE: Nanos = 20 * MS;

fn call_at(history: &mut History, line: usize) -> Option<&mut Call> {
    match history.lines.get_mut(line)? {
        Line::Call(call) => Some(call),
        Line::Write(_) | Line::Fault(_) => None,
    }
}

/// The pairs of tenures of a key that fit, the earlier one first.
fn pairs<'t, 'h>(
    tenures: &'t [Tenure<'h>],
    fit: impl Fn(&Tenure<'h>, &Tenure<'h>) -> bool,
) -> Vec<(&'t Tenure<'h>, &'t Tenure<'h>)> {
    let each = tenures.iter().enumerate();
    each.flat_map(|(at, one)| tenures.iter().skip(at + 1).map(move |other| (one, other)))
        .filter(|(one, other)| one.key == other.key && fit(one, other))
        .collect()
}

/// Replaces the token of a tenure everywhere.
fn replace_token(history: &mut History, tenure: &Tenure<'_>, by: Token) {
    let change = |token: &mut Token| {
        if *token == tenure.token {
            *token = by;
        }
    };
    for line in &mut history.lines {
        match line {
            Line::Call(call) if call.key == tenure.key => {
                match &mut call.operation {
                    Operation::Release { token, .. } | Operation::Renew { token, .. } => {
                        token.iter_mut().for_each(change)
                    }
                    Operation::Acquire { .. } => {}
                }
                match &mut call.outcome {
                    Outcome::Granted { token, .. } | Outcome::Renewed { token } => change(token),
                    Outcome::NotAcquired | Outcome::Left { .. } | Outcome::Error(_) | Outcome::Unknown => {}
                }
            }
            // Not in writes to the store, because the store would have decided differently.
            Line::Call(_) | Line::Write(_) | Line::Fault(_) => {}
        }
    }
}

/// Whether every call of the owner has a reply, and none was superseded.
fn all_answered(history: &History, of: &Call) -> bool {
    history
        .calls()
        .filter(|(_, call)| call.key == of.key && call.owner == of.owner)
        .all(|(_, call)| !call.is_open() && call.outcome != Outcome::Error("SUPERSEDED".to_owned()))
}

/// Whether only one count is possible in the reply of this call.
fn counts_for_certain(history: &History, call: &Call) -> bool {
    let plain = match (&call.operation, &call.outcome) {
        (Operation::Acquire { holds: None, .. }, Outcome::Granted { .. }) => true,
        (Operation::Release { released, .. }, Outcome::Left { .. }) => *released == HoldsReleased::One,
        _ => false,
    };
    plain && all_answered(history, call)
}

/// Whether nothing excuses a late reply to the wait that began the tenure.
fn can_be_late(history: &History, before: &Tenure<'_>, tenure: &Tenure<'_>) -> bool {
    let wait = tenure.first;
    let Some(free) = before.released.map(|released| released.end) else { return false };
    let (from, to) = (free.max(wait.start), wait.answered() + LATE);
    let settle = bounds().settle;
    let alone = history.calls().all(|(line, call)| {
        let granted = call.granted().is_some_and(|(token, _)| token == tenure.token);
        line == tenure.line || call.key != tenure.key || !granted
    });
    let calm = history.faults().all(|fault| fault.end + settle < from || to < fault.start);
    // No lease of the simulation is longer. A renewal may have set another one.
    let longest = 120 * MS;
    let shown = history.calls().filter(|(_, call)| call.key == tenure.key).all(|(_, call)| {
        let open = matches!(call.operation, Operation::Acquire { .. }) && call.is_open();
        !open || to < call.start || call.end.is_some_and(|end| end + settle + 2 * longest < from)
    });
    before.key == tenure.key && wait.waits() && free <= wait.answered() && alone && calm && shown
}
