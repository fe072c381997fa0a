//! Histories to try the checker with: of an honest server, and broken in one way each.

mod corrupt;
mod server;
mod world;

pub use corrupt::{Corruption, corrupt};

use crate::bounds::{Bounds, Activity};
use crate::history::{History, Nanos};

const MS: Nanos = 1_000_000;

/// A history of an honest server, its clients and their faults; the same for the same seed.
#[must_use]
pub fn correct_history(seed: u64) -> History {
    world::World::new(seed).run()
}

/// The bounds that the simulated server keeps to.
#[must_use]
pub fn bounds() -> Bounds {
    Bounds {
        tolerance: 2 * MS,
        handoff: 5 * MS,
        answer: 5 * MS,
        settle: 300 * MS,
        minimum: Activity { grants: 20, handoffs: 1, lease_ends: 1, faults: 1, refused_writes: 0 },
    }
}
