//! Scenarios with their names.

use crate::stage::Stage;

/// A scenario and its name.
pub(super) type Named = (&'static str, fn(&Stage));

/// The functions with their names.
macro_rules! named {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}
pub(super) use named;
