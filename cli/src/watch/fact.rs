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
    /// The owner holds the lock, and the watcher has received no event of its acquisition.
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
    Disconnected,
    Connected,
}

/// One line of the output.
#[derive(Serialize)]
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
}

impl Fact {
    fn new(event: What) -> Self {
        Self {
            time: SystemTime::now(),
            event,
            key: None,
            owner: None,
            token: None,
            mode: None,
            held_for: None,
            acquisitions: None,
            reason: None,
        }
    }

    /// A fact about the connection to a server.
    pub(super) fn of_server(event: What, reason: String) -> Self {
        Self { reason: Some(reason), ..Self::new(event) }
    }

    /// A fact about a lock.
    pub(super) fn of(key: &[u8], event: What) -> Self {
        Self { key: Some(Name(key.to_vec())), ..Self::new(event) }
    }

    /// A fact about a tenure.
    pub(super) fn of_holder(key: &[u8], holder: &Holder, event: What) -> Self {
        let Holder { owner, token, mode, .. } = holder.clone();
        Self { owner: Some(owner), token: Some(token), mode: Some(mode), ..Self::of(key, event) }
    }

    /// One line of text without a newline. The line begins with the local time: `2026-11-23 03:12:07.123`.
    pub(super) fn line(&self) -> String {
        let time = DateTime::<Local>::from(self.time);
        let mut line = time.format("%Y-%m-%d %H:%M:%S%.3f").to_string();
        if let Some(key) = &self.key {
            line += &format!("  {key}");
        }
        line += &match self.acquisitions {
            None => format!("  {:?}", self.event).to_lowercase(),
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
        line
    }
}

/// Serializes a time in UTC, in the form of RFC 3339: `2026-11-23T02:12:07.123Z`.
fn utc<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&DateTime::<Utc>::from(*time).to_rfc3339_opts(SecondsFormat::Millis, true))
}
