//! The black-box scenarios. The name of a scenario is a claim about a client on real servers.

mod deployments;
mod exclusion;
mod kinds;
mod leaving;
mod losing;
mod named;
mod turns;
mod waiting;

use crate::stage::Stage;
use named::Named;

/// All scenarios. The slowest come first.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, fn(&Stage))> {
    let lists: [&[Named]; 6] =
        [deployments::ALL, exclusion::ALL, losing::ALL, waiting::ALL, leaving::ALL, kinds::ALL];
    lists.into_iter().flatten().copied()
}
