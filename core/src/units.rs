//! Times with a unit.
//!
//! Leases and wait limits are spans on the monotonic clock. The wall clock is for values that outlive the process: the
//! TTL of a key, fencing tokens, and files.

const MICROS_PER_MILLI: i64 = 1_000;

/// A length of time in whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// The longest span: a thousand years. Adding this span to an instant does not overflow.
    pub const MAX: Self = Self(1_000 * 365 * 24 * 3_600 * 1_000);

    /// `millis` milliseconds; `None` above [`Span::MAX`].
    #[must_use]
    pub const fn from_millis(millis: u64) -> Option<Self> {
        if millis <= Self::MAX.0 { Some(Self(millis)) } else { None }
    }

    /// `millis` milliseconds, for constants: every `u32` is in range.
    #[must_use]
    pub const fn millis(millis: u32) -> Self {
        Self(millis as u64)
    }

    /// The milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    const fn micros(self) -> i64 {
        // The product does not overflow, because a span is at most MAX.
        (self.0 as i64).saturating_mul(MICROS_PER_MILLI)
    }

    fn from_micros_rounded_up(micros: i64) -> Self {
        let millis =
            micros.max(0).saturating_add(MICROS_PER_MILLI.saturating_sub(1)).div_euclid(MICROS_PER_MILLI);
        Self(millis.unsigned_abs()).min(Self::MAX)
    }
}

/// An instant on the server's monotonic clock, in microseconds. An instant can lie before the clock's zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(i64);

impl Instant {
    /// The instant `micros` microseconds after the clock's zero.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The microseconds after the clock's zero.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The instant that is `span` later.
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.micros()))
    }

    /// The instant that is `span` earlier.
    #[must_use]
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.micros()))
    }

    /// The time until `later`, rounded up; zero when `later` is past.
    #[must_use]
    pub fn until(self, later: Self) -> Span {
        Span::from_micros_rounded_up(later.0.saturating_sub(self.0))
    }

    /// The microseconds since `earlier`; zero when `earlier` is still to come.
    #[must_use]
    pub fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0).max(0).unsigned_abs()
    }

    /// The time since `earlier`, rounded down; zero when `earlier` is still to come.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.micros_since(earlier).div_euclid(1_000)).min(Span::MAX)
    }
}

/// A time on the wall clock, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(i64);

impl WallTime {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The time `micros` microseconds after the epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The time `millis` milliseconds after the epoch, or the farthest time that can be represented.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(MICROS_PER_MILLI))
    }

    /// The microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The milliseconds since the epoch, rounded down as Redis does.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(MICROS_PER_MILLI)
    }

    /// The time that is `span` later.
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.micros()))
    }

    /// The time until `later`, rounded up; zero when `later` is past.
    #[must_use]
    pub fn until(self, later: Self) -> Span {
        Span::from_micros_rounded_up(later.0.saturating_sub(self.0))
    }
}

/// Both clocks, read once for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock, for leases and wait limits.
    pub mono: Instant,
    /// The wall clock, for tokens, the TTL of a key, and files.
    pub wall: WallTime,
}

impl Now {
    /// The wall time at `deadline`, if nobody sets the clock meanwhile.
    #[must_use]
    pub fn wall_at(&self, deadline: Instant) -> WallTime {
        WallTime(self.wall.0.saturating_add(deadline.0.saturating_sub(self.mono.0)))
    }

    /// The instant at which the wall clock shows `time`, if nobody sets the clock meanwhile.
    #[must_use]
    pub fn mono_at(&self, time: WallTime) -> Instant {
        Instant(self.mono.0.saturating_add(time.0.saturating_sub(self.wall.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_plus_the_longest_span_does_not_overflow() {
        let days = 365_000;
        assert_eq!(Span::MAX.as_millis(), days * 86_400_000);
        assert_eq!(Span::from_millis(Span::MAX.as_millis()), Some(Span::MAX));
        assert_eq!(Span::from_millis(Span::MAX.as_millis() + 1), None);
        let (from, days) = (Instant::from_micros(1_795_000_000_000_000), i64::try_from(days).unwrap());
        assert_eq!(
            from.after(Span::MAX),
            Instant::from_micros(1_795_000_000_000_000 + days * 86_400_000_000)
        );
        assert_eq!(from.until(from.after(Span::MAX)), Span::MAX);
        assert_eq!(from.after(Span::MAX).before(Span::MAX), from);
    }

    #[test]
    fn time_left_is_rounded_up_and_time_passed_is_rounded_down() {
        let at = Instant::from_micros;
        for (micros, up, down) in
            [(-1, 0, 0), (0, 0, 0), (1, 1, 0), (999, 1, 0), (1_000, 1, 1), (1_001, 2, 1)]
        {
            assert_eq!(at(5).until(at(5 + micros)).as_millis(), up, "until {micros}");
            assert_eq!(WallTime::from_micros(5).until(WallTime::from_micros(5 + micros)).as_millis(), up);
            assert_eq!(at(5 + micros).micros_since(at(5)), u64::try_from(micros).unwrap_or(0));
            assert_eq!(at(5 + micros).since(at(5)).as_millis(), down, "since {micros}");
        }
    }

    #[test]
    fn wall_milliseconds_are_rounded_down_before_the_epoch_too() {
        for (micros, millis) in [(-1_001, -2), (-1_000, -1), (-1, -1), (0, 0), (999, 0), (1_000, 1)] {
            assert_eq!(WallTime::from_micros(micros).as_millis(), millis, "{micros}");
        }
    }
}
