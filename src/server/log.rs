//! The server's log.

use std::ffi::{CStr, CString};
use std::ptr;

/// The level of a log line.
#[derive(Clone, Copy, Debug)]
pub enum Level {
    Notice,
    /// Something that the operator should check.
    Warning,
}

impl Level {
    const fn name(self) -> &'static CStr {
        match self {
            Self::Notice => c"notice",
            Self::Warning => c"warning",
        }
    }
}

/// Writes one line to the server's log. The text may contain any characters, because it is passed as an
/// argument and not as a format.
pub fn log(level: Level, text: &str) {
    let text: Vec<u8> = text.bytes().map(|byte| if byte < b' ' { b' ' } else { byte }).collect();
    let Ok(text) = CString::new(text) else { return };
    // SAFETY:
    // - the format is constant and names exactly the one string that follows;
    // - logging needs no context. Without a context the server does not add the module's name, so the text
    //   contains the name.
    unsafe {
        api!(RedisModule_Log(ptr::null_mut(), level.name().as_ptr(), c"<lock> %s".as_ptr(), text.as_ptr()))
    };
}
