//! The black-box scenarios. Each name is a claim about a client on real servers.

mod deployments;
mod exclusion;
mod kinds;
mod leaving;
mod losing;
mod turns;
mod waiting;

use crate::stage::Stage;

/// A scenario and its name.
pub(crate) type Named = (&'static str, fn(&Stage));

/// The functions with their names.
macro_rules! named {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}
pub(crate) use named;

/// All scenarios. Those that take longest come first.
pub(crate) fn all() -> impl Iterator<Item = Named> {
    let lists: [&[Named]; 6] =
        [deployments::ALL, exclusion::ALL, losing::ALL, waiting::ALL, leaving::ALL, kinds::ALL];
    lists.into_iter().flatten().copied()
}
