//! Whether the server accepts a write that no client has sent.

use super::call_reply::CallReply;
use super::command::GATE;
use super::context::Context;
use super::key_name::KeyName;
use std::ffi::CStr;

/// Whether the server would accept the write now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteGate {
    /// The server would accept the write.
    Open,
    /// This node refuses writes now: for example because it is a replica, cannot write to its disk, or its cluster is
    /// down.
    Refused,
    /// This node does not serve the key.
    NotServed,
}

impl Context {
    /// Whether the server would accept a client's write to `name`, by its role, replicas, disk and cluster slots.
    ///
    /// The module asks by calling LOCK._GATE, a write command that does nothing. The module calls LOCK._GATE
    /// in the mode for scripts, in which the server makes the same checks as for clients. The server checks
    /// the slot last. So if the server refuses for another reason, the module asks about the slot separately.
    pub fn write_gate(self, name: &KeyName<'_>) -> WriteGate {
        let answer = self.call_gate(c"SEs", name);
        let ask_slot = answer == WriteGate::Refused;
        if ask_slot && self.slot_gate(name) == WriteGate::NotServed { WriteGate::NotServed } else { answer }
    }

    /// Whether this node of a cluster serves `name` now, even if writes are not allowed.
    pub fn slot_gate(self, name: &KeyName<'_>) -> WriteGate {
        self.call_gate(c"Es", name)
    }

    fn call_gate(self, mode: &CStr, name: &KeyName<'_>) -> WriteGate {
        // SAFETY: the argument matches the modes: one string of the server. `CallReply` owns the reply.
        let reply = unsafe {
            CallReply::new(api!(RedisModule_Call(self.as_ptr(), GATE.as_ptr(), mode.as_ptr(), name.as_ptr())))
        };
        match reply {
            None => WriteGate::Refused,
            Some(reply) => reply.error().map_or(WriteGate::Open, refusal),
        }
    }
}

/// Why the server refuses the write. `text` is the error of `RM_Call`.
fn refusal(text: &[u8]) -> WriteGate {
    const ELSEWHERE: &[u8] = b"non local key";
    let is_elsewhere = text.windows(ELSEWHERE.len()).any(|part| part == ELSEWHERE);
    if is_elsewhere { WriteGate::NotServed } else { WriteGate::Refused }
}
