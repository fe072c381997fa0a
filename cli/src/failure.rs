//! The error of a subcommand.

use std::{fmt, io};

use redis::RedisError;

/// One line for the user. The line says what went wrong and, if possible, what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    line: String,
    /// The exit code. `None` means the usual code of the subcommand.
    pub(crate) code: Option<u8>,
}

impl Failure {
    pub(crate) fn new(line: impl Into<String>) -> Self {
        Self { line: line.into(), code: None }
    }

    /// The same failure with this exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code: Some(code), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        if error.is_io_error() || error.is_connection_dropped() {
            Self::new(format!("lost the connection to the server: {error}"))
        } else {
            Self::new(format!("the server refused a command: {error}"))
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(format!("input or output failed: {error}"))
    }
}
