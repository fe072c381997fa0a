//! Standard output and standard error.

use std::io::{self, Write};

use crate::failure::Failure;
use crate::text;

/// Writes to standard output. A closed pipe is no failure: a reader such as head(1) may stop reading early.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes a message to standard error. Escapes control characters, because the server's error may contain them. If
/// nobody can read the message, the exit code still tells the outcome.
pub(crate) fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "lockward: {}", text::show(message.as_bytes()));
}
