//! The names of the module's internal commands, which the module itself sends or calls.

use std::ffi::CStr;

/// Carries changes of a lock to replicas and the AOF.
pub const APPLY: &CStr = c"LOCK._APPLY";

/// Asks the server whether it accepts a write.
pub const GATE: &CStr = c"lock._gate";
