//! The requests of clients.

use crate::holder::{Mode, Slots, Weight};
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
    /// The limit.
    pub slots: Slots,
    /// The weight, at most the limit. `None` for 1, or on re-entry for the weight that the tenure has.
    pub weight: Option<Weight>,
}

impl AcquireRequest {
    /// The mode of a new tenure.
    #[must_use]
    pub fn mode(&self) -> Mode {
        Mode { slots: self.slots, weight: self.weight.unwrap_or(Weight::ONE) }
    }
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
    /// A larger limit than the tenure has, so that others fit beside it. In quarantine and with a token: the limit of the tenure. A
    /// tenure that is restored without it is exclusive.
    pub slots: Option<Slots>,
    /// The weight of the tenure, at most the limit. `None` for the weight that it has; for a tenure that is restored, 1.
    pub weight: Option<Weight>,
}
