//! Holds a history against what is promised. Each check is O(n log n) in the lines, and sound: an honest server, however
//! slow, paused or cut off, raises no violation. What each claims, and why it may, stands at its function.

mod answers;
mod counts;
mod overlap;
mod promptness;
mod queue;
mod store;
mod tokens;
mod vacuity;

pub use answers::every_call_is_answered;
pub use counts::hold_counts_add_up;
pub use overlap::tenures_never_overlap;
pub use promptness::a_freed_lock_reaches_a_waiter;
pub use queue::queue_order_is_grant_order;
pub use store::the_store_accepted_no_stale_write;
pub use tokens::{each_token_has_one_owner, tokens_rise_and_have_one_owner};
pub use vacuity::{enough_happened, measure_activity};

use crate::violation::Violation;
use crate::bounds::Bounds;
use crate::history::{Call, History};
use std::collections::BTreeMap;

/// All checks, one after the other.
#[must_use]
pub fn check(history: &History, bounds: &Bounds) -> Vec<Violation> {
    [
        tenures_never_overlap,
        tokens_rise_and_have_one_owner,
        hold_counts_add_up,
        queue_order_is_grant_order,
        a_freed_lock_reaches_a_waiter,
        every_call_is_answered,
        the_store_accepted_no_stale_write,
        enough_happened,
    ]
    .into_iter()
    .flat_map(|check| check(history, bounds))
    .collect()
}

/// A call and its line.
type IndexedCall<'h> = (usize, &'h Call);

/// The calls, group_calls by what the function says of them.
fn group_calls<'h, K: Ord>(history: &'h History, by: impl Fn(&'h Call) -> K) -> BTreeMap<K, Vec<IndexedCall<'h>>> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for (line, call) in history.calls() {
        groups.entry(by(call)).or_default().push((line, call));
    }
    groups
}
