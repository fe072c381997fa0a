//! What must be carried out after one decision. The buffer is used again for the next decision.

use crate::server::BlockedClient;
use lockward_core::Decided;

#[derive(Default)]
pub struct EffectsBuffer {
    /// What core has decided.
    pub decided: Decided<BlockedClient>,
    /// The clients whose wait has ended. Their replies are pending.
    pub to_unblock: Vec<BlockedClient>,
}
