//! How long randomized tests run.

use std::env;

/// The number of rounds of a randomized test: `short` by default, `long` if `LOCKWARD_LONG` is set.
pub fn rounds<N>(short: N, long: N) -> N {
    let asked = env::var_os("LOCKWARD_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    if asked { long } else { short }
}
