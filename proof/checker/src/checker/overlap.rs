//! Two tenures of a lock never overlap.

use crate::violation::{Violation, Check};
use crate::bounds::Bounds;
use crate::history::History;
use crate::report::ms;
use crate::tenure::{Held, Tenure, tenures};

/// Claim: no two tenures of a key have definite-hold intervals that share an instant.
///
/// A definite-hold interval runs from the reading of the first grant to the start of the first release that can have
/// been the last, or to the instant before which the lease cannot have ended, if that is earlier. The server counts a
/// lease from some instant after the call started, so the interval lies inside the tenure as the server knew it, and two
/// that overlap are two holders at once. A call without an answer can end an interval, but never begins one.
///
/// It says nothing about grants that a failover may lose: there the promise itself is a weaker one.
#[must_use]
pub fn tenures_never_overlap(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let tenures = tenures(history, bounds);
    let mut violations = Vec::new();
    for of_key in tenures.chunk_by(|one, other| one.key == other.key) {
        let mut held: Vec<_> = of_key.iter().filter_map(|tenure| Some((tenure.held?, tenure))).collect();
        held.sort_by_key(|(held, tenure)| (held.from, tenure.line));
        let mut longest: Option<(Held, &Tenure<'_>)> = None;
        for (now, tenure) in held {
            if let Some((before, earlier)) = longest.filter(|(before, _)| now.from < before.to) {
                let lines = [earlier.line, before.by, tenure.line, now.by];
                let what = format!(
                    "{} held {} with token {} for {} more at least when {} had heard that it was granted it with token {}",
                    earlier.owner,
                    tenure.key,
                    earlier.token,
                    ms(before.to - now.from),
                    tenure.owner,
                    tenure.token
                );
                violations.push(Violation::new(Check::Overlap, history, lines, what));
            }
            if longest.is_none_or(|(before, _)| before.to < now.to) {
                longest = Some((now, tenure));
            }
        }
    }
    violations
}
