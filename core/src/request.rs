//! The requests of clients.

use crate::holder::{Mode, Slots, Weight};
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::Span;

/// A request by LOCK.ACQUIRE.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// The owner that asks.
    pub owner: Owner,
    /// The lease, which begins at the grant.
    pub lease: Span,
    /// The count of holds after this acquisition, at least 1. `None` asks for one more hold.
    pub holds: Option<u32>,
    /// The limit.
    pub slots: Slots,
    /// The weight, at most the limit. `None` means 1, or on re-entry the weight of the tenure.
    pub weight: Option<Weight>,
}

impl AcquireRequest {
    /// The mode of a new tenure.
    #[must_use]
    pub fn mode(&self) -> Mode {
        Mode { slots: self.slots, weight: self.weight.unwrap_or(Weight::ONE) }
    }
}

/// A request by LOCK.RELEASE.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// The owner that releases.
    pub owner: Owner,
    /// How many holds the owner keeps.
    pub left: HoldsLeft,
    /// The token of the tenure to release; `None` for the present tenure.
    pub token: Option<FencingToken>,
}

/// How many holds a release leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldsLeft {
    /// One hold less than before.
    OneLess,
    /// This count of holds: one less than before, or the same as before when the request is repeated.
    Exactly(u32),
    /// No hold.
    None,
}

/// A request by LOCK.RENEW.
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// The owner that renews.
    pub owner: Owner,
    /// The lease from now on.
    pub lease: Span,
    /// The token of the tenure to renew; `None` for the present tenure. In quarantine,
    /// this may also be the token of a tenure to restore.
    pub token: Option<FencingToken>,
    /// In quarantine and with a token: the count of holds of the tenure. A tenure that is restored without this value
    /// has one hold.
    pub holds: Option<u32>,
    /// A limit that is larger than the limit of the tenure, so that other tenures fit beside this tenure. In
    /// quarantine and with a token: the limit of the tenure. A tenure that is restored without this value is
    /// exclusive.
    pub slots: Option<Slots>,
    /// The weight of the tenure, at most the limit. `None` keeps the weight of the tenure. In quarantine and with a
    /// token, `None` means weight 1 in two cases: the tenure is restored, or it is unconfirmed and the request names a
    /// limit.
    pub weight: Option<Weight>,
}
