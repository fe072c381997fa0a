//! Corrupts a correct history in one named way.

use crate::{MS, bounds};
use lockward_checker::history::{
    Call, History, HoldsReleased, Line, Mode, Nanos, Operation, Outcome, Token, Wait,
};
use lockward_checker::tenure::{Tenure, tenures};
use lockward_checker::violation::Check;
use lockward_tests::Random;

/// The ways to corrupt a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corruption {
    /// An owner gets a lock that another owner holds.
    Overlap,
    /// An owner gets more slots than are free.
    TooHeavy,
    /// A tenure has the token of an earlier tenure of the same owner.
    TokenRepeated,
    /// A tenure has a smaller token than an earlier tenure.
    TokenDroppedBack,
    /// A grant has the token of another owner's tenure.
    TokenOfTwoOwners,
    /// A hold count is too high by one.
    CountSlip,
    /// Two waiters get the lock in the wrong order.
    QueueSwap,
    /// A reader gets the lock while an earlier waiter still waits.
    WriterPassed,
    /// A waiter comes back after its limit, but the server has lost the place of this waiter.
    PlaceForgotten,
    /// A waiter gets its grant too late.
    LateGrant,
    /// A call has no reply.
    Unanswered,
    /// A holder cannot renew.
    RenewalRefused,
    /// The guard runs the write of an owner whose tenure is over.
    GuardLetsThrough,
    /// The guard refuses the write of a holder.
    HolderFenced,
    /// The guarded data has a token after a larger token.
    DataDisordered,
}

/// All corruptions, each with the check that must find it.
pub(crate) const ALL: [(Corruption, Check); 15] = [
    (Corruption::Overlap, Check::Overlap),
    (Corruption::TooHeavy, Check::Overlap),
    (Corruption::TokenRepeated, Check::Tokens),
    (Corruption::TokenDroppedBack, Check::Tokens),
    (Corruption::TokenOfTwoOwners, Check::Tokens),
    (Corruption::CountSlip, Check::Counts),
    (Corruption::QueueSwap, Check::Queue),
    (Corruption::WriterPassed, Check::Queue),
    (Corruption::PlaceForgotten, Check::Queue),
    (Corruption::LateGrant, Check::Promptness),
    (Corruption::Unanswered, Check::Answers),
    (Corruption::RenewalRefused, Check::Renewals),
    (Corruption::GuardLetsThrough, Check::Guard),
    (Corruption::HolderFenced, Check::Guard),
    (Corruption::DataDisordered, Check::Guard),
];

