//! The world: its rules, and how much may happen in it.

use crate::node::Rules;
use crate::state::{Budget, State};
use lockward_core::Slots;

/// What happens to the primary when its replica is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldPrimary {
    /// The old primary has crashed, or no client can reach it.
    Gone,
    /// The old primary is cut off from its replica, but owners still reach it.
    CutOff {
        /// How many ticks after the cut the old primary still takes writes (min-replicas-max-lag).
        writes_for: u64,
        /// How many ticks after the cut the replica is promoted at the earliest.
        promoted_after: u64,
    },
}

/// The condition under which the token of a new tenure must be larger than all earlier tokens, after a restart or a
/// promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenPromise {
    /// The wall clock of the server shows a later time than the wall clock of the granting server showed at the last
    /// grant.
    PastTheLastGrant,
    /// The wall clock of the server shows a later time than the wall clock of any granting server showed at its grants.
    PastEveryGrant,
}

/// A world: its rules, and how much may happen in it.
#[derive(Clone, Debug)]
pub struct World {
    pub rules: Rules,
    /// The largest count of holds that an owner acquires.
    pub most_holds: u32,
    /// Whether owners wait for a lock that is busy.
    pub waits: bool,
    /// The limit to which an owner may raise its own limit. `None` if there are no downgrades.
    pub downgrade: Option<Slots>,
    /// How many ticks after the end of its lease an owner may still renew. 0 if owners renew only before the end.
    pub late: u64,
    pub replica: bool,
    pub old_primary: OldPrimary,
    pub token_promise: TokenPromise,
    /// The numbers of ticks by which a wall clock may be set.
    pub clock_steps: &'static [i64],
    pub budget: Budget,
    /// The tick at which the world ends.
    pub end: u64,
    /// How many tenures there may be.
    pub most_tenures: u32,
}

impl World {
    /// Whether a server takes writes. A primary that knows that it is cut off takes no writes.
    pub(crate) fn takes_writes(&self, state: &State, node: usize) -> bool {
        let connected = match (state.cut, self.old_primary) {
            (Some(cut), OldPrimary::CutOff { writes_for, .. }) => state.tick <= cut + writes_for,
            (None, _) | (_, OldPrimary::Gone) => true,
        };
        node == state.primary && node == 1 || node == 0 && connected && self.is_reached(state, 0)
    }

    /// Whether owners can reach a server as a primary.
    pub(crate) fn is_reached(&self, state: &State, node: usize) -> bool {
        node == state.primary || (node == 0 && self.old_primary != OldPrimary::Gone)
    }
}
