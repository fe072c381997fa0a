//! What one decision leaves to be carried out. The buffer is used again for the next decision.

use crate::server::BlockedClient;
use lockward_core::{Effects, Waits};

/// What one decision leaves to be carried out.
#[derive(Default)]
pub struct EffectsBuffer {
    /// What core has decided.
    pub effects: Effects<BlockedClient>,
    /// The wait queue of the lock, if it has one.
    pub waits: Option<Waits>,
    /// The clients whose wait has ended. Their replies are pending.
    pub to_unblock: Vec<BlockedClient>,
}
