//! Two tenures of a lock never overlap.

use crate::bounds::Bounds;
use crate::history::History;
use crate::report::ms;
use crate::tenure::{Held, Tenure, tenures};
use crate::violation::{Check, Violation};

/// Claim: no two tenures of a key have definite-hold intervals that overlap.
///
/// A definite-hold interval begins when the first grant was read. It ends at the start of the first release that may have ended the tenure,
/// or at the time before which the lease cannot have ended, whichever is earlier. The server starts a lease after the call started,
/// so the interval lies within the server's tenure, and two that overlap are two holders at the same time. A call without a reply can
/// end an interval, but cannot begin one.
///
/// The claim does not hold where a failover may lose grants.
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
                    "{} held {} with token {} for at least {} more when {} had read its grant with token {}",
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
