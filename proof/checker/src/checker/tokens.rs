//! Tokens rise, and each has one owner.

use super::{Told, apart};
use crate::alarm::{Alarm, Check};
use crate::bounds::Bounds;
use crate::history::{Call, History, Kind, Nanos, Outcome, Token};
use crate::spans::LeastFrom;
use crate::tenure::tenures;
use std::collections::{BTreeMap, HashMap};

/// Claim: of a key, (1) a token has one owner; (2) a token told by a call that started after another was answered is no
/// smaller; (3) once a tenure was released, its token is not told again; (4) an owner that re-enters is told its
/// tenure's token.
///
/// All four rest on answered calls alone. (2): the reply of the later call tells the tenure that was there while the
/// call ran, and the other's was there, or over, before. (3): between two grants of one token the owner held that
/// tenure, so a release in between that left nothing ended it. (4): the whole call lies in a definite-hold interval of
/// the same owner, so there was nothing for it but to re-enter.
///
/// (3) asks more than is promised of a failover that may lose a release.
#[must_use]
pub fn tokens_rise_and_have_one_owner(history: &History, bounds: &Bounds) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    for (key, calls) in apart(history, |call| call.key.as_str()) {
        let told: Vec<_> = calls.iter().filter_map(|&told| Some((told, token_told(told.1)?))).collect();
        one_owner(history, key, &told, &mut alarms);
        rising(history, key, &told, &mut alarms);
    }
    for calls in apart(history, |call| (call.key.as_str(), call.owner.as_str())).values() {
        never_again(history, calls, &mut alarms);
    }
    equal_on_re_entry(history, bounds, &mut alarms);
    alarms
}

/// Claim: (1) of the claims above, alone. It holds even where two servers grant the same lock for a moment.
#[must_use]
pub fn each_token_has_one_owner(history: &History, _: &Bounds) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    for (key, calls) in apart(history, |call| call.key.as_str()) {
        let told: Vec<_> = calls.iter().filter_map(|&told| Some((told, token_told(told.1)?))).collect();
        one_owner(history, key, &told, &mut alarms);
    }
    alarms
}

fn token_told(call: &Call) -> Option<Token> {
    call.end?;
    match call.outcome {
        Outcome::Granted { token, .. } | Outcome::Renewed { token } => Some(token),
        Outcome::NotAcquired | Outcome::Left { .. } | Outcome::Error(_) | Outcome::Unknown => None,
    }
}

fn one_owner(history: &History, key: &str, told: &[(Told<'_>, Token)], alarms: &mut Vec<Alarm>) {
    let mut owners = HashMap::<Token, Told<'_>>::new();
    for &((line, call), token) in told {
        let &mut (first, known) = owners.entry(token).or_insert((line, call));
        if known.owner != call.owner {
            let what = format!("token {token} of {key} was given to {} and to {}", known.owner, call.owner);
            alarms.push(Alarm::new(Check::Tokens, history, [first, line], what));
        }
    }
}

fn rising(history: &History, key: &str, told: &[(Told<'_>, Token)], alarms: &mut Vec<Alarm>) {
    let mut answered = told.to_vec();
    answered.sort_by_key(|((_, call), _)| call.answered());
    let mut started = told.to_vec();
    started.sort_by_key(|((_, call), _)| call.start);
    let mut answered = answered.into_iter().peekable();
    let mut largest: Option<(Token, usize)> = None;
    for ((line, call), token) in started {
        while let Some(((at, _), known)) = answered.next_if(|((_, other), _)| other.answered() < call.start) {
            largest = largest.max(Some((known, at)));
        }
        if let Some((known, at)) = largest.filter(|&(known, _)| known > token) {
            let what = format!("token {token} of {key} was told after the larger {known}");
            alarms.push(Alarm::new(Check::Tokens, history, [at, line], what));
        }
    }
}

fn never_again(history: &History, calls: &[Told<'_>], alarms: &mut Vec<Alarm>) {
    let over: LeastFrom<(Nanos, usize)> = calls
        .iter()
        .filter(|(_, call)| matches!(call.kind, Kind::Release { .. }))
        .filter(|(_, call)| call.outcome == Outcome::Left { holds: 0 })
        .map(|(line, call)| (call.start, (call.answered(), *line)))
        .collect();
    let mut grants = BTreeMap::<Token, Vec<Told<'_>>>::new();
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
            alarms.push(Alarm::new(Check::Tokens, history, [*first, release, *last], what));
        }
    }
}

fn equal_on_re_entry(history: &History, bounds: &Bounds, alarms: &mut Vec<Alarm>) {
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
                alarms.push(Alarm::new(Check::Tokens, history, [line, held.by, tenure.line], what));
            }
        }
    }
}
