//! Leases: how long they are, and when they end by this process's clock. All lengths are milliseconds.

use crate::error::Error;
use crate::time::{FAR_FUTURE, millis};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The lease if the caller gives none and may not ask the server for its default.
pub(crate) const FALLBACK_LEASE: Duration = Duration::from_secs(30);

/// How long the client tries to withdraw a grant whose lease it does not know.
pub(crate) const UNKNOWN_LEASE: Duration = Duration::from_secs(3_600);

/// The lease that an acquisition asks for.
#[derive(Clone, Copy)]
pub(crate) enum LeaseChoice {
    Given(u64),
    /// The server's default when the client last looked.
    Cached(u64),
    /// The server's default, which the client does not know.
    ServerDefault,
}

impl LeaseChoice {
    pub(crate) const fn millis(self) -> Option<u64> {
        match self {
            Self::Given(lease) | Self::Cached(lease) => Some(lease),
            Self::ServerDefault => None,
        }
    }
}

/// The server's default lease, as far as the client knows it. 0 is unknown.
#[derive(Default)]
pub(crate) struct DefaultLease(AtomicU64);

impl DefaultLease {
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|lease| *lease > 0)
    }

    pub(crate) fn set(&self, lease: u64) {
        self.0.store(lease, Ordering::Relaxed);
    }

    /// Forgets a lease that the server refuses, unless another one is known by now.
    pub(crate) fn forget(&self, refused: u64) {
        let _ = self.0.compare_exchange(refused, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The lease of a grant.
#[derive(Clone, Copy)]
pub(crate) struct GrantedLease {
    pub(crate) millis: u64,
    /// The server began to count the lease at this instant or later.
    pub(crate) counted_from: Instant,
    /// Whether the request named this lease. Otherwise it is the server's default.
    pub(crate) is_requested: bool,
}

/// How long a tenure lasts.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The lease that each renewal asks for.
    millis: AtomicU64,
    pub(crate) is_renewed: bool,
    /// No lease ends after this.
    pub(crate) hold_deadline: Option<Instant>,
}

impl Lease {
    pub(crate) const fn new(millis: u64, is_renewed: bool, hold_deadline: Option<Instant>) -> Self {
        Self { millis: AtomicU64::new(millis), is_renewed, hold_deadline }
    }

    pub(crate) fn millis(&self) -> u64 {
        self.millis.load(Ordering::Relaxed)
    }

    /// Whether the server has refused `refused` milliseconds as too long: its limit was lowered, or another server is the
    /// primary. Later requests ask for half of that.
    pub(crate) fn halve_if_too_long(&self, refused: u64, error: &Error) -> bool {
        let is_too_long = refused > 1 && error.is_lease_too_long();
        if is_too_long {
            self.millis.fetch_min(refused / 2, Ordering::Relaxed);
        }
        is_too_long
    }

    /// The lease to ask for at `now`. `None` when the hold limit is reached.
    pub(crate) fn to_request_at(&self, now: Instant) -> Option<u64> {
        let left = self.hold_deadline.map_or(u64::MAX, |end| millis(end.saturating_duration_since(now)));
        Some(self.millis().min(left)).filter(|millis| *millis > 0)
    }
}

/// When a lease ends by this process's clock. It counts from before the request was sent, as the server begins to count
/// later. It is shorter by a thousandth and a millisecond, as the server's clock may be faster.
pub(crate) fn lease_end(millis: u64, requested: Instant) -> Instant {
    let certain = Duration::from_millis(millis.saturating_sub(millis / 1_000 + 1));
    requested + certain.min(FAR_FUTURE)
}
