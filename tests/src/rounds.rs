//! How much a test does.

use std::env;

/// What a test that tries its luck many times goes by: `short` as a rule, `long` where `LOCKWARD_LONG` asks for it.
pub fn rounds<N>(short: N, long: N) -> N {
    let asked = env::var_os("LOCKWARD_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    if asked { long } else { short }
}