/// Corrupts a correct history at a random place. `None` if the history has no suitable place.
#[must_use]
pub(crate) fn corrupt(history: &History, how: Corruption, random: &mut Random) -> Option<History> {
    let mut broken = history.clone();
    let tenures = tenures(history, &bounds());
    match how {
        Corruption::Overlap => {
            broken.lines.push(beside(&tenures, |_| true, |_| Some(Mode::EXCLUSIVE), random)?);
        }
        Corruption::TooHeavy => {
            let full = |limit: u64| u32::try_from(limit).ok().map(|limit| Mode::of_slots(limit, limit));
            broken.lines.push(beside(&tenures, |limit| 1 < limit && limit < u64::MAX, full, random)?);
        }
        Corruption::TokenRepeated => {
            let places = pairs(&tenures, |one, other| {
                one.owner == other.owner
                    && one.released.is_some_and(|released| released.end < other.first.start)
            });
            let (one, other) = random.pick(&places)?;
            replace_token(&mut broken, other, one.token);
        }
        Corruption::TokenDroppedBack => {
            let places = pairs(&tenures, |one, other| one.first.answered() < other.began_after);
            let (one, other) = random.pick(&places)?;
            replace_token(&mut broken, other, one.token - 1);
        }
        Corruption::TokenOfTwoOwners => {
            let places = pairs(&tenures, |one, other| one.owner != other.owner);
            let (one, other) = random.pick(&places)?;
            let Outcome::Granted { token, .. } = &mut call_at(&mut broken, other.line)?.outcome else {
                return None;
            };
            *token = one.token;
        }
        Corruption::CountSlip => {
            let places: Vec<_> =
                history.calls().filter(|(_, call)| counts_for_certain(history, call)).collect();
            let &(line, _) = random.pick(&places)?;
            let outcome = &mut call_at(&mut broken, line)?.outcome;
            let (Outcome::Granted { holds, .. } | Outcome::Left { holds }) = outcome else { return None };
            *holds += 1;
        }
        Corruption::QueueSwap => swap_in_queue(&mut broken, history, &tenures, random)?,
        Corruption::WriterPassed => pass_waiter(&mut broken, history, &tenures, random)?,
        Corruption::PlaceForgotten => forget_place(&mut broken, history, &tenures, random)?,
        Corruption::LateGrant => {
            let pairs = tenures.iter().enumerate().skip(1);
            let pairs = pairs.filter(|(at, tenure)| can_be_late(history, &tenures[..*at], tenure));
            let places: Vec<_> = pairs.map(|(_, tenure)| tenure).collect();
            let tenure = random.pick(&places)?;
            call_at(&mut broken, tenure.line)?.end = Some(tenure.first.answered() + LATE);
        }
        Corruption::Unanswered => {
            let places: Vec<_> = history.calls().map(|(line, _)| line).collect();
            let call = call_at(&mut broken, *random.pick(&places)?)?;
            (call.end, call.outcome) = (None, Outcome::Unknown);
        }
        Corruption::RenewalRefused => {
            let refused = |line| {
                let mut broken = history.clone();
                call_at(&mut broken, line)?.outcome = Outcome::Error("NOTHELD".to_owned());
                Some(broken)
            };
            // The tenure must be held even without the renewal.
            let is_held = |call: &Call, broken: &History| {
                let Operation::Renew { token: Some(token), .. } = call.operation else { return false };
                let tenures = self::tenures(broken, &bounds());
                let tenure = tenures.iter().find(|tenure| tenure.key == call.key && tenure.token == token);
                tenure.is_some_and(|tenure| tenure.held_during(call).is_some())
            };
            let renewals =
                history.calls().filter(|(_, call)| matches!(call.outcome, Outcome::Renewed { .. }));
            let places =
                renewals.filter_map(|(line, call)| refused(line).filter(|broken| is_held(call, broken)));
            broken = random.pick(&places.collect::<Vec<_>>())?.clone();
        }
        Corruption::GuardLetsThrough => {
            let places = guarded_writes(history, &tenures, |tenure, write| {
                let fenced = write.outcome == Outcome::Error("FENCED".to_owned());
                fenced && tenure.freed + bounds().tolerance < write.start
            });
            call_at(&mut broken, *random.pick(&places)?)?.outcome = Outcome::Written;
        }
        Corruption::HolderFenced => {
            let places = guarded_writes(history, &tenures, |tenure, write| {
                tenure.held_during(write).is_some() && write.outcome == Outcome::Written
            });
            call_at(&mut broken, *random.pick(&places)?)?.outcome = Outcome::Error("FENCED".to_owned());
        }
        Corruption::DataDisordered => {
            let places: Vec<_> = history
                .data()
                .filter(|(_, data)| data.guarded && data.tokens.first() != data.tokens.last())
                .map(|(line, _)| line)
                .collect();
            let Line::Data(data) = broken.lines.get_mut(*random.pick(&places)?)? else { return None };
            data.tokens.rotate_right(1);
        }
    }
    Some(broken)
}

