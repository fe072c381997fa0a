//! What `--json` prints: the same names as LOCK.INFO, in snake_case, and times in milliseconds.

use serde::{Serialize, Serializer};

use crate::failure::Failure;
use crate::text;

/// A name: text, with what is none escaped as in tables.
pub(crate) fn name<S: Serializer>(name: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(name) {
        Ok(name) => serializer.serialize_str(name),
        Err(_) => serializer.serialize_str(&text::show(name)),
    }
}

/// One line.
pub(crate) fn line(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::new(format!("cannot write the output: {error}")))
}
