//! What one decision leaves to be carried out. The buffer is used again for the next decision.

use crate::server::BlockedClient;
use lockward_core::{Effects, Instant, LockName, QueueId};

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

/// The wait queue of the lock.
pub struct Waits {
    /// The queue.
    pub queue: QueueId,
    /// The lock.
    pub lock: LockName,
    /// When the lock must be checked again for those who still wait.
    pub due: Option<Instant>,
}
