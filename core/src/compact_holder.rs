//! The holder of a lock with only one holder, in 48 bytes.
//!
//! Most locks have one holder of weight 1, and a server may have millions of such locks. A holder whose numbers do not
//! fit is stored in a list instead: see [`crate::lock`].

use crate::holder::{Holder, Mode, Slots, Weight};
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::{Instant, WallTime};
use std::num::NonZeroI64;

/// One holder and the expiry time of the key.
///
/// The expiry time itself is not stored. Usually the token is the wall time of the grant, and the expiry time is the
/// token plus the time from the grant to the deadline. Only the drift is stored: the difference between the expiry time
/// and this sum. The drift is small if nobody sets the wall clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompactHolder {
    /// The owner.
    pub owner: Owner,
    /// Up to 511 holds, and the token.
    holds_and_token: Pair<54>,
    /// The deadline in microseconds (a lease of any length fits), and up to 127 slots.
    deadline_and_slots: Pair<8>,
    /// The microseconds from the grant to the deadline, up to 12 days, and the drift, up to 4 seconds.
    length_and_drift: Pair<23>,
}

impl CompactHolder {
    /// Packs a holder.
    ///
    /// # Errors
    /// Returns the holder when a number does not fit.
    #[inline(always)]
    pub fn new(holder: Holder, expires_at: WallTime) -> Result<Self, Holder> {
        let Some((holds_and_token, deadline_and_slots, length_and_drift)) = Self::pairs(&holder, expires_at)
        else {
            return Err(holder);
        };
        Ok(Self { owner: holder.owner, holds_and_token, deadline_and_slots, length_and_drift })
    }

    #[inline(always)]
    fn pairs(holder: &Holder, expires_at: WallTime) -> Option<(Pair<54>, Pair<8>, Pair<23>)> {
        if holder.mode.weight != Weight::ONE {
            return None;
        }
        let (token, deadline) = (holder.token.get().cast_signed(), holder.deadline.as_micros());
        let length = deadline.checked_sub(holder.since.as_micros())?;
        let drift = expires_at.as_micros().checked_sub(token)?.checked_sub(length)?;
        Some((
            Pair::new(holder.holds.into(), token)?,
            Pair::new(deadline, holder.mode.slots.number().into())?,
            Pair::new(length, drift)?,
        ))
    }

    /// The holder, with a borrowed owner.
    pub fn holder(&self) -> Holder<&Owner> {
        let deadline = self.deadline_and_slots.high();
        Holder {
            owner: &self.owner,
            holds: self.holds_and_token.high() as u32,
            mode: Mode { slots: Slots(self.deadline_and_slots.low() as u32), weight: Weight::ONE },
            token: self.token().unwrap_or(FencingToken::MAX),
            deadline: Instant::from_micros(deadline),
            since: Instant::from_micros(deadline.saturating_sub(self.length_and_drift.high())),
        }
    }

    /// The token. Never `None`, because `new` has stored a valid token.
    pub fn token(&self) -> Option<FencingToken> {
        FencingToken::new(self.holds_and_token.low() as u64)
    }

    /// The holder.
    pub fn unpack(self) -> Holder {
        self.holder().map_owner(|_| ()).map_owner(|()| self.owner)
    }

    /// The expiry time of the key.
    pub fn expires_at(&self) -> WallTime {
        let (length, drift) = (self.length_and_drift.high(), self.length_and_drift.low());
        WallTime::from_micros(self.holds_and_token.low().saturating_add(length).saturating_add(drift))
    }
}

/// Two signed numbers in 64 bits: `low` in the lower `BITS` bits, `high` in the other bits.
///
/// The complement of the 64 bits is stored. The complement is 0 only if both numbers are -1, and `new`
/// refuses this pair. Because the stored number is never 0, an enum that has a `Pair` needs no further bytes
/// for its discriminant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pair<const BITS: u32>(NonZeroI64);

impl<const BITS: u32> Pair<BITS> {
    /// `None` when a number does not fit.
    fn new(high: i64, low: i64) -> Option<Self> {
        let both = high.wrapping_shl(BITS) | (low & (1_i64.wrapping_shl(BITS).wrapping_sub(1)));
        let pair = Self(NonZeroI64::new(!both)?);
        (pair.high() == high && pair.low() == low).then_some(pair)
    }

    fn high(self) -> i64 {
        (!self.0.get()).wrapping_shr(BITS)
    }

    fn low(self) -> i64 {
        let above = i64::BITS.wrapping_sub(BITS);
        (!self.0.get()).wrapping_shl(above).wrapping_shr(above)
    }
}
