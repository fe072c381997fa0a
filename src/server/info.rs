//! What the module reads from the server's INFO.

use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::ptr;

/// The major and the minor version in a field of the section `server`; `None` when the server has no such field.
pub fn version(field: &CStr) -> Option<[u32; 2]> {
    let version = text(c"server", field)?;
    let mut numbers = version.split(|byte| *byte == b'.').map(|part| str::from_utf8(part).ok()?.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

/// Whether the server leaves a client of MOVE or COPY in the other database if a module is subscribed to the
/// events of these commands. This is a fault of Valkey 8.1, fixed in 9.1 (`moduleNotifyKeyspaceEvent`). The
/// authors have not read the source of 9.0.
pub fn events_move_clients() -> bool {
    version(c"valkey_version").is_some_and(|version| ([8, 1]..[9, 1]).contains(&version))
}

/// Counts of the server that grow until CONFIG RESETSTAT sets them to 0. After a reset, one count may exceed
/// its old value again before the next check. It is very unlikely that all three counts exceed their old values.
pub fn monotonic_stats() -> [u64; 3] {
    let section = Section::new(c"stats");
    [c"total_connections_received", c"total_commands_processed", c"total_net_input_bytes"]
        .map(|field| section.number(field).unwrap_or_default())
}

/// A field of a section; `None` when the server has no such field.
pub fn text(section: &CStr, field: &CStr) -> Option<Vec<u8>> {
    let section = Section::new(section);
    // SAFETY: the text belongs to the section, and the module copies it while the section lives.
    unsafe {
        let text = api!(RedisModule_ServerInfoGetFieldC(section.0, field.as_ptr()));
        (!text.is_null()).then(|| CStr::from_ptr(text).to_bytes().to_vec())
    }
}

/// A section of INFO.
pub struct Section(*mut raw::RedisModuleServerInfoData);

impl Section {
    pub fn new(name: &CStr) -> Self {
        // SAFETY: the API allows a null context.
        Self(unsafe { api!(RedisModule_GetServerInfo(ptr::null_mut(), name.as_ptr())) })
    }

    /// The number in a field; `None` when there is no such field.
    pub fn number(&self, field: &CStr) -> Option<u64> {
        let mut status: c_int = 0;
        // SAFETY: the server returned this section in `new`, and it is still valid.
        let number =
            unsafe { api!(RedisModule_ServerInfoGetFieldUnsigned(self.0, field.as_ptr(), &raw mut status)) };
        (status == raw::REDISMODULE_OK as c_int).then_some(number)
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        // SAFETY: the server returned this section in `new`, and it is freed once.
        unsafe { api!(RedisModule_FreeServerInfo(ptr::null_mut(), self.0)) };
    }
}
