//! Why a subcommand gave up.

use std::{fmt, io};

use redis::RedisError;

/// One line for the person at the terminal: what went wrong and, where there is one, what to do next. And the exit code.
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

    /// The same with another exit code.
    pub(crate) fn exit(self, code: u8) -> Self {
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

/// As shells tell of a process that a signal has ended.
pub(crate) fn code_of_signal(number: i32) -> u8 {
    u8::try_from(number).map_or(u8::MAX, |number| number.saturating_add(128))
}
