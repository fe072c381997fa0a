//! Finds out the lease of a grant that was requested without one: the server's default.
//!
//! LOCK.INFO tells how much of the lease is left, not how long it was. So the reply is used only while almost nothing of the
//! lease can be over.

use crate::attempts::Attempts;
use crate::commands::{Grant, Mode, OwnedKey, TenureInfo, read_tenure_info};
use crate::error::Error;
use crate::lease::{DefaultLease, FALLBACK_LEASE, GrantedLease};
use crate::time::millis;
use std::time::Instant;

/// What is left of a lease counts as the whole lease until one part in so many is over.
const FRESH_PART: u64 = 20;

/// How many times the lease is set again when less than half of it is left in the reply.
const MAX_RESETS: u32 = 3;

/// Why the lease of a grant is not known.
pub(crate) enum LookupError {
    /// The tenure has ended.
    NotHeld,
    /// Too much of the lease may be over.
    Stale,
    /// The user has no permission for LOCK.INFO.
    NotPermitted,
    Failed(Error),
}

impl From<Error> for LookupError {
    fn from(error: Error) -> Self {
        if matches!(error, Error::Lost(_)) { Self::NotHeld } else { Self::Failed(error) }
    }
}

/// Looks up the lease of a tenure that was requested at `requested` or later, and remembers it as the default.
pub(crate) async fn look_up_lease(
    default_lease: &DefaultLease,
    attempts: &mut Attempts<'_>,
    key: &OwnedKey,
    grant: Grant,
    requested: Instant,
) -> Result<GrantedLease, LookupError> {
    let (lease, info) = tenure_info(default_lease, attempts, key, grant).await?;
    // The same owner may have acquired the lock in another process before, with a lease of its own choice.
    let is_new = info.held_for <= millis(requested.elapsed()).saturating_add(1);
    // The server's clock tells the age. So a long wait for the lock does not count, nor a pause of this process.
    if !is_new || info.held_for >= lease.millis / FRESH_PART {
        return Err(LookupError::Stale);
    }
    default_lease.set(lease.millis);
    Ok(lease)
}

/// Sets the lease to the server's default, then looks it up.
pub(crate) async fn reset_lease(
    default_lease: &DefaultLease,
    attempts: &mut Attempts<'_>,
    key: &OwnedKey,
    grant: Grant,
) -> Result<GrantedLease, LookupError> {
    let mut resets = 0;
    loop {
        let (set, _) =
            attempts.timed_request(&key.renew(None, grant.token, grant.holds, Mode::default())).await?;
        resets += 1;
        let (lease, _) = tenure_info(default_lease, attempts, key, grant).await?;
        let age = millis(set.elapsed());
        if age < lease.millis / FRESH_PART {
            default_lease.set(lease.millis);
        }
        if age <= lease.millis || resets == MAX_RESETS {
            return Ok(lease);
        }
    }
}

async fn tenure_info(
    default_lease: &DefaultLease,
    attempts: &mut Attempts<'_>,
    key: &OwnedKey,
    grant: Grant,
) -> Result<(GrantedLease, TenureInfo), LookupError> {
    match attempts.timed_request(&key.info()).await {
        Ok((counted_from, reply)) => {
            let info = read_tenure_info(reply, grant.token)?.filter(|info| info.lease_left > 0);
            let info = info.ok_or(LookupError::NotHeld)?;
            Ok((GrantedLease { millis: info.lease_left, counted_from, is_requested: false }, info))
        }
        Err(error) if error.code() == Some("NOPERM") => {
            default_lease.set(millis(FALLBACK_LEASE));
            Err(LookupError::NotPermitted)
        }
        Err(error) => Err(error.into()),
    }
}
