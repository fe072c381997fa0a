//! The error of a subcommand.

use std::{fmt, io};

use redis::RedisError;

use crate::text;

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

    /// The failures of all servers that were asked, in one line.
    pub(crate) fn all<'a>(failures: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut lines: Vec<&str> = failures.into_iter().map(|failure| &*failure.line).collect();
        if lines.is_empty() {
            return Self::new("no primary of the cluster serves the key");
        }
        lines.sort_unstable();
        lines.dedup();
        Self::new(lines.join("; "))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::new(format!("a request to the server failed: {}", reason(&error)))
    }
}

/// Why a request failed: the text of the server's error, or of the system's error. `top` and `watch` show this text, so
/// control characters are escaped.
pub(crate) fn reason(error: &RedisError) -> String {
    let reason = match (error.code(), error.detail()) {
        // The system's text for a timeout, "Resource temporarily unavailable", would not help.
        _ if error.is_timeout() => "no answer in time".to_owned(),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        // The redis crate adds the kind of its own errors, such as `InvalidClientConfig`.
        _ => error.to_string().replacen(&format!(" - {:?}", error.kind()), "", 1),
    };
    text::show(reason.as_bytes())
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(format!("input or output failed: {error}"))
    }
}
