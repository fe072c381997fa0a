//! Tokens rise, and each has one owner.

use super::{IndexedCall, group_calls};
use crate::violation::{Violation, Check};
use crate::bounds::Bounds;
use crate::history::{Call, History, Operation, Nanos, Outcome, Token};
use crate::spans::MinFrom;
use crate::tenure::tenures;
use std::collections::{BTreeMap, HashMap};

/// Claim: of a key, (1) a token has one owner; (2) a token reported by a call that started after another was answered is no
/// smaller; (3) once a tenure was released, its token is not reported again; (4) an owner that re-enters is reported its
/// tenure's token.
///
/// All four rest on answered calls alone. (2): the reply of the later call tells the tenure that was there while the
/// call ran, and the other's was there, or over, before. (3): between two grants of one token the owner held that
/// tenure, so a release in between that left nothing ended it. (4): the whole call lies in a definite-hold interval of
/// the same owner, so there was nothing for it but to re-enter.
///
/// (3) asks more than is promised of a failover that may lose a release.
#[must_use]
pub fn tokens_rise_and_have_one_owner(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (key, calls) in group_calls(history, |call| call.key.as_str()) {
        let reported: Vec<_> = calls.iter().filter_map(|&reported| Some((reported, token_of(reported.1)?))).collect();
        one_owner(history, key, &reported, &mut violations);
        rising(history, key, &reported, &mut violations);
    }
    for calls in group_calls(history, |call| (call.key.as_str(), call.owner.as_str())).values() {
        never_again(history, calls, &mut violations);
    }
    equal_on_re_entry(history, bounds, &mut violations);
    violations
}

/// Claim: (1) of the claims above, alone. It holds even where two servers grant the same lock for a moment.
#[must_use]
pub fn each_token_has_one_owner(history: &History, _: &Bounds) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (key, calls) in group_calls(history, |call| call.key.as_str()) {
        let reported: Vec<_> = calls.iter().filter_map(|&reported| Some((reported, token_of(reported.1)?))).collect();
        one_owner(history, key, &reported, &mut violations);
    }
    violations
}

fn token_of(call: &Call) -> Option<Token> {
    call.end?;
    match call.outcome {
        Outcome::Granted { token, .. } | Outcome::Renewed { token } => Some(token),
        Outcome::NotAcquired | Outcome::Left { .. } | Outcome::Error(_) | Outcome::Unknown => None,
    }
}

fn one_owner(history: &History, key: &str, reported: &[(IndexedCall<'_>, Token)], violations: &mut Vec<Violation>) {
    let mut owners = HashMap::<Token, IndexedCall<'_>>::new();
    for &((line, call), token) in reported {
        let &mut (first, known) = owners.entry(token).or_insert((line, call));
        if known.owner != call.owner {
            let what = format!("token {token} of {key} was given to {} and to {}", known.owner, call.owner);
            violations.push(Violation::new(Check::Tokens, history, [first, line], what));
        }
    }
}

fn rising(history: &History, key: &str, reported: &[(IndexedCall<'_>, Token)], violations: &mut Vec<Violation>) {
    let mut answered = reported.to_vec();
    answered.sort_by_key(|((_, call), _)| call.answered());
    let mut started = reported.to_vec();
    started.sort_by_key(|((_, call), _)| call.start);
    let mut answered = answered.into_iter().peekable();
    let mut largest: Option<(Token, usize)> = None;
    for ((line, call), token) in started {
        while let Some(((at, _), known)) = answered.next_if(|((_, other), _)| other.answered() < call.start) {
            largest = largest.max(Some((known, at)));
        }
        if let Some((known, at)) = largest.filter(|&(known, _)| known > token) {
            let what = format!("token {token} of {key} was reported after the larger {known}");
            violations.push(Violation::new(Check::Tokens, history, [at, line], what));
        }
    }
}

fn never_again(history: &History, calls: &[IndexedCall<'_>], violations: &mut Vec<Violation>) {
    let over: MinFrom<(Nanos, usize)> = calls
        .iter()
        .filter(|(_, call)| matches!(call.operation, Operation::Release { .. }))
        .filter(|(_, call)| call.outcome == Outcome::Left { holds: 0 })
        .map(|(line, call)| (call.start, (call.answered(), *line)))
        .collect();
    let mut grants = BTreeMap::<Token, Vec<IndexedCall<'_>>>::new();
    for &(line, call) in calls {
        if let Some((token, _)) = call.granted() {
            grants.entry(token).or_default().push((line, call));
        }
    }
    for (token, grants) in grants {
        let first = grants.iter().min_by_key(|(_, call)| call.answered());
        let last = grants.iter().max_by_key(|(_, call)| call.start);
        let (Some((first, begun)), Some((last, again))) = (first, last) else { continue };
        if let Some((end, release)) = over.get(begun.answered().saturating_add(1))
            && end < again.start
        {
            let what =
                format!("token {token} of {} was given again after its tenure was released", begun.key);
            violations.push(Violation::new(Check::Tokens, history, [*first, release, *last], what));
        }
    }
}

fn equal_on_re_entry(history: &History, bounds: &Bounds, violations: &mut Vec<Violation>) {
    let tenures = tenures(history, bounds);
    let mut by_owner = BTreeMap::<_, Vec<_>>::new();
    for tenure in &tenures {
        by_owner.entry((tenure.key, tenure.owner)).or_default().push(tenure);
    }
    for of_owner in by_owner.values() {
        let mut held: Vec<_> =
            of_owner.iter().filter_map(|tenure| Some((tenure.held?, tenure.line, tenure.token))).collect();
        held.sort_by_key(|(held, line, _)| (held.from, *line));
        let mut asked = of_owner.clone();
        asked.sort_by_key(|tenure| tenure.first.start);
        let mut held = held.into_iter().peekable();
        let mut longest = None;
        for tenure in asked {
            // Its own interval begins when this call is answered: it is never among those taken here.
            while let Some(next) = held.next_if(|(held, ..)| held.from <= tenure.first.start) {
                if longest.is_none_or(|(held, ..): (crate::tenure::Held, usize, Token)| held.to < next.0.to) {
                    longest = Some(next);
                }
            }
            if let Some((held, line, token)) = longest.filter(|(held, ..)| tenure.first.answered() <= held.to)
            {
                let what = format!(
                    "{} re-entered {} with token {}, while its tenure had {token}",
                    tenure.owner, tenure.key, tenure.token
                );
                violations.push(Violation::new(Check::Tokens, history, [line, held.by, tenure.line], what));
            }
        }
    }
}
