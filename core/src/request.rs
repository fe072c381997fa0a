//! The requests of clients.

use crate::holder::Slots;
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::Span;

/// LOCK.ACQUIRE.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// The owner that asks.
    pub owner: Owner,
    /// The lease, which begins at the grant.
    pub lease: Span,
    /// The count of holds that this acquisition leads to, from 1 on. `None` asks for one more.
    pub holds: Option<u32>,
    /// The limit: how many owners may hold the lock at once.
    pub slots: Slots,
}

/// LOCK.RELEASE.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// The owner that releases.
    pub owner: Owner,
    /// How many holds it keeps.
    pub left: HoldsLeft,
    /// The tenure that it means; `None` for the present one.
    pub token: Option<FencingToken>,
}

/// How many holds a release leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldsLeft {
    /// One less than before.
    OneLess,
    /// This count. It is one less than before, or the same count when the request is repeated.
    Exactly(u32),
    /// None.
    None,
}

/// LOCK.RENEW.
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// The owner that renews.
    pub owner: Owner,
    /// The lease from now on.
    pub lease: Span,
    /// The tenure that it means; `None` for the present one. In quarantine, the tenure to restore.
    pub token: Option<FencingToken>,
    /// In quarantine and with a token: the count of holds of the tenure. A tenure that is restored without it has one hold.
    pub holds: Option<u32>,
}
