//! The quarantine: a time after a start or a promotion in which the server grants no new tenure.
//!
//! A server that has just started, and a replica that has just been promoted, may lack grants that were made before. The
//! quarantine is set to at least the longest lease. Meanwhile holders can re-enter, renew and release, and can restore a lost
//! tenure by its token. When the quarantine is over, the leases of all lost tenures are over too.

use crate::token::FencingToken;
use crate::units::{Instant, Now, Span};

/// When the quarantine began, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quarantine {
    began: Instant,
    length: Span,
    /// Tenures that began at this instant or before it are unconfirmed.
    unconfirmed_until: Instant,
}

impl Quarantine {
    /// A quarantine of `length` from `began`. A length of zero is no quarantine.
    #[must_use]
    pub const fn new(began: Instant, length: Span) -> Self {
        Self { began, length, unconfirmed_until: began }
    }

    /// Begins again, since the server was promoted.
    pub const fn restart(&mut self, now: Instant) {
        self.began = now;
        self.unconfirmed_until = now;
    }

    /// Data was loaded: the tenures in it are unconfirmed. The end of the quarantine does not change.
    pub const fn loaded(&mut self, now: Instant) {
        self.unconfirmed_until = now;
    }

    /// Whether a tenure that began at `since` is from before the quarantine.
    #[must_use]
    pub fn is_unconfirmed(&self, since: Instant) -> bool {
        since <= self.unconfirmed_until
    }

    /// Sets the length, counted from the instant at which the quarantine began.
    pub const fn set_length(&mut self, length: Span) {
        self.length = length;
    }

    /// The instant at which it ends; `None` when it is over.
    #[must_use]
    pub fn ends(&self, now: Instant) -> Option<Instant> {
        if self.length == Span::default() {
            return None;
        }
        let end = self.began.after(self.length);
        (now < end).then_some(end)
    }

    /// Whether the server grants no new tenure now.
    #[must_use]
    pub fn in_force(&self, now: Now) -> bool {
        self.ends(now.mono).is_some()
    }
}

/// What a server has observed of a lock's tenures in this quarantine. Its stored data are from before, and may be out of date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuarantineMemory {
    /// No tenure with this token or a smaller one can be restored.
    ///
    /// A tenure that was released or broken is over. A tenure whose lease was over here may be restored, as its owner may have
    /// renewed it where this server did not see it; the tenures before it may not.
    pub ended: Option<FencingToken>,
    /// The latest tenure that its owner has renewed: it is confirmed.
    pub renewed: Option<FencingToken>,
    /// The latest tenure whose owner has named its count of holds: its count is confirmed.
    pub holds_named: Option<FencingToken>,
}

impl QuarantineMemory {
    /// Whether nothing was observed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The observations of both.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            ended: self.ended.max(other.ended),
            renewed: self.renewed.max(other.renewed),
            holds_named: self.holds_named.max(other.holds_named),
        }
    }

    /// The observations of tenures after the one with this token.
    #[must_use]
    pub fn after(self, token: FencingToken) -> Self {
        let is_later = |other: &FencingToken| *other > token;
        Self {
            ended: self.ended.filter(is_later),
            renewed: self.renewed.filter(is_later),
            holds_named: self.holds_named.filter(is_later),
        }
    }
}
