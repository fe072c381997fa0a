//! The cluster of which this server is a node.

use super::call_reply::CallReply;
use super::context::Context;

/// The state of a cluster, as one of its nodes sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// Each slot has a node that serves it.
    Up,
    /// Some slots have no node. Nodes serve the other slots (`cluster-require-full-coverage no`).
    SlotsMissing,
    /// No node serves any key.
    Down,
}

/// The state of the cluster, from CLUSTER INFO. If the reply does not name the state, the cluster counts as up.
pub fn cluster_state(context: Context) -> ClusterState {
    // SAFETY: the argument matches the format: one C string. `CallReply` owns the reply.
    let reply = unsafe {
        let (command, part) = (c"CLUSTER".as_ptr(), c"INFO".as_ptr());
        CallReply::new(api!(RedisModule_Call(context.as_ptr(), command, c"c".as_ptr(), part)))
    };
    let Some(reply) = reply else { return ClusterState::Up };
    let text = reply.root().text();
    let has = |line: &[u8]| text.windows(line.len()).any(|part| part == line);
    if has(b"cluster_state:fail") {
        ClusterState::Down
    } else if has(b"cluster_slots_assigned:") && !has(b"cluster_slots_assigned:16384") {
        ClusterState::SlotsMissing
    } else {
        ClusterState::Up
    }
}
