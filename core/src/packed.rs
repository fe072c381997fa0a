//! How the one holder of a lock rests: in 48 bytes, its numbers each in the room that they take in practice.

use crate::lock::{Holder, Slots};
use crate::owner::Owner;
use crate::token::FencingToken;
use crate::units::{Instant, WallTime};
use std::num::NonZeroI64;

/// One holder, and when Redis is told to drop the key, in 48 bytes.
///
/// Times are told by each other: where no clock has jumped, the TTL is as much later than the token, which is the wall
/// clock at the grant, as the deadline is later than the grant. What remains of the one without the other is the drift.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompactHolder {
    /// Who holds the lock.
    pub owner: Owner,
    /// Up to 511 holds, and the token.
    holds_and_token: Pair<54>,
    /// The deadline in microseconds, up to the longest lease there is, and up to 127 slots.
    deadline_and_slots: Pair<8>,
    /// The microseconds from the grant to the deadline, up to 12 days, and the drift, up to 4 seconds.
    length_and_drift: Pair<23>,
}

impl CompactHolder {
    /// Packs a holder; gives it back when a number does not fit.
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
        let (token, deadline) = (holder.token.get().cast_signed(), holder.deadline.as_micros());
        let length = deadline.checked_sub(holder.since.as_micros())?;
        let drift = expires_at.as_micros().checked_sub(token)?.checked_sub(length)?;
        Some((
            Pair::new(holder.holds.into(), token)?,
            Pair::new(deadline, holder.slots.number().into())?,
            Pair::new(length, drift)?,
        ))
    }

    /// The holder. What was packed fits.
    pub fn holder(&self) -> Holder<&Owner> {
        let deadline = self.deadline_and_slots.high();
        Holder {
            owner: &self.owner,
            holds: self.holds_and_token.high() as u32,
            slots: Slots(self.deadline_and_slots.low() as u32),
            token: self.token().unwrap_or(FencingToken::MAX),
            deadline: Instant::from_micros(deadline),
            since: Instant::from_micros(deadline.saturating_sub(self.length_and_drift.high())),
        }
    }

    /// The token; always one that there is.
    pub fn token(&self) -> Option<FencingToken> {
        FencingToken::new(self.holds_and_token.low() as u64)
    }

    /// The same, by itself.
    pub fn unpack(self) -> Holder {
        self.holder().with(|_| ()).with(|()| self.owner)
    }

    /// When Redis is told to drop the key.
    pub fn expires_at(&self) -> WallTime {
        let (length, drift) = (self.length_and_drift.high(), self.length_and_drift.low());
        WallTime::from_micros(self.holds_and_token.low().saturating_add(length).saturating_add(drift))
    }
}

/// Two numbers in one: one in the lower `BITS`, with its sign, and one in the others. Kept is the complement, which is 0 only
/// where both are -1: that does not fit, which leaves room to tell a packed lock from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pair<const BITS: u32>(NonZeroI64);

impl<const BITS: u32> Pair<BITS> {
    /// `None` when one does not fit.
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
