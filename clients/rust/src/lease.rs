//! The lease of an acquisition that names none: the server's default, which its first grant tells.

use crate::client::Shared;
use crate::error::Error;
use crate::request::{Claim, Grant, Held, held, millis};
use crate::servers::{Attempts, Lane};
use std::time::{Duration, Instant};

/// The lease where none is named and the server does not tell its own.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// For how long what may have been granted is given back, while nobody knows its lease.
pub(crate) const UNKNOWN: Duration = Duration::from_secs(3_600);

/// What is left of a lease stands for all of it until one part in so many is over.
const FRESH: u64 = 20;

/// How often it is set anew where less than half of it is left, which is no measure for renewals.
const RENEWALS: u32 = 3;

/// For how long an acquisition asks, in milliseconds.
#[derive(Clone, Copy)]
pub(crate) enum Terms {
    Named(u64),
    /// What the server's default was when it was last seen.
    Known(u64),
    /// The server's default, whatever that is.
    Default,
}

impl Terms {
    pub(crate) const fn named(self) -> Option<u64> {
        match self {
            Self::Named(lease) | Self::Known(lease) => Some(lease),
            Self::Default => None,
        }
    }

    /// Whether another lease would do.
    pub(crate) const fn may_change(self) -> bool {
        match self {
            Self::Named(_) => false,
            Self::Known(_) | Self::Default => true,
        }
    }
}

/// The lease of a grant, in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    pub(crate) lease: u64,
    /// The server began to count it no earlier.
    pub(crate) counts_from: Instant,
    /// By this process; else it is what the server gives.
    pub(crate) is_named: bool,
}

/// What is known of that.
pub(crate) enum Learnt {
    Lease(Given),
    /// It was lost again before this process has heard of it.
    Gone,
    /// Too much of it may be over.
    Stale,
    /// This user may not ask.
    Refused,
}

/// Whether the server takes no lease that long.
pub(crate) fn is_too_long(error: &Error) -> bool {
    matches!(error, Error::Server { message, .. } if message.starts_with("invalid expire time"))
}

/// What the server tells of a lease that was not named, since `begun`. Where it is to be set anew, it is as long as the
/// server's default is now.
pub(crate) async fn learn(
    shared: &Shared,
    attempts: &mut Attempts<'_>,
    claim: &Claim,
    grant: Grant,
    is_anew: bool,
    begun: Instant,
) -> Result<Learnt, Error> {
    let mut set = None;
    let mut renewals = 0;
    loop {
        let asked = Instant::now();
        let is_to_be_set = is_anew && set.is_none();
        let cmd = match is_to_be_set {
            true => claim.renew(None, grant.token, grant.holds),
            false => claim.info(),
        };
        let limit = Some(attempts.settings().response_limit);
        match attempts.send(&mut Lane::Shared, &cmd, limit).await {
            Ok(_) if is_to_be_set => {
                set = Some(asked);
                renewals += 1;
            }
            Ok(reply) => {
                let held = held(reply, grant.token)?.filter(|held| held.lease_left > 0);
                let Some(Held { lease_left: lease, held_for }) = held else { return Ok(Learnt::Gone) };
                // By the server's clock a long wait does not matter, nor that this process stood still in it.
                let age = set.map_or(held_for, |set: Instant| millis(set.elapsed()));
                // An older tenure may have a lease that another process has named in this owner's name.
                let is_own = set.is_some() || held_for <= millis(begun.elapsed()).saturating_add(1);
                if is_own && age < lease / FRESH {
                    shared.learn_lease(lease);
                } else if !is_anew {
                    return Ok(Learnt::Stale);
                } else if age > lease && renewals < RENEWALS {
                    set = None;
                    continue;
                }
                return Ok(Learnt::Lease(Given { lease, counts_from: asked, is_named: false }));
            }
            Err(setback) => match attempts.after(setback).await {
                Ok(()) => {}
                Err(Error::Lost(_)) => return Ok(Learnt::Gone),
                Err(error) if error.code() == Some("NOPERM") && !is_to_be_set => {
                    shared.learn_lease(millis(LEASE));
                    return Ok(Learnt::Refused);
                }
                Err(error) => return Err(error),
            },
        }
    }
}
