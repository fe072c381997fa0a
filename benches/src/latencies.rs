//! Latencies and their quantiles.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Latencies, in nanoseconds, to three digits.
#[derive(Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { histogram: Histogram::new(3).expect("a histogram") }
    }
}

impl Latencies {
    /// Adds a latency.
    pub fn record(&mut self, took: Duration) {
        self.histogram.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)).expect("room for it");
    }

    /// Adds the latencies of another set.
    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("room for them");
    }

    /// The quantile of `part` (the median is 0.5), in nanoseconds.
    pub fn quantile(&self, part: f64) -> f64 {
        self.histogram.value_at_quantile(part) as f64
    }
}
