//! Why a subcommand gave up.

use std::{fmt, io};

use redis::RedisError;

/// One line for the person at the terminal: what went wrong and, where there is one, what to do next.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        if error.is_io_error() || error.is_connection_dropped() {
            Self(format!("lost the connection to the server: {error}"))
        } else {
            Self(format!("the server refused a command: {error}"))
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(format!("cannot write the output: {error}"))
    }
}
