//! Correct and corrupted histories for the tests of the checker.

mod corrupt;
mod server;
mod world;

pub use corrupt::{ALL, Corruption, corrupt};

use crate::bounds::{Activity, Bounds};
use crate::history::{History, Nanos};

const MS: Nanos = 1_000_000;

/// A history of a correct server, with clients and faults. The same seed gives the same history.
pub fn correct_history(seed: u64) -> History {
    world::World::new(seed).run()
}

/// The bounds for the simulated server.
pub fn bounds() -> Bounds {
    Bounds {
        tolerance: 2 * MS,
        handoff: 5 * MS,
        answer: 5 * MS,
        settle: 300 * MS,
        minimum: Activity {
            grants: 20,
            handoffs: 1,
            lease_ends: 0,
            faults: 1,
            refused_writes: 0,
            shared: 1,
            kept: 0,
            stale_writes: 0,
        },
    }
}
