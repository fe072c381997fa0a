//! The checks. Each check takes O(n log n) for n lines. Each check is sound: it finds no violation by a correct server,
//! even if the server is slow, paused or disconnected. The doc comment of each check states its claim and the reason
//! why the claim holds.

mod answers;
mod counts;
mod guard;
mod index;
mod overlap;
mod promptness;
mod queue;
mod renewals;
mod tokens;
mod vacuity;

pub use answers::every_call_is_answered;
pub use counts::hold_counts_add_up;
pub use guard::{
    guarded_data_is_in_order, stale_writes, the_guard_is_right, the_guard_is_right_between_faults,
};
pub use overlap::tenures_never_overlap;
pub use promptness::a_freed_lock_reaches_a_waiter;
pub use queue::queue_order_is_grant_order;
pub use renewals::a_holder_can_renew;
pub use tokens::tokens_grow_and_have_one_owner;
pub use vacuity::{enough_happened, measure_activity};

use crate::bounds::Bounds;
use crate::history::History;
use crate::violation::Violation;

/// Runs the checks for servers that forget nothing. [`the_guard_is_right_between_faults`] is not among them, because it is
/// a weaker form of one of these checks.
pub fn check(history: &History, bounds: &Bounds) -> Vec<Violation> {
    [
        tenures_never_overlap,
        tokens_grow_and_have_one_owner,
        hold_counts_add_up,
        queue_order_is_grant_order,
        a_freed_lock_reaches_a_waiter,
        every_call_is_answered,
        a_holder_can_renew,
        the_guard_is_right,
        guarded_data_is_in_order,
        enough_happened,
    ]
    .into_iter()
    .flat_map(|check| check(history, bounds))
    .collect()
}
