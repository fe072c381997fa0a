//! Tokens grow, and each token has one owner.

use super::index::IndexedCall;
use crate::bounds::Bounds;
use crate::history::{Call, History, Nanos, Outcome, Token};
use crate::spans::grouped;
use crate::tenure::{Tenure, tenures};
use crate::violation::{Check, Violation};
use std::collections::{BTreeMap, HashMap};

/// Claim, for each key:
///
/// 1. A token has one owner.
/// 2. A tenure that began after the reply to a call has a larger token than the token in this reply.
/// 3. The token of a released tenure is not granted again.
/// 4. A re-entry has the token of its tenure.
///
/// These claims use only calls with a reply. For (2), a tenure began after the start of the first call that may have
/// begun it. If a reply with a token came before this start, the tenure in the reply is older. (The order of the
/// replies alone does not show the order of the grants: of two tenures that are held together, the older tenure may
/// have later replies.) For (3), a release that left no holds, and ran between two grants of the same token, has ended
/// the tenure. For (4), the whole call lies in a span [`Held`](crate::tenure::Held) of its owner, so the call was a
/// re-entry.
///
/// Claim (3) does not hold if a failover may lose a release.
pub fn tokens_grow_and_have_one_owner(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let mut violations = each_token_has_one_owner(history);
    let all = tenures(history, bounds);
    let answered = history
        .calls()
        .filter_map(|(line, call)| Some((call.key.as_str(), (call.answered(), line, token_of(call)?))));
    let mut answered: BTreeMap<_, Vec<_>> = grouped(answered);
    for of_key in all.chunk_by(|one, other| one.key == other.key) {
        growing(history, answered.remove(of_key[0].key).unwrap_or_default(), of_key, &mut violations);
    }
    never_granted_again(history, &all, &mut violations);
    equal_on_re_entry(history, &all, &mut violations);
    violations
}

/// Checks claim (1).
fn each_token_has_one_owner(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut owners = HashMap::<(&str, Token), IndexedCall<'_>>::new();
    for (line, call) in history.calls() {
        let Some(token) = token_of(call) else { continue };
        let key = &call.key;
        let &mut (first, known) = owners.entry((key, token)).or_insert((line, call));
        if known.owner != call.owner {
            let what =
                format!("token {token} of {key} was given to two owners, {} and {}", known.owner, call.owner);
            violations.push(Violation::new(Check::Tokens, history, [first, line], what));
        }
    }
    violations
}

fn token_of(call: &Call) -> Option<Token> {
    call.end?;
    let (Outcome::Granted { token, .. } | Outcome::Renewed { token }) = call.outcome else { return None };
    Some(token)
}

/// Checks claim (2) for the tenures of a key. `answered` is the time, the line and the token of each reply with a
/// token.
fn growing(
    history: &History,
    mut answered: Vec<(Nanos, usize, Token)>,
    tenures: &[Tenure<'_>],
    violations: &mut Vec<Violation>,
) {
    answered.sort_unstable();
    let mut answered = answered.into_iter().peekable();
    let mut begun: Vec<_> = tenures.iter().collect();
    begun.sort_by_key(|tenure| tenure.began_after);
    let mut largest: Option<(Token, usize)> = None;
    for tenure in begun {
        while let Some((_, at, known)) = answered.next_if(|(time, ..)| *time < tenure.began_after) {
            largest = largest.max(Some((known, at)));
        }
        if let Some((known, at)) = largest.filter(|&(known, _)| known > tenure.token) {
            let what = format!("token {} of {} was given after the larger {known}", tenure.token, tenure.key);
            violations.push(Violation::new(Check::Tokens, history, [at, tenure.line], what));
        }
    }
}

fn never_granted_again(history: &History, tenures: &[Tenure<'_>], violations: &mut Vec<Violation>) {
    for Tenure { key, token, line, released, last, .. } in tenures {
        let (last_line, again) = last;
        if let Some(released) = released.filter(|released| released.end < again.start) {
            let what = format!("token {token} of {key} was given again after its tenure was released");
            violations.push(Violation::new(Check::Tokens, history, [*line, released.line, *last_line], what));
        }
    }
}

fn equal_on_re_entry(history: &History, tenures: &[Tenure<'_>], violations: &mut Vec<Violation>) {
    let by_owner: BTreeMap<_, Vec<_>> =
        grouped(tenures.iter().map(|tenure| ((tenure.key, tenure.owner), tenure)));
    for of_owner in by_owner.values() {
        let mut held: Vec<_> =
            of_owner.iter().filter_map(|tenure| Some((tenure.held?, tenure.line, tenure.token))).collect();
        held.sort_by_key(|(held, line, _)| (held.from, *line));
        let mut asked = of_owner.clone();
        asked.sort_by_key(|tenure| tenure.first.start);
        let mut held = held.into_iter().peekable();
        let mut longest = None;
        for tenure in asked {
            // The interval of the call's own tenure begins at the reply to the call, so this loop never takes that
            // interval.
            while let Some(next) = held.next_if(|(held, ..)| held.from <= tenure.first.start) {
                if longest.is_none_or(|(held, ..): (crate::tenure::Held, usize, Token)| held.to < next.0.to) {
                    longest = Some(next);
                }
            }
            if let Some((held, line, token)) = longest.filter(|(held, ..)| tenure.first.answered() <= held.to)
            {
                let what = format!(
                    "{} re-entered {} with token {}, but its tenure had token {token}",
                    tenure.owner, tenure.key, tenure.token
                );
                violations.push(Violation::new(Check::Tokens, history, [line, held.by, tenure.line], what));
            }
        }
    }
}
