//! Fencing tokens without a stored counter.
//!
//! A new token is the larger of two numbers: the wall clock in microseconds, and the floor plus 1. The floor is the
//! largest token that this server has given or received. So tokens grow
//!
//! - across a release, a deletion, FLUSHALL and a clock step, because the floor stays in memory;
//! - across a restart without data, because time has passed since the last grant;
//! - across a failover or a slot move, if the clock of the new server is behind by less than the time since the last
//!   grant.
//!
//! This rule is the hybrid clock of Kulkarni et al., "Logical Physical Clocks" (2014), without its separate counter.

use crate::units::{Span, WallTime};
use std::num::NonZeroU64;

/// The fencing token of a tenure: a number from 1 to 2^53 - 1, which every language can represent exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// The smallest token there is.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// The largest token there is.
    pub const MAX: Self = match NonZeroU64::new((1 << 53) - 1) {
        Some(number) => Self(number),
        None => Self(NonZeroU64::MAX),
    };

    /// A token from its number; `None` outside 1 to 2^53 - 1.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) if number.get() <= Self::MAX.get() => Some(Self(number)),
            _ => None,
        }
    }

    /// The token's number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The next smaller token; `None` for 1.
    #[must_use]
    pub const fn before(self) -> Option<Self> {
        Self::new(self.get().saturating_sub(1))
    }
}

/// Gives tokens. Each token is larger than all earlier tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TokenSource {
    floor: u64,
}

impl TokenSource {
    /// A token that is larger than every token given or observed; `None` after the largest token.
    pub fn next(&mut self, wall: WallTime) -> Option<FencingToken> {
        let by_clock = u64::try_from(wall.as_micros()).unwrap_or(0);
        let token = FencingToken::new(self.floor.saturating_add(1).max(by_clock))?;
        self.floor = token.get();
        Some(token)
    }

    /// The largest token given or observed.
    #[must_use]
    pub const fn last(&self) -> Option<FencingToken> {
        FencingToken::new(self.floor)
    }

    /// Whether a token lies more than a day ahead of the wall clock, and is larger than every token given or observed.
    /// A correct server does not give such a token. If such a token became the floor, the numbers could run out.
    #[must_use]
    pub fn is_far_ahead(&self, token: FencingToken, wall: WallTime) -> bool {
        const DAY: Span = Span::millis(24 * 3_600 * 1_000);
        let latest = u64::try_from(wall.after(DAY).as_micros()).unwrap_or(0);
        token.get() > latest.max(self.floor)
    }

    /// Raises the floor to a token that another server gave, or that this server gave before a restart.
    pub fn observe(&mut self, token: FencingToken) {
        self.floor = self.floor.max(token.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> WallTime {
        WallTime::from_micros(micros)
    }

    #[test]
    fn tokens_follow_the_clock_and_always_grow() {
        let mut source = TokenSource::default();
        let given: Vec<u64> = [100, 100, 50, -7, 200].map(|wall| source.next(at(wall)).unwrap().get()).into();
        assert_eq!(given, [100, 101, 102, 103, 200]);
    }

    #[test]
    fn the_next_token_is_larger_than_an_observed_one() {
        let mut source = TokenSource::default();
        assert_eq!(source.last(), None);
        source.observe(FencingToken::new(500).unwrap());
        source.observe(FencingToken::new(400).unwrap());
        assert_eq!(source.last(), FencingToken::new(500));
        assert_eq!(source.next(at(100)).unwrap().get(), 501);
    }

    #[test]
    fn the_largest_token_is_given_once() {
        let mut source = TokenSource::default();
        source.observe(FencingToken::new(FencingToken::MAX.get() - 1).unwrap());
        assert_eq!(source.next(at(0)), Some(FencingToken::MAX));
        assert_eq!(source.next(at(0)), None);
    }

    #[test]
    fn a_token_is_far_ahead_if_it_is_more_than_a_day_ahead() {
        let (source, day) = (TokenSource::default(), 24 * 3_600 * 1_000_000);
        assert!(!source.is_far_ahead(FencingToken::new(day + 5).unwrap(), at(5)));
        assert!(source.is_far_ahead(FencingToken::new(day + 6).unwrap(), at(5)));
    }

    #[test]
    fn a_token_that_was_given_is_never_far_ahead() {
        let (mut source, day) = (TokenSource::default(), 24 * 3_600 * 1_000_000);
        let given = source.next(at(10 * day)).unwrap();
        assert!(!source.is_far_ahead(given, at(0)));
        assert!(!source.is_far_ahead(given, at(-day * 2)));
        assert!(source.is_far_ahead(FencingToken::new(given.get() + 1).unwrap(), at(0)));
    }
}
