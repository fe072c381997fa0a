//! LOCK.GUARD runs the writes of holders, and no other writes.

use super::index::FaultSpans;
use crate::bounds::Bounds;
use crate::history::{Call, History, Nanos, Operation, Outcome, Token};
use crate::report::ms;
use crate::spans::{MinFrom, grouped};
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::collections::{BTreeMap, HashMap};

/// Claim, for each guarded write with the token of a tenure:
///
/// 1. If the server ran a write, the write had started before the end of the tenure, and before any client had read the
///    grant of a later tenure.
/// 2. If the tenure was certainly held during the whole call of a write, the reply is not FENCED.
///
/// An owner writes only while it holds the lock alone, so no later tenure can exist at the same time. For (1), a tenure
/// is over after a release that left no holds, or at the end of the last lease that a call may have set. For (2), a
/// tenure is certainly held in the span [`Tenure::held`].
///
/// The claim does not hold if a failover may lose a grant, a renewal or a release.
pub fn the_guard_is_right(history: &History, bounds: &Bounds) -> Vec<Violation> {
    wrong_decisions(history, bounds, |_, _| false)
}

/// The claim of [`the_guard_is_right`], for servers that may forget grants, renewals and releases. The claim covers a
/// write only if no fault hit the servers, and no operation on them happened, between the first grant of the tenure and
/// the reply to the write.
pub fn the_guard_is_right_between_faults(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let faults = FaultSpans::of(history, bounds);
    wrong_decisions(history, bounds, |tenure, write| {
        faults.disturbed_servers(tenure.first.start, write.answered())
    })
}

/// Claim: no token in the guarded data beside a lock is smaller than the token before it. The claim holds on every
/// server, also after a failover that lost a part of the data.
pub fn guarded_data_is_in_order(history: &History, _: &Bounds) -> Vec<Violation> {
    let guarded = history.data().filter(|(_, data)| data.guarded);
    let falls = guarded.filter_map(|(line, data)| {
        let fall = data.tokens.windows(2).find(|pair| pair[1] < pair[0])?;
        let what = format!("the guarded data beside {} has token {} after {}", data.key, fall[1], fall[0]);
        Some(Violation::new(Check::Guard, history, [line], what))
    });
    falls.collect()
}

/// The number of stale writes that the server has run with LOCK.GUARD, or without LOCK.GUARD. A stale write started
/// after a client had read the grant of a later tenure.
pub fn stale_writes(history: &History, bounds: &Bounds, guarded: bool) -> usize {
    let tenures = tenures(history, bounds);
    let later = LaterTenures::of(&tenures);
    let written = writes(history, guarded).filter(|(_, write, _)| write.outcome == Outcome::Written);
    written.filter(|(_, write, token)| later.read_before(write, *token).is_some()).count()
}

/// The writes with or without LOCK.GUARD, each with the index of its line and its token.
fn writes(history: &History, of_guarded: bool) -> impl Iterator<Item = (usize, &Call, Token)> {
    history.calls().filter_map(move |(line, call)| {
        let Operation::Write { token, guarded } = call.operation else { return None };
        (guarded == of_guarded).then_some((line, call, token))
    })
}

fn wrong_decisions(
    history: &History,
    bounds: &Bounds,
    excused: impl Fn(&Tenure<'_>, &Call) -> bool,
) -> Vec<Violation> {
    let tenures = tenures(history, bounds);
    let later = LaterTenures::of(&tenures);
    let by_token: HashMap<_, _> = tenures.iter().map(|tenure| ((tenure.key, tenure.token), tenure)).collect();
    let mut violations = Vec::new();
    for (line, write, token) in writes(history, true) {
        let Some(tenure) = by_token.get(&(write.key.as_str(), token)) else { continue };
        let wrong = if write.outcome == Outcome::Written {
            wrongly_run(tenure, &later, write, bounds)
        } else if write.outcome == Outcome::Error("FENCED".to_owned()) {
            wrongly_fenced(tenure, write)
        } else {
            None
        };
        if let Some((what, other)) = wrong.filter(|_| !excused(tenure, write)) {
            let lines = other.into_iter().chain([tenure.line, line]);
            violations.push(Violation::new(Check::Guard, history, lines, what));
        }
    }
    violations
}

/// The reason why the server should have refused a write, and the line that shows the reason.
fn wrongly_run(
    tenure: &Tenure<'_>,
    later: &LaterTenures<'_, '_>,
    write: &Call,
    bounds: &Bounds,
) -> Option<(String, Option<usize>)> {
    let Call { owner, key, start, .. } = write;
    if let Some(later) = later.read_before(write, tenure.token) {
        let what = format!(
            "a write of {owner} to the data of {key} with token {} was run after a client had read token {}",
            tenure.token, later.token
        );
        return Some((what, Some(later.line)));
    }
    let over = tenure.freed.saturating_add(bounds.tolerance);
    let late = start.checked_sub(over).filter(|late| *late > 0)?;
    let what = format!(
        "a write of {owner} to the data of {key} with token {} was run, {} after the tenure was over",
        tenure.token,
        ms(late)
    );
    Some((what, tenure.released.map(|released| released.line)))
}

/// The reason why the server should have run a write, and the line that shows the reason.
fn wrongly_fenced(tenure: &Tenure<'_>, write: &Call) -> Option<(String, Option<usize>)> {
    let held = tenure.held_during(write)?;
    let what = format!(
        "a write of {} to the data of {} with token {} was fenced, but the lock was held for at least {} more",
        write.owner,
        write.key,
        tenure.token,
        ms(held.to - write.answered())
    );
    Some((what, Some(held.by)))
}

/// For a key and a token: of the tenures with at least this token, finds the tenure whose first grant was read first.
struct LaterTenures<'t, 'h> {
    tenures: &'t [Tenure<'h>],
    by_key: BTreeMap<&'h str, MinFrom<(Nanos, usize)>>,
}

impl<'t, 'h> LaterTenures<'t, 'h> {
    fn of(tenures: &'t [Tenure<'h>]) -> Self {
        let first = tenures.iter().enumerate();
        let first = first.map(|(at, tenure)| (tenure.key, (tenure.token, (tenure.first.answered(), at))));
        Self { tenures, by_key: grouped(first) }
    }

    /// A tenure with a larger token than the write, whose grant was read before the write started.
    fn read_before(&self, write: &Call, token: Token) -> Option<&'t Tenure<'h>> {
        let (read, at) = self.by_key.get(write.key.as_str())?.get(token.saturating_add(1))?;
        (read < write.start).then(|| &self.tenures[at])
    }
}
