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
            Self::new(format!("lost the connection to the server: {}", cause(&error)))
        } else {
            Self::new(format!("the server refused a command: {error}"))
        }
    }
}

/// Why a connection failed. The system's text for a timeout, "Resource temporarily unavailable", would not help.
pub(crate) fn cause(error: &RedisError) -> String {
    if error.is_timeout() { "no reply in time".to_owned() } else { error.to_string() }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(format!("input or output failed: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_called_so() {
        let failure = Failure::from(RedisError::from(io::Error::from(io::ErrorKind::WouldBlock)));
        assert_eq!(failure.to_string(), "lost the connection to the server: no reply in time");
    }
}
