//! The time after a start or a promotion in which nothing new is granted.
//!
//! A server that has just started, or a replica that has just been promoted, may have forgotten grants. For as long as
//! the longest lease can last it grants no new tenure; holders re-enter, renew and release, and restore by their token
//! what was forgotten. Afterwards every forgotten lease has ended by itself.

use crate::token::FencingToken;
use crate::units::{Instant, Now, Span};

/// When the quarantine began, and how long it is set to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quarantine {
    began: Instant,
    length: Span,
    /// All that was known by then is only remembered.
    remembered: Instant,
}

impl Quarantine {
    /// A quarantine of `length` from `began`; zero is none.
    #[must_use]
    pub const fn new(began: Instant, length: Span) -> Self {
        Self { began, length, remembered: began }
    }

    /// Begins again: the server has been promoted.
    pub const fn restart(&mut self, now: Instant) {
        self.began = now;
        self.remembered = now;
    }

    /// Data has been loaded: what it says is only remembered. How long the quarantine lasts does not change.
    pub const fn loaded(&mut self, now: Instant) {
        self.remembered = now;
    }

    /// Whether what has happened at an instant is only remembered.
    #[must_use]
    pub fn remembers(&self, then: Instant) -> bool {
        then <= self.remembered
    }

    /// Sets how long it lasts, holds_named from when it began.
    pub const fn set_length(&mut self, length: Span) {
        self.length = length;
    }

    /// The instant it ends, when that is still to come.
    #[must_use]
    pub fn ends(&self, now: Instant) -> Option<Instant> {
        if self.length == Span::default() {
            return None;
        }
        let end = self.began.after(self.length);
        (now < end).then_some(end)
    }

    /// Whether new tenures are withheld now.
    #[must_use]
    pub fn in_force(&self, now: Now) -> bool {
        self.ends(now.mono).is_some()
    }
}

/// What a server has itself seen of a lock's tenures since its quarantine began. All else it only remembers, and it may
/// remember too little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuarantineMemory {
    /// The largest token that is not to be restored any more, nor any older one: a tenure given back or broken is over.
    /// One whose lease was over here may still come back, as it may have been renewed where this server has not heard of
    /// it; but nothing older may.
    pub ended: Option<FencingToken>,
    /// The latest tenure that its owner has renewed: it goes on.
    pub renewed: Option<FencingToken>,
    /// The latest tenure whose owner has named its count of holds.
    pub holds_named: Option<FencingToken>,
}

impl QuarantineMemory {
    /// Whether nothing has been seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What has been seen in all.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            ended: self.ended.max(other.ended),
            renewed: self.renewed.max(other.renewed),
            holds_named: self.holds_named.max(other.holds_named),
        }
    }

    /// What it says of tenures after the one with this token.
    #[must_use]
    pub fn after(self, token: FencingToken) -> Self {
        let later = |seen: &FencingToken| *seen > token;
        Self {
            ended: self.ended.filter(later),
            renewed: self.renewed.filter(later),
            holds_named: self.holds_named.filter(later),
        }
    }
}
