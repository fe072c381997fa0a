//! The output of `--json`: the fields of LOCK.INFO in snake_case, with times in milliseconds.

use serde::Serialize;

use crate::failure::Failure;
use crate::text;

/// Returns the value as one line of JSON. serde_json does not escape the invisible characters from U+007F on.
pub(crate) fn line(value: &impl Serialize) -> Result<String, Failure> {
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
