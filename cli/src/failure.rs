//! The error of a subcommand.

use std::{fmt, io};

use redis::RedisError;

/// The exit code, and one line for the user. The line says what went wrong and, if possible, what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    line: String,
    code: u8,
}

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(line: impl Into<String>) -> Self {
        Self { line: line.into(), code: 1 }
    }

    /// The same failure with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    pub(crate) const fn code(&self) -> u8 {
        self.code
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
        Self::new(format!("cannot write the output: {error}"))
    }
}
