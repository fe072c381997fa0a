//! What is asked of a lock.

use crate::lock::Slots;
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::Span;

/// LOCK.ACQUIRE.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// Who wants the lock.
    pub owner: Owner,
    /// The lease from the grant on.
    pub lease: Span,
    /// The count of holds it should lead to, from 1 on; one more when not named.
    pub holds: Option<u32>,
    /// The number of owners it allows.
    pub slots: Slots,
}

/// LOCK.RELEASE.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// Who gives the lock back.
    pub owner: Owner,
    /// How many holds are to be left.
    pub left: HoldsLeft,
    /// The tenure it must be.
    pub token: Option<FencingToken>,
}

/// How many holds a release is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldsLeft {
    /// One less than there are.
    OneLess,
    /// This many: one less than there are, or as many when the request is a repeat.
    Exactly(u32),
    /// None.
    None,
}

/// LOCK.RENEW.
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// Who holds the lock.
    pub owner: Owner,
    /// The lease from now on.
    pub lease: Span,
    /// The tenure it must be; during quarantine, the tenure to restore.
    pub token: Option<FencingToken>,
    /// During quarantine, with a token: how many holds the tenure has. One when it is restored and none are named.
    pub holds: Option<u32>,
}
