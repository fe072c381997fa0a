//! Hold counts add up.

use super::index::{IndexedCall, calls_by_owner};
use crate::bounds::Bounds;
use crate::history::{Call, History, HoldsReleased, Operation, Outcome, Token};
use crate::violation::{Check, Violation};

/// Claim: each count in a reply follows from the earlier counts. An acquisition adds one hold, and a release removes
/// one hold or all holds. A request with HOLDS changes the count by one to the named count, or finds that the owner
/// already has the named count.
///
/// A call without a reply may act at any time after its start. So such a call widens the range of possible counts by the
/// holds that it may have added or removed, from its start on. The check allows all counts in this range. A renewal
/// with TOKEN may restore a forgotten tenure with the holds that the renewal names.
pub fn hold_counts_add_up(history: &History, _: &Bounds) -> Vec<Violation> {
    let mut violations = Vec::new();
    for calls in calls_by_owner(history).values() {
        violations.extend(counts_of_owner(history, calls));
    }
    violations
}

/// The possible counts of the owner's last tenure.
#[derive(Clone, Copy)]
struct Possible {
    token: Option<Token>,
    least: u32,
    most: u32,
    /// The line of the reply that shows the count.
    by: Option<usize>,
}

/// The possible effects of calls whose order is unknown.
#[derive(Clone, Copy, Default)]
struct UnorderedEffects {
    added: u32,
    /// The largest count that an acquisition with HOLDS names. No acquisition with HOLDS leads to a larger count.
    named: u32,
    taken: bool,
    /// The fewest and the most holds with which a forgotten tenure may have been restored.
    restored: Option<(u32, u32)>,
}

impl UnorderedEffects {
    fn add(&mut self, call: &Call) {
        match call.operation {
            Operation::Acquire { holds: None, .. } => self.added += 1,
            Operation::Acquire { holds: Some(named), .. } => self.named = self.named.max(named),
            Operation::Release { .. } => self.taken = true,
            Operation::Renew { token: None, .. } | Operation::Write { .. } => {}
            Operation::Renew { token: Some(_), holds, .. } => {
                let holds = holds.unwrap_or(1);
                let (least, most) = self.restored.unwrap_or((holds, holds));
                self.restored = Some((least.min(holds), most.max(holds)));
            }
        }
    }
}

fn counts_of_owner(history: &History, calls: &[IndexedCall<'_>]) -> Vec<Violation> {
    let mut open = calls.iter().filter(|(_, call)| call.is_open()).peekable();
    let mut violations = Vec::new();
    let mut unordered = UnorderedEffects::default();
    let mut now = Possible { token: None, least: 0, most: 0, by: None };
    for &(line, call) in calls.iter().filter(|(_, call)| counts(call)) {
        while let Some((_, earlier)) = open.next_if(|(_, other)| other.start <= call.answered()) {
            unordered.add(earlier);
        }
        let mut around = unordered;
        if matches!(call.operation, Operation::Renew { .. }) {
            around.add(call);
        }
        if let Some(error) = count_error(call, now, around) {
            let lines = now.by.into_iter().chain([line]);
            let what = format!("the reply to {} for {} is wrong: {error}", call.owner, call.key);
            violations.push(Violation::new(Check::Counts, history, lines, what));
        }
        now = possible_after(line, call, now, around);
    }
    violations
}

/// Whether the call has a reply, and may have changed the count.
fn counts(call: &Call) -> bool {
    if call.end.is_none() {
        return false;
    }
    match call.outcome {
        Outcome::Granted { .. } | Outcome::Left { .. } => true,
        Outcome::Renewed { .. } => matches!(call.operation, Operation::Renew { token: Some(_), .. }),
        Outcome::NotAcquired | Outcome::Written | Outcome::Error(_) | Outcome::Unknown => false,
    }
}

/// Why the count in the reply is impossible; `None` if the count is possible.
fn count_error(call: &Call, now: Possible, unordered: UnorderedEffects) -> Option<String> {
    let (least, most) = bounds_before(call, now, unordered);
    let can_be = |count: u32| (least..=most).contains(&count);
    match (&call.operation, &call.outcome) {
        (Operation::Acquire { holds: None, .. }, Outcome::Granted { holds, .. }) => {
            (!holds.checked_sub(1).is_some_and(can_be))
                .then(|| format!("{holds} holds, but one more than {least} to {most} is expected"))
        }
        (Operation::Acquire { holds: Some(named), .. }, Outcome::Granted { holds, .. }) => {
            let follows = named == holds && (can_be(*holds) || holds.checked_sub(1).is_some_and(can_be));
            (!follows).then(|| format!("{holds} holds after HOLDS {named}, with {least} to {most} before"))
        }
        (Operation::Release { released, .. }, Outcome::Left { holds: left }) => {
            let follows = match released {
                HoldsReleased::One => can_be(left.saturating_add(1)),
                // The lease may have ended before the release, so a reply of 0 is possible with any earlier count.
                HoldsReleased::Leaving(0) => *left == 0,
                HoldsReleased::Leaving(named) => {
                    named == left && (can_be(*left) || can_be(left.saturating_add(1)))
                }
                HoldsReleased::All => *left == 0 && most > 0,
            };
            (!follows).then(|| format!("{left} holds left, with {least} to {most} before"))
        }
        _ => None,
    }
}

/// The fewest and the most holds that were possible just before the call.
fn bounds_before(call: &Call, now: Possible, unordered: UnorderedEffects) -> (u32, u32) {
    let (fewest, most) = unordered.restored.unwrap_or((now.least, 0));
    let token = call.granted().map(|(token, _)| token);
    if token.is_some() && token != now.token {
        // The tenure is new. Before this call, only calls whose order is unknown can have added holds to the tenure.
        return (0, most.max(unordered.named).saturating_add(unordered.added));
    }
    let least =
        if unordered.taken || unordered.added > 0 || unordered.named > 0 { 0 } else { now.least.min(fewest) };
    (least, now.most.max(most).max(unordered.named).saturating_add(unordered.added))
}

fn possible_after(line: usize, call: &Call, now: Possible, unordered: UnorderedEffects) -> Possible {
    match call.outcome {
        Outcome::Granted { token, holds } => {
            Possible { token: Some(token), least: holds, most: holds, by: Some(line) }
        }
        Outcome::Left { holds } => Possible { least: holds, most: holds, by: Some(line), ..now },
        Outcome::Renewed { token } => {
            let (least, most) = bounds_before(call, now, unordered);
            Possible { token: Some(token), least, most, by: Some(line) }
        }
        Outcome::NotAcquired | Outcome::Written | Outcome::Error(_) | Outcome::Unknown => now,
    }
}
