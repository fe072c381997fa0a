//! Slices of time for background work.

use crate::server::mono;
use lockward_core::Instant;

/// The time that one kind of work may take in an iteration of the event loop. At least one piece of work is
/// always done.
#[derive(Clone, Copy)]
pub struct Slice {
    end: Instant,
}

impl Slice {
    /// A slice that begins now.
    pub fn of_micros(micros: i64) -> Self {
        Self { end: Instant::from_micros(mono().as_micros().saturating_add(micros)) }
    }

    pub fn is_over(self) -> bool {
        mono() >= self.end
    }
}
