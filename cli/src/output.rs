//! Standard output and standard error, and JSON.

use std::io::{self, Write};

use serde::Serialize;

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

/// Returns the value as one line of JSON: the fields of LOCK.INFO in snake_case, with times in milliseconds. serde_json
/// does not escape the invisible characters from U+007F on.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Failure> {
    let line = serde_json::to_string(value);
    let line = line.map_err(|error| Failure::new(format!("cannot write the output: {error}")))?;
    let mut escaped = String::with_capacity(line.len());
    for letter in line.chars() {
        if text::is_visible(letter) {
            escaped.push(letter);
        } else {
            letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped += &format!("\\u{unit:04x}"));
        }
    }
    Ok(escaped)
}
