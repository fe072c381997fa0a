//! The lines that the watcher prints, as text or JSON.

use std::time::SystemTime;

use chrono::{DateTime, Local, SecondsFormat, Utc};
use serde::{Serialize, Serializer};

use crate::duration;
use crate::locks::{Holder, Mode};
use crate::text::Name;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// The owner held the lock when the watcher started, or when RENAME, MOVE or RESTORE created the key.
    Held,
    Acquired,
    Released,
    /// The lease ended.
    Lost,
    /// The key was deleted, renamed, moved or overwritten.
    Broken,
    /// The tenure is over, and the watcher does not know why.
    Ended,
    /// Tenures or holds began and ended before the watcher read the lock.
    Unseen,
    /// A server does not publish the needed events.
    EventsOff,
    Disconnected,
    Connected,
}

impl What {
    /// The word in the text output: the name that JSON uses, with a space in place of `_`.
    fn word(self) -> String {
        serde_json::to_string(&self).unwrap_or_default().trim_matches('"').replace('_', " ")
    }
}

/// One line of the output.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fact {
    #[serde(serialize_with = "utc")]
    pub(super) time: SystemTime,
    pub(super) event: What,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<Name>,
    /// The owner that holds or held the lock, and its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<u64>,
    #[serde(flatten)]
    pub(super) mode: Option<Mode>,
    /// How long the tenure had lasted, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_for: Option<u64>,
    /// The number of acquisitions that have no separate line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) acquisitions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// Whether the watcher found the change only when it read the lock again, because no event reported the change.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) found_later: bool,
}

impl Fact {
    /// A fact without details.
    pub(super) fn new(time: SystemTime, event: What) -> Self {
        Self {
            time,
            event,
            key: None,
            owner: None,
            token: None,
            mode: None,
            held_for: None,
            acquisitions: None,
            reason: None,
            found_later: false,
        }
    }

    /// A fact about a lock.
    pub(super) fn of(key: &[u8], time: SystemTime, event: What) -> Self {
        Self { key: Some(Name(key.to_vec())), ..Self::new(time, event) }
    }

    /// A fact about a tenure.
    pub(super) fn of_holder(key: &[u8], holder: &Holder, time: SystemTime, event: What) -> Self {
        let Holder { owner, token, mode, .. } = holder.clone();
        Self { owner: Some(owner), token: Some(token), mode: Some(mode), ..Self::of(key, time, event) }
    }

    /// A fact about the connection to a server.
    pub(super) fn of_server(event: What, reason: String) -> Self {
        Self { reason: Some(reason), ..Self::new(SystemTime::now(), event) }
    }

    /// One line of text without a newline. The line begins with the local time: `2026-11-23 03:12:07.123`.
    pub(super) fn line(&self) -> String {
        let time = DateTime::<Local>::from(self.time);
        let mut line = time.format("%Y-%m-%d %H:%M:%S%.3f").to_string();
        if let Some(key) = &self.key {
            line += &format!("  {key}");
        }
        line += &match self.acquisitions {
            None => format!("  {}", self.event.word()),
            Some(1) => "  acquired and ended, owner not seen".to_owned(),
            Some(count) => format!("  acquired and ended {count} times, owners not seen"),
        };
        if let (Some(owner), Some(token)) = (&self.owner, self.token) {
            line += &format!("  {owner}  token {token}");
        }
        if let Some(mode) = self.mode.filter(|mode| !mode.is_exclusive()) {
            line += &format!("  {mode}");
        }
        if let Some(ms) = self.held_for {
            line += &format!("  held for {}", duration::show_ms(ms));
        }
        if let Some(reason) = &self.reason {
            line += &format!("  {reason}");
        }
        if self.found_later {
            line += "  (found later)";
        }
        line
    }
}

/// Serializes a time in UTC, in the form of RFC 3339: `2026-11-23T02:12:07.123Z`.
fn utc<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&DateTime::<Utc>::from(*time).to_rfc3339_opts(SecondsFormat::Millis, true))
}
