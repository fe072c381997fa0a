//! A holder can renew its lease, also at a server that has forgotten the tenure.

use crate::bounds::Bounds;
use crate::history::{History, Operation, Outcome};
use crate::tenure::tenures;
use crate::violation::{Check, Violation};
use std::collections::HashMap;

/// Claim: if a tenure was certainly held during the whole call of a renewal with its TOKEN, the reply is not NOTHELD. A
/// server in quarantine that has forgotten the tenure restores it. A tenure is certainly held in the span
/// [`Tenure::held`](crate::tenure::Tenure::held).
///
/// The claim does not hold if a failover may lose grants.
pub fn a_holder_can_renew(history: &History, bounds: &Bounds) -> Vec<Violation> {
    let tenures = tenures(history, bounds);
    let by_token: HashMap<_, _> = tenures.iter().map(|tenure| ((tenure.key, tenure.token), tenure)).collect();
    let refused = history.calls().filter_map(|(line, call)| {
        let Operation::Renew { token: Some(token), .. } = call.operation else { return None };
        let tenure = by_token.get(&(call.key.as_str(), token))?;
        let held = tenure.held_during(call)?;
        (call.outcome == Outcome::Error("NOTHELD".to_owned())).then(|| {
            let what = format!("{} held {} with token {token}, but could not renew", call.owner, call.key);
            Violation::new(Check::Renewals, history, [tenure.line, held.by, line], what)
        })
    });
    refused.collect()
}
