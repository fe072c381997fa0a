//! Times of the wall clock in the output.

use std::time::SystemTime;

use chrono::{DateTime, Local, SecondsFormat, Utc};

/// The time in the time zone of this machine: `2026-11-23 03:12:07.123`.
pub(crate) fn local(time: SystemTime) -> String {
    DateTime::<Local>::from(time).format("%Y-%m-%d %H:%M:%S%.3f").to_string()
}

/// The time in UTC, in the form of RFC 3339: `2026-11-23T02:12:07.123Z`.
pub(crate) fn utc(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Millis, true)
}
