//! The output of `--json`: the fields of LOCK.INFO in snake_case, with times in milliseconds.

use serde::{Serialize, Serializer};

use crate::failure::Failure;
use crate::text;

/// Serializes a key or an owner. A name that is not UTF-8 is escaped as in tables.
pub(crate) fn name<S: Serializer>(name: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(name) {
        Ok(name) => serializer.serialize_str(name),
        Err(_) => serializer.serialize_str(&text::show(name)),
    }
}

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
