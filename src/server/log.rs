//! The server's log.

use std::ffi::{CStr, CString};
use std::ptr;

/// Reports to the operator something that the operator should check.
pub fn warn(text: &str) {
    log(c"warning", text);
}

/// Writes a line that needs no action.
pub fn notice(text: &str) {
    log(c"notice", text);
}

/// Writes one line to the server's log. The text may contain any characters, because it is passed as an
/// argument and not as a format.
fn log(level: &CStr, text: &str) {
    let text: Vec<u8> = text.bytes().map(|byte| if byte < b' ' { b' ' } else { byte }).collect();
    let Ok(text) = CString::new(text) else { return };
    // SAFETY:
    // - the format is constant and names exactly the one string that follows;
    // - logging needs no context. Without a context the server does not add the module's name, so the text
    //   contains the name.
    unsafe { api!(RedisModule_Log(ptr::null_mut(), level.as_ptr(), c"<lock> %s".as_ptr(), text.as_ptr())) };
}