/// Swaps two waiters in the queue. One of them was seen in the queue before the other asked for the lock.
fn swap_in_queue(
    broken: &mut History,
    history: &History,
    tenures: &[Tenure<'_>],
    random: &mut Random,
) -> Option<()> {
    let places = pairs(tenures, |one, other| {
        let waited =
            |tenure: &Tenure<'_>| tenure.first.enqueued.is_some() && all_answered(history, tenure.first);
        let behind = other.first.start;
        waited(one)
            && waited(other)
            && one.first.enqueued.is_some_and(|enqueued| enqueued < behind)
            && behind < one.first.answered()
    });
    let (one, other) = random.pick(&places)?;
    for (moved, to) in [(one, other), (other, one)] {
        let call = call_at(broken, moved.line)?;
        (call.start, call.enqueued) = (to.first.start, to.first.enqueued);
    }
    Some(())
}

/// A reader gets the lock while a waiter whose wait ends without a grant still waits.
fn pass_waiter(
    broken: &mut History,
    history: &History,
    tenures: &[Tenure<'_>],
    random: &mut Random,
) -> Option<()> {
    let waits: Vec<_> = history
        .calls()
        .filter_map(|(_, call)| {
            let (seen, end) = (call.enqueued?, call.start + call.wait_limit()?);
            let long = call.outcome == Outcome::NotAcquired && seen + 5 * MS < end;
            long.then_some((call, seen))
        })
        .collect();
    let &(call, seen) = random.pick(&waits)?;
    let token = free_token(tenures, call, seen)?;
    broken.lines.push(intruder(call, Mode::SHARED, token, seen + 1, seen + MS));
    Some(())
}

/// A reader gets the lock just before an owner that has come back to its kept place.
fn forget_place(
    broken: &mut History,
    history: &History,
    tenures: &[Tenure<'_>],
    random: &mut Random,
) -> Option<()> {
    let calm =
        |from, to| history.faults().all(|fault| fault.end + bounds().settle < from || to < fault.start);
    let places: Vec<_> = pairs_of_slices(history)
        .filter_map(|(before, next)| {
            let (seen, end) = (before.enqueued?, before.start + before.wait_limit()?);
            let back = next.enqueued?;
            let (token, _) = next.granted()?;
            let is_new =
                tenures.iter().any(|tenure| tenure.token == token && tenure.first.start == next.start);
            let named = matches!(next.operation, Operation::Acquire { holds: Some(_), .. });
            let absent = back.saturating_sub(end) + 3 * MS;
            let kept = named && absent < before.kept()?.0.min(100 * MS) && next.start > before.end?;
            let fits =
                before.outcome == Outcome::NotAcquired && is_new && kept && calm(seen, next.answered());
            fits.then_some((before, seen, next, token))
        })
        .collect();
    let &(before, seen, next, token) = random.pick(&places)?;
    broken.lines.push(intruder(before, Mode::SHARED, token - 1, seen + 1, next.answered()));
    Some(())
}

/// How much later the client reads the reply of [`Corruption::LateGrant`].
const LATE: Nanos = 20 * MS;

/// A grant to an owner that is not in the history, while a tenure is held. `fits` gets the limit of a tenure and
/// returns whether the tenure is suitable. `mode` gets the same limit and returns the mode of the grant.
fn beside(
    tenures: &[Tenure<'_>],
    fits: impl Fn(u64) -> bool,
    mode: impl Fn(u64) -> Option<Mode>,
    random: &mut Random,
) -> Option<Line> {
    let is_long = |tenure: &&Tenure<'_>| tenure.held.is_some_and(|held| held.to - held.from > MS);
    let limit = |tenure: &Tenure<'_>| tenure.limit_at(Nanos::MAX);
    let places: Vec<_> = tenures.iter().filter(is_long).filter(|tenure| fits(limit(tenure))).collect();
    let tenure = random.pick(&places)?;
    let from = tenure.held?.from;
    Some(intruder(tenure.first, mode(limit(tenure))?, tenure.token + 1, from + MS / 4, from + MS / 2))
}

/// A grant of the lock in the call `of`, to an owner that is not in the history.
fn intruder(of: &Call, mode: Mode, token: Token, start: Nanos, end: Nanos) -> Line {
    let operation = Operation::acquire(100 * MS, Wait::No, mode);
    let outcome = Outcome::Granted { token, holds: 1 };
    let sent = Call::sent(99, 0, &of.key, "intruder", operation, start);
    Line::Call(Call { end: Some(end), outcome, ..sent })
}

/// A token that no tenure has. The token is larger than all tokens of this lock that clients had read before `time`.
fn free_token(tenures: &[Tenure<'_>], call: &Call, time: Nanos) -> Option<Token> {
    let of_key = tenures.iter().filter(|tenure| tenure.key == call.key && tenure.first.answered() < time);
    Some(of_key.map(|tenure| tenure.token).max()? + 1)
}

/// The lines of the guarded writes that `fit` accepts. `fit` gets the tenure of a write, and the write.
fn guarded_writes(
    history: &History,
    tenures: &[Tenure<'_>],
    fit: impl Fn(&Tenure<'_>, &Call) -> bool,
) -> Vec<usize> {
    let writes = history.calls().filter(|(_, call)| {
        let Operation::Write { token, guarded: true } = call.operation else { return false };
        let tenure = tenures.iter().find(|tenure| tenure.key == call.key && tenure.token == token);
        tenure.is_some_and(|tenure| fit(tenure, call))
    });
    writes.map(|(line, _)| line).collect()
}

/// All waits with KEEP, each paired with the next call of the same owner on the same lock.
fn pairs_of_slices(history: &History) -> impl Iterator<Item = (&Call, &Call)> {
    let waits = history.calls().filter(|(_, call)| call.kept().is_some());
    waits.filter_map(|(_, call)| {
        let later = history
            .calls()
            .map(|(_, other)| other)
            .filter(|other| other.key == call.key && other.owner == call.owner && other.start > call.start);
        Some((call, later.min_by_key(|other| other.start)?))
    })
}

fn call_at(history: &mut History, line: usize) -> Option<&mut Call> {
    if let Line::Call(call) = history.lines.get_mut(line)? { Some(call) } else { None }
}

/// The pairs of tenures of a key that `fit` accepts, the earlier tenure first.
fn pairs<'t, 'h>(
    tenures: &'t [Tenure<'h>],
    fit: impl Fn(&Tenure<'h>, &Tenure<'h>) -> bool,
) -> Vec<(&'t Tenure<'h>, &'t Tenure<'h>)> {
    let each = tenures.iter().enumerate();
    each.flat_map(|(at, one)| tenures.iter().skip(at + 1).map(move |other| (one, other)))
        .filter(|(one, other)| one.key == other.key && fit(one, other))
        .collect()
}

/// Replaces the token of a tenure in all calls.
fn replace_token(history: &mut History, tenure: &Tenure<'_>, by: Token) {
    let change = |token: &mut Token| {
        if *token == tenure.token {
            *token = by;
        }
    };
    for line in &mut history.lines {
        let Line::Call(call) = line else { continue };
        if call.key != tenure.key {
            continue;
        }
        match &mut call.operation {
            Operation::Release { token, .. } | Operation::Renew { token, .. } => {
                token.iter_mut().for_each(change)
            }
            Operation::Write { token, .. } => change(token),
            Operation::Acquire { .. } => {}
        }
        if let Outcome::Granted { token, .. } | Outcome::Renewed { token } = &mut call.outcome {
            change(token);
        }
    }
}

/// Whether every call of the owner has a reply, and no call was superseded or has left a kept place.
fn all_answered(history: &History, of: &Call) -> bool {
    history.calls().filter(|(_, call)| call.key == of.key && call.owner == of.owner).all(|(_, call)| {
        let superseded = call.outcome == Outcome::Error("SUPERSEDED".to_owned());
        !call.is_open() && !superseded && (call.granted().is_some() || call.kept().is_none())
    })
}

/// Whether only one count is possible in the reply to this call.
fn counts_for_certain(history: &History, call: &Call) -> bool {
    let plain = match (&call.operation, &call.outcome) {
        (Operation::Acquire { holds: None, .. }, Outcome::Granted { .. }) => true,
        (Operation::Release { released, .. }, Outcome::Left { .. }) => *released == HoldsReleased::One,
        _ => false,
    };
    plain && all_answered(history, call)
}

/// Whether a late reply to the wait that began the tenure would be a violation. `earlier` is in the order of tokens.
fn can_be_late(history: &History, earlier: &[Tenure<'_>], tenure: &Tenure<'_>) -> bool {
    let wait = tenure.first;
    let mut earlier = earlier.iter().filter(|before| before.key == tenure.key).rev();
    let Some(before) = earlier.next() else { return false };
    let Some(free) = before.released.map(|released| released.end) else { return false };
    let (from, to) = (free.max(wait.start), wait.answered() + LATE);
    let settle = bounds().settle;
    let alone = history.calls().all(|(line, call)| {
        let granted = call.granted().is_some_and(|(token, _)| token == tenure.token);
        line == tenure.line || call.key != tenure.key || !granted
    });
    let calm = history.faults().all(|fault| fault.end + settle < from || to < fault.start);
    // The longest lease of the simulation.
    let longest = 200 * MS;
    let of_key = || history.calls().map(|(_, call)| call).filter(|call| call.key == tenure.key);
    let open = of_key().filter(|call| matches!(call.operation, Operation::Acquire { .. }) && call.is_open());
    let shown = open.filter(|open| open.start <= to).all(|open| {
        let of_owner = of_key().filter(|call| call.owner == open.owner);
        of_owner.map(|call| call.end).all(|end| end.is_some_and(|end| end + settle + longest < from))
    });
    let no_place = of_key().filter(|call| call.kept().is_some()).all(|call| {
        let end = call.answered().saturating_add(105 * MS);
        call.granted().is_some() || end < from || to + 3 * MS < call.start + call.wait_limit().unwrap_or(0)
    });
    let one_after_another = before.excludes(tenure, to)
        && before.first.answered() <= from
        && earlier.all(|other| {
            let is_over = other.freed <= from || before.modes.weight >= before.limit_at(Nanos::MAX);
            is_over && other.first.answered() <= from
        });
    let waited = wait.waits() && free <= wait.answered();
    waited && alone && calm && shown && no_place && one_after_another
}
