//! A change to one holder of a lock. Everything that happens to a lock is a series of changes.

use crate::holder::Holder;
use crate::token::FencingToken;

/// A change to one holder, or the end of all tenures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The owner now holds the lock with these values, after a grant, a restoration, a renewal, or a re-entry that
    /// extends the lease.
    Put(Holder),
    /// The tenure with this token now has this many holds. The lease does not change.
    Count(FencingToken, u32),
    /// The tenure with this token is over.
    End(FencingToken, End),
    /// All tenures end, because their leases are over.
    AllOver,
}

impl Change {
    /// Whether a lease begins.
    #[must_use]
    pub const fn begins_lease(&self) -> bool {
        matches!(self, Self::Put(_))
    }
}

/// Why a tenure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The tenure was released or taken back, or it did not fit beside a restored tenure.
    Released,
    /// The lease of the tenure was over.
    LeaseOver,
}
