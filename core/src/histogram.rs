//! A histogram of durations, in a fixed 2 KB.
//!
//! The buckets are those of HdrHistogram (Gil Tene), which Redis uses for its latencies too: each range from one power
//! of two to the next is divided into eight equal parts. From 16 µs on, a bucket is at most an eighth as wide as its
//! least value. Recording a duration costs a shift and an increment.

/// Each range from one power of two to the next has 2^`PARTS` buckets.
const PARTS: u32 = 3;
const BUCKETS: usize = 256;

/// The end of the last bucket, in microseconds: 4 h 46 min. Longer durations are counted in the last bucket too.
const END: u64 = least_in(BUCKETS);

/// Durations in microseconds.
///
/// A percentile is never shorter than the exact percentile of the recorded durations, and at most an eighth longer.
/// Below 16 µs a percentile is exact. In the last bucket, from 4 h 28 min on, the percentile is the longest recorded
/// duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], max: 0 }
    }
}

impl Histogram {
    /// Records a duration.
    #[inline]
    pub fn record(&mut self, micros: u64) {
        if let Some(count) = self.counts.get_mut(bucket(micros)) {
            *count = count.wrapping_add(1);
        }
        self.max = self.max.max(micros);
    }

    /// How many durations were recorded.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Whether no duration was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The longest duration; 0 when there is none.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The percentile at `part` thousandths: 999 means the 99.9th percentile. 0 when no duration was recorded.
    #[must_use]
    pub fn per_mille(&self, part: u32) -> u64 {
        let rank = u128::from(self.len()).saturating_mul(part.into()).div_ceil(1_000);
        let mut below: u128 = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below = below.saturating_add((*count).into());
            if below >= rank.max(1) {
                let most = least_in(index.saturating_add(1)).saturating_sub(1);
                return if index.saturating_add(1) == BUCKETS { self.max } else { most.min(self.max) };
            }
        }
        0
    }
}

/// The bucket of a duration.
#[inline]
fn bucket(micros: u64) -> usize {
    let micros = micros.min(END.saturating_sub(1));
    // Each duration below 16 µs has its own bucket.
    let shift = (micros | 1).ilog2().saturating_sub(PARTS);
    (micros.wrapping_shr(shift) as usize).wrapping_add(shift.wrapping_shl(PARTS) as usize)
}

/// The least duration in a bucket.
const fn least_in(bucket: usize) -> u64 {
    let parts = 1_usize.wrapping_shl(PARTS);
    if bucket < parts.wrapping_mul(2) {
        return bucket as u64;
    }
    let shift = (bucket.wrapping_shr(PARTS) as u32).wrapping_sub(1);
    let part = bucket.wrapping_sub((shift as usize).wrapping_shl(PARTS));
    (part as u64).wrapping_shl(shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(durations: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        durations.into_iter().for_each(|micros| histogram.record(micros));
        histogram
    }

    #[test]
    fn a_histogram_takes_two_kilobytes() {
        assert_eq!(size_of::<Histogram>(), 2_048 + 8);
        assert_eq!(END, (4 * 60 + 46) * 60_000_000 + 19_869_184, "17,179.869184 s");
    }

    #[test]
    fn buckets_adjoin_without_a_gap() {
        for index in 0..BUCKETS {
            let (least, next) = (least_in(index), least_in(index + 1));
            assert!(least < next, "{index}");
            assert_eq!((bucket(least), bucket(next - 1)), (index, index));
        }
        assert_eq!((bucket(END), bucket(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn a_percentile_is_at_most_an_eighth_too_long_and_never_too_short() {
        let mut micros = 0;
        while micros < END - END / 8 {
            let percentile = of([micros, END * 2]).per_mille(500);
            assert!(
                percentile >= micros && percentile - micros <= micros / 8,
                "{micros} is returned as {percentile}"
            );
            assert!(micros >= 16 || percentile == micros);
            micros += 1 + micros / 97;
        }
    }

    #[test]
    fn an_empty_histogram_returns_zeros() {
        let none = Histogram::default();
        assert!(none.is_empty());
        assert_eq!((none.len(), none.max(), none.per_mille(500), none.per_mille(1_000)), (0, 0, 0, 0));
    }

    #[test]
    fn a_percentile_is_not_exceeded_by_its_share_of_the_durations() {
        let thousand = of(1..=1_000);
        for (part, exact) in [(0, 1), (1, 1), (500, 500), (990, 990), (999, 999), (1_000, 1_000)] {
            let percentile = thousand.per_mille(part);
            assert!(percentile >= exact && percentile - exact <= exact / 8, "{part}: {percentile}");
        }
        assert_eq!((thousand.len(), thousand.max()), (1_000, 1_000));
        assert_eq!(of([7]).per_mille(1), 7);
        assert_eq!(of([1, 1, 900]).per_mille(999), 900, "not above the longest that was recorded");
    }

    #[test]
    fn durations_beyond_the_last_bucket_are_returned_as_the_longest() {
        let long = of([1, END - 1, END, u64::MAX]);
        assert_eq!((long.per_mille(250), long.per_mille(500), long.max()), (1, u64::MAX, u64::MAX));
    }
}
